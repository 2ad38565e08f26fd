"""Seeded N-digit arithmetic problems for the paper's N-Digit Arithmetic Scaling experiment."""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from itertools import cycle, islice, product, starmap
from math import lcm
from random import Random
from typing import Literal, NamedTuple

from ani.data.split import Split, add_new, check_split
from ani.errors import InputError

Operation = Literal["addition", "subtraction", "multiplication", "division"]
Symbol = Literal["+", "-", "*", "/"]
Form = Literal["plain", "negative", "decimal", "separators", "scientific"]

MOST_DIGITS = 1000
"""Most digits of an operand; Python writes no number of 4,300 digits, and a product has twice as many."""
SYMBOLS: dict[Operation, Symbol] = {"addition": "+", "subtraction": "-", "multiplication": "*", "division": "/"}
COMPUTE: dict[Symbol, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_ATTEMPTS = 10_000
"""Draws without a new problem after which none is left."""


class ArithmeticProblem(NamedTuple):
    """One problem on two operands of `digits` digits each; its completion is `f" {answer}"`.

    A division has an exact quotient: divisor and quotient have `digits` digits each, the dividend is their product.
    """

    digits: int
    operation: Symbol
    left: int
    right: int
    form: Form = "plain"
    """How the operands are written (`in_form`)."""

    def in_form(self, form: Form) -> "ArithmeticProblem":
        """Return the problem on the same digits, written in a form.

        `negative`: one operand or both have a sign, `-123 + 456`. `decimal`: half of the digits, and at least one, are
        after the point, `12.3 + 45.6`. `separators`: `1,234 + 5,678`. `scientific`: `1.23e2 + 4.56e2`.
        """
        left, right = ((-1, 1), (1, -1), (-1, -1))[(self.left + self.right) % 3] if form == "negative" else (1, 1)
        return self._replace(left=left * self.left, right=right * self.right, form=form)

    @property
    def _places(self) -> int:
        """Number of an operand's digits after the point."""
        return max(1, self.digits // 2) if self.form == "decimal" else 0

    @property
    def prompt(self) -> str:
        """Question, such as `Calculate 123 + 456 =`, without a trailing space. It begins with a word, because hidden
        states at a row's first token are unlike all others, and a leading digit there was not learnt."""
        return f"Calculate {self.expression} ="

    @property
    def expression(self) -> str:
        """Expression, such as `123 + 456`."""
        return f"{self._written(self.left)} {self.operation} {self._written(self.right)}"

    def _written(self, operand: int) -> str:
        digits = str(operand)
        match self.form:
            case "decimal":
                return f"{Decimal(f'{operand}e-{self._places}'):f}"
            case "separators":
                return f"{operand:,}"
            case "scientific":
                return f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{len(digits) - 1}"
        return digits

    @property
    def answer(self) -> Decimal:
        """Exact result; negative where a subtraction's right operand is the larger."""
        result = COMPUTE[self.operation](self.left, self.right)
        places = {"*": 2, "/": 0}.get(self.operation, 1) * self._places
        while places and result % 10 == 0:  # no zeros at the end of a decimal
            result, places = result // 10, places - 1
        return Decimal(f"{result}e-{places}")

    @property
    def chain(self) -> int | None:
        """Longest run of places of a sum through which a carry must travel: places whose digits make 9, and into which
        the place before carries. In 14 + 28 it is 0, in 145 + 456 it is 1. None for other operations and signs."""
        if self.operation != "+" or self.form == "negative":
            return None
        longest = run = 0
        left, right, carry = self.left, self.right, 0
        while left or right:
            total = left % 10 + right % 10
            run = run + 1 if carry and total == 9 else 0
            longest, carry = max(longest, run), total + carry >= 10
            left, right = left // 10, right // 10
        return longest


def arithmetic_problems(
    count: int, *, digits: Sequence[int], operations: Sequence[Operation] = ("addition",), split: Split, seed: int = 0
) -> list[ArithmeticProblem]:
    """Draw `count` distinct problems, spread evenly (to within one) over lengths and operations, in random order.

    The list depends on the arguments alone. A hash of the problem, the same for both orders of a sum's or product's
    operands, decides whether it belongs to train (about nine of ten) or test. `digits` are distinct operand lengths, 1
    to `MOST_DIGITS`; zero is a one-digit operand, but no divisor. Raises InputError if an argument is out of its
    domain, or a length has too few problems.
    """
    check_drawn(count, split, digits=(digits, range(1, MOST_DIGITS + 1)), operations=(operations, SYMBOLS))
    # Walking the grid diagonally keeps both margins even at any count, not only at whole grids.
    turn = lcm(len(digits), len(operations))
    wanted = Counter(
        (digits[i % len(digits)], SYMBOLS[operations[(i + i // turn) % len(operations)]]) for i in range(count)
    )
    random = Random(seed)
    drawn = {cell: _draw(*cell, number, split, random) for cell, number in wanted.items()}
    short = {cell: len(found) for cell, found in drawn.items() if len(found) < wanted[cell]}
    if short:
        (length, symbol), available = min(short.items(), key=lambda item: item[1])
        raise InputError(
            f"count={count} asks for {wanted[length, symbol]} {length}-digit problems with {symbol!r}, but "
            f"the {split} split has {available} at most: lower count to {available * len(wanted)} or leave "
            f"out digits={length}"
        )
    problems = [problem for found in drawn.values() for problem in found]
    random.shuffle(problems)
    return problems


def chained_sums(
    count: int, *, digits: Sequence[int], chains: Sequence[int], split: Split, seed: int = 0
) -> list[ArithmeticProblem]:
    """Draw distinct additions as `arithmetic_problems` does, spread evenly over lengths and carry chains
    (`ArithmeticProblem.chain`). A chain needs operands of more digits than its length."""
    known_chains = range(min(digits, default=1))
    check_drawn(count, split, digits=(digits, range(1, MOST_DIGITS + 1)), chains=(chains, known_chains))
    random = Random(seed)
    found: dict[ArithmeticProblem, None] = {}

    def drawn(length: int, chain: int) -> tuple[ArithmeticProblem, None] | None:
        problem = ArithmeticProblem(length, "+", *_chained(length, chain, random))
        return (problem, None) if _split(problem) == split else None

    for length, chain in islice(cycle(product(digits, chains)), count):
        if not add_new(found, partial(drawn, length, chain), _ATTEMPTS):
            raise InputError(
                f"count={count} asks for more {length}-digit additions with a carry chain of {chain} than the {split} "
                f"split has: lower count or leave out digits={length}"
            )
    problems = list(found)
    random.shuffle(problems)
    return problems


def _chained(length: int, chain: int, random: Random) -> tuple[int, int]:
    """Random operands of a length whose longest carry chain is `chain`."""
    begin = random.randrange(length - chain)
    left = right = 0
    run = -1  # places that the carry into this place has travelled through; no carry
    for place in range(length):
        lowest = int(place == length - 1 and length > 1)
        while True:
            a, b = random.randrange(lowest, 10), random.randrange(lowest, 10)
            if chain and begin <= place <= begin + chain:
                drawn = a + b == 9 if place > begin else a + b > 9
            else:
                drawn = a + b != 9 or run < chain
            if drawn:
                break
        run = 0 if a + b > 9 else run + 1 if a + b == 9 and run >= 0 else -1
        left, right = left + a * 10**place, right + b * 10**place
    return left, right


def check_drawn(count: int, split: Split, **choices: tuple[Sequence[object], Collection[object]]) -> None:
    """Raise InputError unless split and count are valid, and each of `choices`, a list and its known values, has one or
    more distinct known values."""
    check_split(split, count)
    for name, (given, known) in choices.items():
        if not given or len(set(given)) < len(given) or not all(each in known for each in given):
            kind = f"numbers of {known[0]} to {known[-1]}" if isinstance(known, range) else f"names among {list(known)}"
            raise InputError(f"{name} must be distinct {kind}, not {given!r:.80}")


def _draw(digits: int, symbol: Symbol, count: int, split: Split, random: Random) -> list[ArithmeticProblem]:
    """Draw `count` distinct problems of one length and operation, or all that there are."""
    low, high = 10 ** (digits - 1) if digits > 1 else 0, 10**digits
    space = (high - low) ** 2

    def problem(left: int, right: int) -> tuple[ArithmeticProblem, None] | None:
        """The problem as a dictionary's key (a set that keeps its order); None outside the split or divided by 0."""
        made = ArithmeticProblem(digits, symbol, left * right if symbol == "/" else left, right)
        return (made, None) if (right or symbol != "/") and _split(made) == split else None

    # Rejection is quick while most draws are new; a small or nearly exhausted space is listed instead.
    if space <= 10_000 or 20 * count > (9 if split == "train" else 1) * space:
        every = list(dict(filter(None, starmap(problem, product(range(low, high), repeat=2)))))
        return random.sample(every, min(count, len(every)))
    found: dict[ArithmeticProblem, None] = {}
    for _ in range(count):
        add_new(found, lambda: problem(random.randrange(low, high), random.randrange(low, high)))
    return list(found)


def _split(problem: ArithmeticProblem) -> Split:
    left, right = problem.left, problem.right
    if problem.operation in ("+", "*") and left > right:
        left, right = right, left
    return split_of(f"{left}{problem.operation}{right}")


def split_of(problem: str) -> Split:
    """Split of a problem, by a hash of its text: test for one in ten."""
    digest = blake2b(problem.encode(), digest_size=8).digest()
    return "test" if int.from_bytes(digest, "big") % 10 == 0 else "train"
