"""Find numbers and their exact values in text and in token ids."""

from ani.numbers.grammar import NumberText, find_numbers, number_pieces
from ani.numbers.scanner import Number, NumberScanner

__all__ = ["Number", "NumberScanner", "NumberText", "find_numbers", "number_pieces"]
