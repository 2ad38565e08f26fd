"""Errors that a user can mend; knows nothing about what raises them."""


class InputError(ValueError):
    """Bad input: one clear sentence naming the file, key or value and the mend. The CLI exits with 2."""
