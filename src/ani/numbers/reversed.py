"""Numbers with their digits turned around, least significant first: `12345` → `54321`.

A sum's digits can then be written in the order in which its carries travel (Lee et al., "Teaching Arithmetic to Small
Transformers", arXiv 2307.03381). Sign and exponent stay where they are, thousands separators are left out: `-1,234.5` →
`-5.4321`, `1.5e3` → `5.1e3`.
"""

import re

from ani.numbers.grammar import number_pieces

_NUMBER = re.compile(r"(?P<sign>[+−-]?)(?P<mantissa>[0-9,.]*)(?P<exponent>.*)")


def reversed_pieces(text: str) -> list[tuple[str, bool]]:
    """A text with every number turned around, in pieces; True for a number."""
    return [(_turned(piece) if is_number else piece, is_number) for piece, is_number in number_pieces(text)]


def turn_back(text: str) -> str:
    """Turn every number around: the inverse of `reversed_pieces`, joined, but for thousands separators and the zero
    that it writes before a bare point."""
    return "".join(piece for piece, _ in reversed_pieces(text))


def _turned(number: str) -> str:
    match = _NUMBER.fullmatch(number)
    assert match is not None, number
    mantissa = match["mantissa"].replace(",", "")
    return match["sign"] + ("0" + mantissa if mantissa.startswith(".") else mantissa)[::-1] + match["exponent"]
