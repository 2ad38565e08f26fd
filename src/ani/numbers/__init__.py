"""Find numbers and their exact values in text and in token ids."""

from ani.numbers.scanner import Number, NumberScanner
from ani.numbers.text import NumberText, find_numbers, number_pieces

__all__ = ["Number", "NumberScanner", "NumberText", "find_numbers", "number_pieces"]
