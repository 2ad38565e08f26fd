import operator
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerBase

from ani.data.arithmetic import SYMBOLS, ArithmeticProblem, arithmetic_problems
from ani.evaluation.engines import TransformersEngine
from ani.evaluation.tasks.arithmetic import PAPER_DIGITS, Arithmetic, ArithmeticAnswer, ArithmeticInChat
from tests.answers import answers_of
from tests.properties import examples
from tests.tokenizers import gemma_like, qwen


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


def test_a_model_that_is_always_right_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = ("addition", "subtraction", "multiplication")
    problems = Arithmetic.asked(limit=2, operations=operations).questions(seed=0)
    model = Scripted(gemma_like(), right)
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
        assert (record.prompt, record.operation, record.digits) == (problem.prompt, problem.operation, problem.digits)
        assert record.correct and record.answer == record.prediction == str(record.output).strip() == str(
            problem.answer
        )


@pytest.mark.parametrize(
    ("operation", "output", "prediction", "correct"),
    [
        ("+", " 1,234 in all", "1234", True),
        ("+", " = 1234, not 1235", "1234", True),
        ("+", " 1235, no, 1234", "1235", False),
        ("+", " I do not know", None, False),
        ("-", " -6", "-6", True),
    ],
)
def test_the_first_number_is_judged(operation: Any, output: str, prediction: str | None, correct: bool) -> None:
    problem = ArithmeticProblem(3, "+", 1000, 234) if operation == "+" else ArithmeticProblem(1, "-", 3, 9)
    (record,) = answers(Scripted(gemma_like(), lambda _: output), [problem])
    assert (record.prediction, record.correct) == (prediction, correct)


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
    found = [answers(Scripted(gemma_like(), lambda _, output=output: output), [problem])[0] for output in outputs]
    assert [record.correct for record in found] == [True, value == other]
    assert (found[0].form, Decimal(found[0].answer)) == (form, value)


def test_worked_problems_of_the_same_kind_and_form_precede_the_question() -> None:
    prompts: list[str] = []
    task = ArithmeticInChat.model_validate(
        {"count": 2, "digits": [4], "operations": ["addition", "multiplication"], "forms": ["plain", "decimal"]}
    )
    problems = task.questions(seed=0)
    model: Any = Scripted(qwen(), lambda prompt: prompts.append(prompt) or "First 12, then -0.5")
    records = answers_of(task, TransformersEngine(model, model.tokenizer), problems)
    assert [record.prompt for record in records] == [problem.prompt for problem in problems]
    assert {record.prediction for record in records} == {"-0.5"} and len(prompts) == len(problems) == 8
    for prompt, problem in zip(prompts, problems, strict=True):
        *shots, question = prompt.split("Calculate ")[1:]
        assert question.startswith(f"{problem.expression}.")
        worked = [shot.split("assistant")[1].strip().splitlines()[0] for shot in shots]
        operation = next(name for name, symbol in SYMBOLS.items() if symbol == problem.operation)
        drawn = arithmetic_problems(2, digits=[problem.digits], operations=[operation], split="train")
        known = [each.in_form(problem.form) for each in drawn]
        assert worked == [f"{each.expression} = {each.answer:f}" for each in known]


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


def test_tables_tell_forms_and_carry_chains_apart() -> None:
    task = Arithmetic.model_validate({"count": 2, "digits": [2, 5], "operations": ["addition"], "forms": FORMS})
    decimals_alone = Scripted(
        qwen(), lambda prompt: f" {sum(map(Decimal, prompt.split()[1:4:2]))}" if "." in prompt else ""
    )
    records = answers(decimals_alone, task.questions(seed=0))
    shown = {row[0].text: [cell.text for cell in row[2:]] for row in Arithmetic.tables(records)[0].rows}
    assert shown == {
        **{form: ["0.0%"] * 3 for form in ("+", "+, negative")},
        **{form: ["100.0%"] * 3 for form in ("+, decimal", "+, scientific")},
        "+, separators": ["0.0%", "–", "0.0%"],
    }
    assert Arithmetic.summary(records)["addition, decimal"]["5"]["right"] == 2
    problems = Arithmetic.model_validate({"count": 2, "digits": [4, 6], "chains": [0, 2, 3]}).questions(seed=0)
    _, table, _ = Arithmetic.tables(
        answers(Scripted(qwen(), lambda prompt: right(prompt) if "9" in prompt else " 0"), problems)
    )
    assert table.header[2:] == ("All", "0 places", "2 places", "3 places") and table.chart == "lines"
    exact = Counter(problem.chain for problem in problems if "9" in problem.prompt)
    ((operation, _, *cells),) = table.rows
    assert operation.text == "+" and [cell.text for cell in cells[1:]] == [f"{exact[i] / 4:.1%}" for i in (0, 2, 3)]
