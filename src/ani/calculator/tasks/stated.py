"""The numbers that an answer states as a result, for tasks that look for one of them."""

import re

from ani.numbers import NumberText, find_numbers

_OPERATOR = r"[^\S\n]*(?:[-+−–*×x·⋅∙÷/^]|\\(?:times|cdot|div)|plus|minus|times|(?:divided|multiplied) by)[^\S\n]*"
_GOES_ON = re.compile(rf"[%)]*{_OPERATOR}(?:\\?[$(])*-?[0-9.]")
_GONE_ON = re.compile(rf"[0-9)%]{_OPERATOR}(?:\\?[$(])*\Z")


def stated_numbers(text: str) -> list[NumberText]:
    """The numbers of a text that are no operands: in ``1.375 + 5 = 6.375`` the last one alone."""
    return [
        number
        for number in find_numbers(text)
        if not _GOES_ON.match(text, number.end) and not _GONE_ON.search(text[max(0, number.start - 40) : number.start])
    ]
