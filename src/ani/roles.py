"""Roles of numbers: a name gets no injection, a quantity gets its value."""

from enum import IntEnum
from typing import Literal, Self

RoleName = Literal["nominal", "quantitative"]
"""A known role, as data files and results write it."""


class Role(IntEnum):
    """Role of a number, as tensors contain it."""

    UNKNOWN = -1
    """The data does not say."""
    NOMINAL = 0
    """A name or a place, such as a room, a version or a year: its value is not injected."""
    QUANTITATIVE = 1
    """A count or a measure: its value is injected."""

    @classmethod
    def named(cls, name: RoleName | None) -> Self:
        """The role with this name; `UNKNOWN` for None."""
        return cls["UNKNOWN" if name is None else name.upper()]
