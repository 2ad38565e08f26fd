from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from ani.data.arithmetic import ArithmeticProblem, arithmetic_problems
from ani.evaluation.arithmetic import PAPER_DIGITS, evaluate_arithmetic, exact_match_by_digits
from tests.tokenizers import ALL


class Scripted:
    """Stands for a model: answers every prompt of a batch with a text, and keeps `generate`'s own rules."""

    device = torch.device("cpu")

    def __init__(self, tokenizer: PreTrainedTokenizerBase, answer: Callable[[str], str]) -> None:
        self.tokenizer, self.answer = tokenizer, answer
        self.batches: list[int] = []

    def generate(
        self, *, input_ids: torch.Tensor, attention_mask: torch.Tensor, max_new_tokens: int, **kwargs: Any
    ) -> torch.Tensor:
        assert kwargs == {"do_sample": False, "pad_token_id": self.tokenizer.pad_token_id}
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


@pytest.mark.parametrize("name", ["qwen", "llama3", "mistral", "gemma_like"])
def test_a_model_that_is_always_right_gets_everything(name: str) -> None:
    tokenizer = ALL[name]()
    problems = arithmetic_problems(
        36, digits=PAPER_DIGITS, operations=("addition", "subtraction", "multiplication"), split="test"
    )
    model = Scripted(tokenizer, right)
    counted: list[int] = []
    records = list(
        evaluate_arithmetic(model, tokenizer, problems, run="x", batch_size=7, on_batch=counted.append)  # type: ignore[arg-type]
    )
    assert all(record["correct"] for record in records)
    assert exact_match_by_digits(records) == {digits: (6, 6) for digits in PAPER_DIGITS}
    assert counted == model.batches == [7, 7, 7, 7, 7, 1]
    # Every problem once, whole, shortest first.
    assert sorted(r["prompt"] for r in records) == sorted(p.prompt for p in problems)
    assert [r["digits"] for r in records] == sorted(r["digits"] for r in records)
    by_prompt = {problem.prompt: problem for problem in problems}
    for record in records:
        problem = by_prompt[record["prompt"]]
        assert record["run"] == "x"
        assert record["operation"] == problem.operation
        assert record["digits"] == problem.digits
        assert record["answer"] == record["prediction"] == str(problem.answer)
        assert record["output"].strip() == str(problem.answer)


def test_thousands_separators_of_a_long_answer_are_not_cut_off() -> None:
    tokenizer = ALL["qwen"]()
    problem = ArithmeticProblem(12, "+", 999_999_999_999, 999_999_999_999)
    model = Scripted(tokenizer, lambda prompt: f" {int(right(prompt)):,}.")
    (record,) = evaluate_arithmetic(model, tokenizer, [problem], run="x")  # type: ignore[arg-type]
    assert record["output"].startswith(" 1,999,999,999,998")
    assert record["correct"]


@pytest.mark.parametrize(
    ("operation", "output", "prediction", "correct"),
    [
        ("+", " 1234", "1234", True),
        ("+", "\n\n1234.", "1234", True),
        ("+", " 1,234 in all", "1234", True),
        ("+", " 1234.0", "1234.0", True),
        ("+", " = 1234, not 1235", "1234", True),
        ("+", " 1235, no, 1234", "1235", False),
        ("+", " 12345", "12345", False),
        ("+", " 12 34", "12", False),
        ("+", " -1234", "-1234", False),
        ("+", " 1234.5", "1234.5", False),
        ("+", "", None, False),
        ("+", " I do not know", None, False),
        ("-", " -6", "-6", True),
        ("-", " 6", "6", False),
        ("-", " \u22126", None, None),  # a typographic minus: whatever it is read as, it is no other number
    ],
)
def test_the_first_number_is_judged(operation: Any, output: str, prediction: str | None, correct: bool | None) -> None:
    problem = ArithmeticProblem(3, "+", 1000, 234) if operation == "+" else ArithmeticProblem(1, "-", 3, 9)
    tokenizer = ALL["qwen"]()
    (record,) = evaluate_arithmetic(Scripted(tokenizer, lambda _: output), tokenizer, [problem], run="x")  # type: ignore[arg-type]
    if correct is None:
        assert record["prediction"] in ("-6", "6")
        assert record["correct"] == (record["prediction"] == "-6")
        return
    assert record["prediction"] == prediction
    assert record["correct"] is correct
    assert output.startswith(record["output"])


def test_nothing_is_answered_without_problems() -> None:
    tokenizer = ALL["qwen"]()
    model = Scripted(tokenizer, right)
    assert list(evaluate_arithmetic(model, tokenizer, [], run="x")) == []  # type: ignore[arg-type]
    assert model.batches == []
    assert exact_match_by_digits([]) == {}
