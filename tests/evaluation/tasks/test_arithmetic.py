import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerBase

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, Operation, arithmetic_problems
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.arithmetic import PAPER_DIGITS, Arithmetic, ArithmeticAnswer, ArithmeticInChat
from tests.answers import answers_of
from tests.properties import examples
from tests.tokenizers import ALL, qwen


class Scripted:
    """A fake model: answers every prompt of a batch with a text, by the rules of `generate`."""

    device = torch.device("cpu")
    config = LlamaConfig(max_position_embeddings=4096)
    generation_config = GenerationConfig()

    def __init__(self, tokenizer: PreTrainedTokenizerBase, answer: Callable[[str], str]) -> None:
        self.tokenizer, self.answer = tokenizer, answer
        self.batches: list[int] = []

    def generate(
        self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, max_new_tokens: int, **kwargs: Any
    ) -> torch.Tensor:
        assert kwargs == {
            "do_sample": False,
            "logits_processor": [],
            "pad_token_id": self.tokenizer.pad_token_id,
            "eos_token_id": [self.tokenizer.eos_token_id],
        }
        assert torch.is_inference_mode_enabled()
        self.batches.append(len(input_ids))
        width = max_new_tokens
        new = torch.full((len(input_ids), width), self.tokenizer.pad_token_id)
        for row, (ids, mask) in enumerate(zip(input_ids, attention_mask, strict=True)):
            assert mask[-1] == 1  # left-padded: the answer follows the prompt at once
            prompt = self.tokenizer.decode(ids[mask.bool()], skip_special_tokens=True)
            answer = self.tokenizer(self.answer(prompt), add_special_tokens=False)["input_ids"][:width]
            new[row, : len(answer)] = torch.tensor(answer, dtype=torch.long)
        return torch.cat([input_ids, new], dim=1)


def right(prompt: str) -> str:
    _, left, operation, other, _ = prompt.split()
    values = int(left), int(other)
    result = {"+": values[0] + values[1], "-": values[0] - values[1], "*": values[0] * values[1]}[operation]
    return f" {result}"


def answers(model: Any, problems: Sequence[ArithmeticProblem]) -> list[ArithmeticAnswer]:
    return answers_of(Arithmetic(), TransformersEngine(model, model.tokenizer), problems)


@pytest.mark.parametrize("name", ["qwen", "llama3", "mistral", "gemma_like"])
def test_a_model_that_is_always_right_gets_everything(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations = ("addition", "subtraction", "multiplication")
    problems = Arithmetic.asked(limit=2, operations=operations).questions(seed=0)
    model = Scripted(ALL[name](), right)
    monkeypatch.setattr(Arithmetic, "together", 7)
    records = answers(model, problems)
    summary = Arithmetic.summary(records)
    assert set(summary) == set(operations)
    for found in summary.values():
        everything = {"all": (12, 12), **{str(digits): (2, 2) for digits in PAPER_DIGITS}}
        assert {part: (share["right"], share["total"]) for part, share in found.items()} == everything
    assert model.batches == [7, 7, 7, 7, 7, 1]
    # Every problem once, whole, shortest first.
    assert [record.digits for record in records] == [digits for digits in PAPER_DIGITS for _ in range(6)]
    assert len({(record.operation, record.prompt) for record in records}) == 36
    for record, problem in zip(records, problems, strict=True):
        assert record.correct
        assert (record.prompt, record.operation, record.digits) == (problem.prompt, problem.operation, problem.digits)
        assert record.answer == record.prediction == str(problem.answer)
        assert record.output is not None and record.output.strip() == str(problem.answer)


def test_thousands_separators_of_a_long_answer_are_not_cut_off() -> None:
    problem = ArithmeticProblem(12, "+", 999_999_999_999, 999_999_999_999)
    model = Scripted(ALL["qwen"](), lambda prompt: f" {int(right(prompt)):,}.")
    (record,) = answers(model, [problem])
    assert record.output is not None and record.output.startswith(" 1,999,999,999,998")
    assert record.correct


@pytest.mark.parametrize(
    ("operation", "output", "prediction", "correct"),
    [
        ("+", "\n\n1234.", "1234", True),
        ("+", " 1,234 in all", "1234", True),
        ("+", " 1234.0", "1234.0", True),
        ("+", " = 1234, not 1235", "1234", True),
        ("+", " 1235, no, 1234", "1235", False),
        ("+", " 12 34", "12", False),
        ("+", " -1234", "-1234", False),
        ("+", " I do not know", None, False),
        ("-", " -6", "-6", True),
        ("-", " 6", "6", False),
    ],
)
def test_the_first_number_is_judged(operation: Any, output: str, prediction: str | None, correct: bool) -> None:
    problem = ArithmeticProblem(3, "+", 1000, 234) if operation == "+" else ArithmeticProblem(1, "-", 3, 9)
    (record,) = answers(Scripted(ALL["qwen"](), lambda _: output), [problem])
    assert (record.prediction, record.correct) == (prediction, correct)
    assert record.output is not None and output.startswith(record.output)


def test_operations_may_differ_in_their_lengths_but_none_is_asked_twice() -> None:
    some: dict[str, Any] = {"count": 2, "digits": [3], "operations": ["addition"]}
    task = Arithmetic.model_validate([some, {**some, "operations": ["multiplication"], "digits": [2, 4]}])
    asked = Counter((problem.operation, problem.digits) for problem in task.questions(seed=0))
    assert asked == {("+", 3): 2, ("*", 2): 2, ("*", 4): 2}
    assert task.facts([])["problems"] == [problems.model_dump(exclude_none=True) for problems in task.problems]
    assert Arithmetic.model_validate(some).facts([]) == some
    with pytest.raises(ValueError, match="addition of 3 digits is asked more than once"):
        Arithmetic.model_validate([some, {**some, "digits": [3, 5]}])
    with pytest.raises(ValueError, match="chains are those of additions"):
        Arithmetic.model_validate({**some, "chains": [1], "operations": ["addition", "division"]})


FORMS = ["plain", "negative", "decimal", "separators", "scientific"]


@examples(20)
@given(data=st.data(), form=st.sampled_from(FORMS), digits=st.integers(4, 12), operation=st.sampled_from(list(SYMBOLS)))
def test_an_answer_is_judged_by_its_value(data, form, digits, operation) -> None:
    """An answer with the right value is right however it is written; the next value beside it is wrong."""
    (problem,) = arithmetic_problems(1, digits=[digits], operations=[operation], split="test")
    problem = problem.in_form(form)
    _, left, symbol, right, _ = problem.prompt.replace(",", "").split(" ")
    step = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[symbol]
    with localcontext(prec=60):
        value = step(Decimal(left), Decimal(right)).normalize()
        unit = Decimal(1).scaleb(min(0, int(value.as_tuple().exponent)))
        other = data.draw(st.sampled_from([value + unit, value - unit, value * 10]))
        way = data.draw(st.sampled_from(["{:f}", "{:,f}", "{:f}.", *["{:e}"] * (form == "scientific")]))
        outputs = [f" {way}".format(each) for each in (value, other)]
    found = [answers(Scripted(qwen(), lambda _, output=output: output), [problem])[0] for output in outputs]
    assert [record.correct for record in found] == [True, value == other]
    assert (found[0].form, Decimal(found[0].answer)) == (form, value)


def test_forms_are_told_apart() -> None:
    task = Arithmetic.model_validate({"count": 2, "digits": [2, 5], "operations": ["addition"], "forms": FORMS})
    problems = task.questions(seed=0)
    plain = Arithmetic.model_validate({"count": 2, "digits": [2, 5]}).questions(seed=0)
    assert [each for each in problems if each.form == "plain"] == plain
    decimals_alone = Scripted(
        qwen(), lambda prompt: f" {sum(map(Decimal, prompt.split()[1:4:2]))}" if "." in prompt else ""
    )
    records = answers(decimals_alone, problems)
    assert {record.form for record in records if "form" not in record.model_fields_set} == {"plain"}
    table, _, errors = Arithmetic.tables(records)
    shown = {row[0].text: [cell.text for cell in row[2:]] for row in table.rows}
    assert table.header[2:] == ("All", "2 digits", "5 digits")
    assert shown == {
        "+": ["0.0%"] * 3,
        "+, negative": ["0.0%"] * 3,
        "+, decimal": ["100.0%"] * 3,
        "+, separators": ["0.0%", "–", "0.0%"],
        "+, scientific": ["100.0%"] * 3,
    }
    assert [row[0].text for row in errors.rows] == [*shown]
    assert Arithmetic.summary(records)["addition, decimal"]["5"]["right"] == 2
    with pytest.raises(ValueError, match="addition, decimal of 3 digits is asked more than once"):
        Arithmetic.model_validate([{"digits": [3], "forms": [form]} for form in ("decimal", "plain", "decimal")])


def test_additions_are_told_by_carry_chain() -> None:
    task = Arithmetic.model_validate({"count": 2, "digits": [4, 6], "chains": [0, 2, 3]})
    problems = [*task.questions(seed=0), ArithmeticProblem(2, "-", 20, 1)]
    records = answers(Scripted(ALL["qwen"](), lambda prompt: right(prompt) if "9" in prompt else " 0"), problems)
    _, table, _ = Arithmetic.tables(records)
    assert table.header[2:] == ("All", "0 places", "2 places", "3 places")
    ((operation, _, *cells),) = table.rows
    exact = Counter(problem.chain for problem in problems[:-1] if "9" in problem.prompt)
    assert operation.text == "+" and [cell.details[-1] for cell in cells] == ["n = 12", *["n = 4"] * 3]
    assert [cell.text for cell in cells[1:]] == [f"{exact[chain] / 4:.1%}" for chain in (0, 2, 3)]
    assert table.chart == "lines"


def test_worked_problems_of_the_same_kind_precede_the_question() -> None:
    prompts: list[str] = []

    def steps(prompt: str) -> str:
        prompts.append(prompt)
        left, symbol, right = prompt.split("Calculate ")[-1].split(".")[0].split()
        result = int(left) + int(right) if symbol == "+" else int(left) * int(right)
        return f"First {left}, then {right}:\n\n{left} {symbol} {right} = {result}."

    operations: list[Operation] = ["addition", "multiplication"]
    task = ArithmeticInChat.asked(limit=3, operations=operations)
    problems = task.questions(seed=0)
    model: Any = Scripted(qwen(), steps)
    records = answers_of(task, TransformersEngine(model, model.tokenizer), problems)
    assert all(record.correct for record in records) and len(records) == len(problems) == len(prompts)
    assert [record.prompt for record in records] == [problem.prompt for problem in problems]
    for prompt, problem in zip(prompts, problems, strict=True):
        *shots, question = prompt.split("Calculate ")[1:]
        assert question.startswith(f"{problem.left} {problem.operation} {problem.right}.")
        worked = [shot.split("assistant")[1].strip().splitlines()[0] for shot in shots]
        operation = next(name for name, symbol in SYMBOLS.items() if symbol == problem.operation)
        known = arithmetic_problems(2, digits=[problem.digits], operations=[operation], split="train")
        assert worked == [f"{each.left} {each.operation} {each.right} = {each.answer}" for each in known]


def test_worked_problems_have_the_form_of_the_question() -> None:
    prompts: list[str] = []
    task = ArithmeticInChat.model_validate({"count": 2, "digits": [5], "forms": ["decimal"]})
    model: Any = Scripted(qwen(), lambda prompt: prompts.append(prompt) or "12 and -0.5")
    records = answers_of(task, TransformersEngine(model, model.tokenizer), task.questions(seed=0))
    assert len(prompts) == 2 and {record.prediction for record in records} == {"-0.5"}
    for prompt in prompts:
        *worked, asked = re.findall(r"(\d+\.\d\d) \+ (\d+\.\d\d)(?: = (\d+(?:\.\d+)?))?", prompt)
        assert len(worked) == 4 and asked[2] == ""  # question and answer of two
        assert [Decimal(a) + Decimal(b) for a, b, _ in worked[1::2]] == [Decimal(c) for *_, c in worked[1::2]]


@pytest.mark.parametrize(
    ("text", "right"),
    [("12, no: {}", True), ("{} or 12", False), ("I can't say", False), ("step by step " * 30 + "{}", True)],
)
def test_the_last_number_is_judged_and_there_is_room_for_it(text: str, right: bool) -> None:
    task = ArithmeticInChat.asked(limit=1)
    (problem,) = [each for each in task.questions(seed=0) if each.digits == 2]
    model: Any = Scripted(qwen(), lambda _: text.format(problem.answer))
    (record,) = answers_of(task, TransformersEngine(model, model.tokenizer), [problem])
    assert record.correct == right and (record.prediction is None) == ("can't" in text)
