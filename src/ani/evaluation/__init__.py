"""Measuring models: tasks, scoring and statistics."""
