"""Equals signs in written solutions: how many have a value, and what the solution writes behind it.

    python benchmarks/equals_signs.py gsm8k/test.jsonl math/test.jsonl

Every `=` of a solution counts. Its left side goes back to the sign, the formula's begin or the line before it. Some
seconds for all of GSM8K's and MATH's test sets.
"""

import argparse
import json
import random
import re
from collections import Counter
from pathlib import Path

import _paired
from rich.table import Table

from ani.calculator.reader.calculations import Calculation, Equation, calculation_before, number_behind
from ani.calculator.reader.expressions import read, tokens_of
from ani.data.sources import ANNOTATION
from ani.results.statistics import wilson_interval

_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_BEGIN = re.compile(r"=|\$|\\\[|\\\(|\\\\|&|\n|\\(?:approx|implies|[lg]eq?)(?![a-z])|[<>]|[,;:] ")
_NO_LETTER = re.compile(r"\\(?:text|mbox|textrm)\{[^{}]*\}|\\[a-zA-Z]+")
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_LEFT = ("numbers and signs", "one number", "words or variables", "nothing", "drawing code")
_BEHIND = ("its value or a rounding", "an expression of its value", "another number", "something else")


def left_side(text: str, sign: int) -> str:
    """What stands before a sign, one of `_LEFT`."""
    if any(drawing.start() < sign < drawing.end() for drawing in _DRAWING.finditer(text)):
        return "drawing code"
    *_, begin = [0, *(match.end() for match in _BEGIN.finditer(text, 0, sign))]
    left = _NO_LETTER.sub("", text[begin:sign])
    if re.search("[A-Za-z]", left):
        return "words or variables"
    numbers = _NUMBER.findall(left)
    return "nothing" if not numbers else "one number" if numbers == [left.strip(" {}()")] else "numbers and signs"


def behind(calculation: Calculation, text: str) -> str:
    """What a text behind a sign begins with, one of `_BEHIND`."""
    text = text.replace(r",\!", ",")  # between thousands
    number = number_behind(text)
    percent = re.match(r"\s*\S*?[0-9]\\?%", text) is not None
    if number is not None and Equation(calculation, number, percent).right:
        return "its value or a rounding"
    text = re.sub(r"\\boxed\{|\\text\{ ?\}|&|\\\$", "", text)
    tokens = tokens_of(text, 0, to_break=True)
    found = read(text, tokens) if tokens else None
    if found and found.value == calculation.value:
        return "an expression of its value"
    return "something else" if number is None else "another number"


def main() -> None:
    """Print two tables, and signs to read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="JSON lines of GSM8K's or MATH's form.")
    parser.add_argument("--solutions", type=int, default=10_000, help="Of each file at most, drawn at random.")
    parser.add_argument("--show", type=int, default=0, help="So many signs whose value the solution doesn't write.")
    arguments = parser.parse_args()
    shares = Table("solutions", "left side of the sign", "signs", "with a value", title="Equals signs with a value")
    follows = Table("solutions", "values", *_BEHIND, title="What the solution writes behind a sign with a value")
    shown: list[str] = []
    for file in arguments.data:
        counts: Counter[str] = Counter()
        valued: Counter[str] = Counter()
        written: Counter[str] = Counter()
        lines = file.read_text(encoding="utf-8").splitlines()
        for line in random.Random(0).sample(lines, min(len(lines), arguments.solutions)):
            record = json.loads(line)
            problem, solution = (
                record.get("question") or record["problem"],
                record.get("answer") or record["solution"],
            )
            text = f"Q: {problem}\nA: {ANNOTATION.sub('', solution)}"
            for sign in re.compile("=").finditer(text, text.index("\nA: ")):
                left = left_side(text, sign.start())
                counts.update((left, "all"))
                if calculation := calculation_before(text, sign.start()):
                    valued.update((left, "all"))
                    what = behind(calculation, text[sign.end() : sign.end() + 200])
                    written[what] += 1
                    if what in _BEHIND[2:]:
                        shown.append(f"{what}: {text[max(0, sign.start() - 60) : sign.end() + 30]!r}")
        for left in ("all", *_LEFT):
            if total := counts[left]:
                low, high = wilson_interval(valued[left], total)
                share = f"{valued[left] / total:.1%} ({100 * low:.1f}–{100 * high:.1f})"
                shares.add_row(str(file), left, f"{total:,}", share)
        follows.add_row(str(file), f"{valued['all']:,}", *(f"{written[what]:,}" for what in _BEHIND))
    _paired.show(shares)
    _paired.show(follows)
    for line in random.Random(0).sample(shown, min(len(shown), arguments.show)):
        print(line)


if __name__ == "__main__":
    main()
