"""Training data and test data: the two parts of everything that we generate, which share nothing."""

from typing import Literal, get_args

from ani.errors import InputError

Split = Literal["train", "test"]


def check_split(split: str) -> None:
    """Raises InputError unless it is one."""
    if split not in get_args(Split):
        raise InputError(f"split must be one of {', '.join(get_args(Split))}, not {split!r:.80}")
