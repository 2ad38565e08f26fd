"""Tasks `arithmetic` and `arithmetic-chat`: N-digit problems, answered by generation (paper Table 2)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, get_args

from pydantic import Field, model_validator

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, Form, Operation, arithmetic_problems, chained_sums
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Pairs, PromptAnswer, Scored, accuracies, answers_to, few_shot, judged
from ani.numbers import find_numbers
from ani.results.records import Integer
from ani.results.scores import ONE_MODEL, Score, grouped, scores
from ani.results.tables import Cell, Table
from ani.settings import Section as Settings
from ani.settings import validated

PAPER_DIGITS = (2, 4, 6, 8, 10, 12)
"""Digit lengths of the paper's Table 2; it has 100 problems of each."""
SHOTS, ROOM = 2, 128
"""Numbers of worked problems and of new tokens in chat, where a model may write down its steps."""


def _kind(operation: str, form: str) -> str:
    return operation if form == "plain" else f"{operation}, {form}"


class ArithmeticAnswer(PromptAnswer):
    """One answered problem, a line of `arithmetic.jsonl`."""

    operation: str
    digits: Integer = Field(ge=1)
    chain: Integer | None = None
    """Number of places through which an addition's carry must travel, at most."""
    form: Form = "plain"
    """How the operands are written."""


class Problems(Settings):
    """Problems of some operations and lengths."""

    count: int = Field(default=100, ge=1)
    """Number of problems per length and operation; the paper has 100."""
    digits: list[int] = Field(default=list(PAPER_DIGITS))
    """Lengths of the operands."""
    operations: list[Operation] = Field(default=["addition"])
    """Some of `addition`, `subtraction`, `multiplication` and `division`."""
    chains: list[int] | None = None
    """Numbers of places through which a carry must travel, such as `[0, 1, 2, 3, 4, 6]`: `count` additions for each,
    with operands of one digit more; null: as they come."""
    forms: list[Form] | None = Field(default=None, min_length=1)
    """Ways in which the operands of each problem are written: `plain`, `negative` (-123 + 456), `decimal` (12.3 +
    45.6), `separators` (1,234 + 5,678; from four digits on) and `scientific` (1.23e2 + 4.56e2); null: `plain`, as in
    the paper."""

    @model_validator(mode="after")
    def _of_additions(self) -> Self:
        if self.chains is not None and self.operations != ["addition"]:
            raise ValueError("chains are those of additions: ask other operations apart, in a list of problems")
        return self

    def drawn(self, seed: int) -> list[ArithmeticProblem]:
        """Draw the problems from the test split, the same in each form."""
        count = self.count * len(self.digits)
        if self.chains is not None:
            count *= len(self.chains)
            drawn = chained_sums(count, digits=self.digits, chains=self.chains, split="test", seed=seed)
        else:
            count *= len(self.operations)
            drawn = arithmetic_problems(count, digits=self.digits, operations=self.operations, split="test", seed=seed)
        return [
            problem.in_form(form)
            for form in self.forms or ["plain"]
            for problem in drawn
            if form != "separators" or problem.digits > 3
        ]


class Arithmetic(Scored):
    """N-digit arithmetic, answered by generation: `Problems`, or a list of them, one per set of operations."""

    name = "arithmetic"
    title = "Arithmetic"
    note = (
        "An answer is exact if every digit is right. Bars and small print: 95% intervals. Shares are means over "
        "training seeds."
    )
    unit = "problems"
    record = ArithmeticAnswer
    what: ClassVar[str] = "Exact answers"
    heading, kinds = "Operation", (lambda answer: _kind(answer.operation, answer.form),)
    names: ClassVar[Mapping[str, str]] = {
        _kind(symbol, form): _kind(name, form) for name, symbol in SYMBOLS.items() for form in get_args(Form)
    }
    judged_number: ClassVar[int] = 0
    """Index of the output's number that is judged."""

    problems: list[Problems] = Field(default=[Problems()], min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "problems" not in raw:
            return {"problems": [raw]}
        return {"problems": raw} if isinstance(raw, list) else raw

    @model_validator(mode="after")
    def _asked_once(self) -> Self:
        asked = Counter(
            (_kind(operation, form), digits)
            for each in self.problems
            for operation in each.operations
            for form in each.forms or ["plain"]
            for digits in each.digits
        )
        if twice := [pair for pair, times in asked.items() if times > 1]:
            raise ValueError(f"{twice[0][0]} of {twice[0][1]} digits is asked more than once")
        return self

    @classmethod
    def asked(cls, limit: int | None = None, operations: Sequence[Operation] | None = None, **_: Any) -> "Arithmetic":
        given = {"count": limit, "operations": operations}
        return validated(cls, {key: value for key, value in given.items() if value is not None}, f"the task {cls.name}")

    def questions(self, seed: int) -> list[ArithmeticProblem]:
        """Return the problems, shortest first; none occurs in training data, whatever the seed."""
        problems = [problem for each in self.problems for problem in each.drawn(seed)]
        return sorted(problems, key=lambda problem: problem.digits)

    def answer(self, engine: Engine, questions: Sequence[ArithmeticProblem]) -> Answers:
        """Answer greedily; the number that is judged must equal the right answer exactly."""
        for place, (problem, output) in enumerate(zip(questions, self.written(engine, questions), strict=True)):
            facts: dict[str, Any] = {key: getattr(problem, key) for key in ("operation", "digits", "prompt", "chain")}
            numbers = [number.value for number in find_numbers(output)]
            number = numbers[self.judged_number] if numbers else None
            facts |= {} if problem.form == "plain" else {"form": problem.form}
            facts |= {"answer": f"{problem.answer:f}", **judged(output, number, problem.answer)}
            yield place, [ArithmeticAnswer(run=ONE_MODEL, **facts)]

    def written(self, engine: Engine, problems: Sequence[ArithmeticProblem]) -> list[str]:
        """Return the model's text after each problem."""
        expected = [f"{each.answer:,f}" for each in problems]
        expected += [f"{each.answer:e}" for each in problems if each.form == "scientific"]
        return answers_to(engine, [each.prompt for each in problems], expected)

    def facts(self, questions: Sequence[ArithmeticProblem]) -> Mapping[str, Any]:
        return (self.problems[0] if len(self.problems) == 1 else self).model_dump(exclude_none=True)

    @classmethod
    def chains(cls, records: Sequence[ArithmeticAnswer]) -> list[Score]:
        """Return the shares of additions; the parts are carry chains."""
        known = [answer for answer in records if answer.chain is not None]
        return scores(known, cls.kinds[0], lambda answer: answer.chain)

    @classmethod
    def tables(cls, records: Sequence[ArithmeticAnswer], baseline: str | None = None) -> list[Table]:
        tables = super().tables(records, baseline)
        if chained := cls.chains(records):
            what = "Exact additions by the longest run of places through which a carry must travel"
            tables.append(accuracies(chained, what, "Operation", "place"))
        return [*tables, _errors(grouped(records, cls.kinds[0]))]

    @classmethod
    def pairs(cls, records: Sequence[ArithmeticAnswer], baseline: str) -> Pairs | None:
        kind, runs = cls.kinds[0], grouped(records, lambda answer: answer.run).values()
        common = set.intersection(*({kind(answer) for answer in found} for found in runs))
        return super().pairs([answer for answer in records if kind(answer) in common], baseline)


class ArithmeticInChat(Arithmetic):
    """The same problems in the model's chat template, with worked problems and room to write. Our recipes teach to
    complete `Calculate 12 + 34 =`, so that prompt says little about other models."""

    name = "arithmetic-chat"
    title = "Arithmetic in chat"
    note = (
        f"The same problems, in the model's chat template after {SHOTS} worked ones of the same operation and length, "
        f"with room for {ROOM} tokens: an answer is exact if its last number is."
    )
    what = "Exact answers in chat"
    judged_number = -1

    def written(self, engine: Engine, problems: Sequence[ArithmeticProblem]) -> list[str]:
        """Return the model's answer to each problem."""
        prompts = []
        for problem in problems:
            operation = next(name for name, symbol in SYMBOLS.items() if symbol == problem.operation)
            worked = arithmetic_problems(SHOTS, digits=[problem.digits], operations=[operation], split="train")
            worked = [each.in_form(problem.form) for each in worked]
            examples = [(f"Calculate {each.expression}.", f"{each.expression} = {each.answer:f}") for each in worked]
            prompts.append(few_shot(examples, f"Calculate {problem.expression}."))
        return engine.texts(prompts, ROOM)


def _errors(answers: Mapping[str, Sequence[ArithmeticAnswer]]) -> Table:
    """Return a row per kind of problem and run: the shares of each kind of error, over all seeds."""
    kinds = {"carries": "Carries", "digits": "Other digits", "length": "Length or sign"}
    rows = []
    for operation, of_operation in answers.items():
        for run, found in grouped(of_operation, lambda answer: answer.run).items():
            wrong = [_kind_of_error(answer) for answer in found if not answer.correct]
            counts = map(wrong.count, kinds)
            cells = (Cell(f"{count / len(found):.1%}", (f"{count} of {len(found)}",)) for count in counts)
            rows.append((Cell(operation), Cell(run), *cells))
    return Table(
        "How wrong answers are wrong: every wrong digit off by one, as by a lost carry; other digits; another length "
        "or sign, or no number (shares of all answers)",
        ("Operation", "Run", *kinds.values()),
        tuple(rows),
        label_columns=2,
    )


def _kind_of_error(answer: ArithmeticAnswer) -> str:
    right, given = answer.answer, answer.prediction or ""
    written = all(text.removeprefix("-").replace(".", "", 1).isdecimal() for text in (right, given))
    if not written or len(right) != len(given) or any(right.find(mark) != given.find(mark) for mark in "-."):
        return "length"
    pairs = [(a, b) for a, b in zip(right, given, strict=True) if a != b]
    return "carries" if all((int(a) - int(b)) % 10 in (1, 9) for a, b in pairs) else "digits"
