"""Evaluation: tasks, the backends that answer them, and the run that asks and records (`run`)."""
