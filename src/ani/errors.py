"""Errors that speak to the user; knows nothing about what raises them."""


class InputError(ValueError):
    """Bad input: one clear sentence naming the file, key or value and the mend. The CLI exits with 2."""


class TrainingFailed(RuntimeError):
    """Training can't go on; the message says where, why and what to do. The CLI exits with 1."""
