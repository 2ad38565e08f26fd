"""Seeded questions that a number's value answers and its digits hardly do: which of two numbers, written in different
ways, is larger, and remainders. Knows nothing about tokens, models or how an answer is scored.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from importlib import resources
from itertools import cycle, islice, product
from random import Random
from typing import Any, Literal, NamedTuple, get_args

import yaml

from ani.data.arithmetic import check_drawn, check_names, split_of
from ani.data.split import Split
from ani.errors import InputError

Form = Literal["plain", "grouped", "scientific", "mixed"]
"""How the two numbers of a question are written: `1250.5`, `1,250.5`, `1.2505e3`; or each in another of these ways."""

FORMS: tuple[Form, ...] = get_args(Form)
MOST_DIGITS = 15
MOST_MODULUS = 1000
_ATTEMPTS = 5000
"""Drawings in vain after which there is taken to be nothing new."""


class ValueProblem(NamedTuple):
    """One question; its completion is `f" {answer}"`."""

    task: str
    """`comparing`, or `modulo 7`."""
    part: str | int
    """The form of the numbers that are compared, or how many digits the divided number has."""
    prompt: str
    """Without a trailing space. It begins with a word, as `ArithmeticProblem`'s."""
    answer: str
    """`first` or `second`, or the remainder."""


def comparing_problems(
    count: int, *, forms: Sequence[Form] = ("plain",), split: Split, seed: int = 0
) -> list[ValueProblem]:
    """Draws questions which of two numbers is larger, the first or the second, spread evenly over forms and answers.

    The numbers are from 1,000 to 10⁹, where all forms differ, with one to six significant digits; more than half of the
    pairs have as many digits before the point. The answer is a word, and not the number as it is written: it is the
    same in all forms, so that a form that was never learnt needn't be written, and a model decides at one token,
    without copying.

    The list depends on the arguments alone. A hash of the two values, whatever their order and form, decides whether a
    question belongs to train (about nine of ten) or test.

    Args:
        count: how many.
        forms: distinct ones.
        split: which side of the division to draw from.
        seed: selects the draw within the split.

    Raises:
        InputError: an argument is out of its domain.
    """
    check_drawn(count, split)
    check_names("forms", forms, FORMS)
    random, texts = Random(f"comparing {split} {seed}"), _templates("comparing")

    def draw(form: Form, answer: str) -> tuple[str, ValueProblem]:
        power = random.randint(3, 8)
        one = other = _number(random, power)
        while other == one:
            other = _number(random, random.choice((power, random.randint(3, 8))))
        small, large = sorted((one, other))
        ways: list[Form] = random.sample(FORMS[:3], 2) if form == "mixed" else [form, form]
        ordered = (large, small) if answer == "first" else (small, large)
        a, b = (_written(value, way) for value, way in zip(ordered, ways, strict=True))
        prompt = random.choice(texts).format(a=a, b=b)
        return f"{small:f}<{large:f}", ValueProblem("comparing", form, prompt, answer)

    return _distinct(count, [*product(forms, ("first", "second"))], draw, split)


def modulo_problems(
    count: int,
    *,
    digits: Sequence[int] = (3, 4, 5, 6),
    moduli: Sequence[int] = (7, 11, 13),
    split: Split,
    seed: int = 0,
) -> list[ValueProblem]:
    """Draws questions for the remainder of a whole number, spread evenly over moduli and lengths of the number.

    As `comparing_problems`; a hash of the divided number alone decides in which split it is asked about.

    Raises:
        InputError: an argument is out of its domain, or there are too few numbers of a length.
    """
    check_drawn(count, split, digits=(digits, 1, MOST_DIGITS), moduli=(moduli, 2, MOST_MODULUS))
    random, texts = Random(f"modulo {split} {seed}"), _templates("modulo")

    def draw(modulus: int, length: int) -> tuple[str, ValueProblem]:
        number = random.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
        prompt = random.choice(texts).format(a=number, m=modulus)
        return f"{number} modulo", ValueProblem(f"modulo {modulus}", length, prompt, str(number % modulus))

    return _distinct(count, [*product(moduli, digits)], draw, split)


VALUE_PROBLEMS: dict[str, Callable[..., list[ValueProblem]]] = {
    "comparing": comparing_problems,
    "modulo": modulo_problems,
}
"""By the kind of data source, and the name of the task."""


def _written(value: Decimal, form: Form) -> str:
    """A number in one of the forms but `mixed`."""
    if form == "scientific":
        first, *rest = map(str, value.as_tuple().digits)
        return f"{first}{'.' if rest else ''}{''.join(rest)}e{value.adjusted()}"
    return f"{value:,f}" if form == "grouped" else f"{value:f}"


def _number(random: Random, power: int) -> Decimal:
    """From this power of ten up to the next one, without trailing zeros."""
    digits = random.randint(1, 6)
    return Decimal(random.randrange(10 ** (digits - 1), 10**digits)).scaleb(power - digits + 1).normalize()


def _templates(task: str) -> list[str]:
    texts: dict[str, list[str]] = yaml.safe_load(
        resources.files("ani.data").joinpath("value_problems.yaml").read_text("utf-8")
    )
    return texts[task]


def _distinct(
    count: int, cells: Sequence[tuple[Any, ...]], draw: Callable[..., tuple[str, ValueProblem]], split: Split
) -> list[ValueProblem]:
    """Problems of a split, the cells in turn; none asks the same of the same numbers.

    Beside a problem of a cell `draw` gives its numbers, which alone decide in which split it stands."""
    found: dict[tuple[str, str], ValueProblem] = {}
    for cell in islice(cycle(cells), count):
        for numbers, problem in (draw(*cell) for _ in range(_ATTEMPTS)):
            if split_of(numbers) == split and (numbers, problem.task) not in found:
                found[numbers, problem.task] = problem
                break
        else:
            raise InputError(
                f"count={count} asks for more problems of the kind {' '.join(map(str, cell))!r} than the {split} split "
                "has: lower count, or leave that out"
            )
    return list(found.values())
