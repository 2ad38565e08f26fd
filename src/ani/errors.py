"""Exceptions whose message is for the user."""


def how_to_install(extra: str) -> str:
    """The command that installs what one of our extras, or several with commas, needs."""
    return f"install it with pip install '.[{extra}]' in ANI's checkout (or give pip its wheel: 'ani-….whl[{extra}]')"


class InputError(ValueError):
    """Bad input: one clear sentence naming the file, key or value and the mend. The CLI exits with 2."""


class TrainingFailed(RuntimeError):
    """Training can't go on; the message says where, why and what to do. The CLI exits with 1."""
