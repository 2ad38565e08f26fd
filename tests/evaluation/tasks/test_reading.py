import math
from typing import Any, cast

import pytest

from ani.evaluation.backend import Backend, TransformersBackend, VllmBackend
from ani.evaluation.tasks.reading import Reading, ReadingAnswer
from ani.injection.attach import ani_module, number_locator
from ani.injection.methods import METHODS
from ani.numbers import find_numbers
from ani.results.files import Run
from tests.answers import answers_of
from tests.tiny import attached, pair

TASK = Reading(count=12, digits=[2, 5])
OPENED = {"layer": 2, "gate": "open", "encoders": ["fourier"], "fraction_digits": 6}


class Reader(TransformersBackend):
    """Answers by what is injected and says 0 where nothing is; the signs it reads in the text."""

    def texts(self, prompts: Any, max_new_tokens: int) -> list[str]:
        locator = number_locator(cast(Any, self.model))
        rows = [list(ids) for ids in cast(Any, self.tokenizer)(list(prompts))["input_ids"]]
        longest = max(map(len, rows))
        batch = locator.batch([[-1] * (longest - len(row)) + row for row in rows])
        answers = []
        for index, prompt in enumerate(prompts):
            values = cast(Any, locator.encoder).decode(batch.features[batch.rows == index])
            digits = len(find_numbers(prompt)[0].text)
            if locator.policy in ("digitwise", "placewise", "running"):  # a token a digit here
                left, right = values[:digits], values[digits : 2 * digits]
            else:
                left, right = values[:1], values[1:2]
            minus = not any(word in prompt for word in (" + ", " more", " up by", "both", "moved", "all", "Together"))
            answers.append(f" {self.made(left, right, minus, places=locator.policy == 'placewise')}")
        return ["0"] * len(answers) if ani_module(cast(Any, self.model)).forced is False else answers

    def made(self, left: Any, right: Any, minus: bool, *, places: bool) -> int:
        if not places:
            return int(left[-1] - right[-1] if minus else left[-1] + right[-1])
        if minus and left[0] < right[0]:
            return -self.made(right, left, minus, places=places)
        made = [math.floor(a - b if minus else a + b) for a, b in zip(left, right, strict=True)]
        return int("".join(map(str, [made[0], *(each % 10 for each in made[1:])])))


class Ignorant(TransformersBackend):
    """Answers by the text alone."""

    def texts(self, prompts: Any, max_new_tokens: int) -> list[str]:
        answers = {question.prompt: question.problem.answer for question in TASK.questions(seed=0)}
        return [f" {answers[prompt]:,} in all" for prompt in prompts]


def shares(answerer: Backend) -> dict[str, float]:
    questions = TASK.questions(seed=0)
    records = answers_of(TASK, answerer, questions)
    assert [record.prompt for record in records] == [question.prompt for question in questions]
    assert len(records) == 24
    return {name: facts["all"]["share"] for name, facts in Reading.summary(records).items()}


POLICIES = ["terminal", "digitwise", "placewise", "running", "after"]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_reads_follows_and_one_that_does_not_does_not(policy: str) -> None:
    model, tokenizer = attached("qwen3", **OPENED, policy=policy)
    for kind in ("sums", "word problems"):
        read, ignored = shares(Reader(model, tokenizer)), shares(Ignorant(model, tokenizer))
        names = [f"{kind}, {name}" for name in ("right values", "other values", "no values", "follow rate")]
        assert [read[name] for name in names] == [1, 0, 0, 1]
        assert [ignored[name] for name in names] == [1, 1, 1, 0]
    assert number_locator(model).others_of is None and ani_module(model).forced is None


def test_with_other_values_no_result_is_injected() -> None:
    """A sum's result would be right by the text, whatever is read of its numbers."""

    class Calculator(TransformersBackend):
        """Writes the results that are injected, and 0 without."""

        def texts(self, prompts: Any, max_new_tokens: int) -> list[str]:
            locator = number_locator(cast(Any, self.model))
            rows = cast(list[list[int]], cast(Any, self.tokenizer)(list(prompts))["input_ids"])
            positions = [locator.batch([row]).positions.tolist() for row in rows]
            shut = ani_module(cast(Any, self.model)).forced is False
            results = [locator.results(row) for row in rows]
            return [
                " 0" if shut or len(row) - 1 not in found else f" {result[len(row) - 1].upcoming}"
                for row, found, result in zip(rows, positions, results, strict=True)
            ]

    read = shares(Calculator(*attached("qwen3", values="both", policy="running")))
    assert [read[f"sums, {name}"] for name in ("right values", "other values", "no values", "follow rate")] == [
        1,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_other_values_reach_generation(policy: str) -> None:
    """A random module's answers are others with other values, and with none; llama has tokens of three digits."""
    for family in ("qwen3", "llama"):
        answerer = TransformersBackend(*attached(family, **OPENED, policy=policy))
        records = answers_of(TASK, answerer, TASK.questions(seed=0))
        assert sum(record.output != record.others_output for record in records if record.by_others) > 6
        assert sum(record.output != record.shut_output for record in records) > 6
        assert {record.by_others == record.answer for record in records} == {False}


@pytest.mark.parametrize("left_out", ["no module", "results", "vllm"])
def test_models_without_values_to_replace_are_asked_once(left_out: str) -> None:
    model, tokenizer = attached("qwen3", values="results") if left_out == "results" else pair("qwen3")
    answerer: Any = Ignorant(model, tokenizer)
    if left_out == "vllm":
        answerer = object.__new__(VllmBackend)
        answerer.texts = Ignorant(model, tokenizer).texts
        answerer.tokenizer, answerer.method = tokenizer, METHODS["ani"]
    assert shares(answerer) == {"sums, right values": 1, "word problems, right values": 1}
    (table,) = Reading.tables(answers_of(TASK, answerer, TASK.questions(seed=0)))
    assert "(model asked once: " in table.caption and len(table.rows) == 2


def record(run: str, seed: int | None, prompt: str, right: bool, followed: bool | None) -> ReadingAnswer:
    more = {} if followed is None else {"kept": not followed, "followed": followed, "shut": right}
    return ReadingAnswer(
        run=run, seed=seed, kind="sums", prompt=prompt, digits=2, answer="3", output="", correct=right, **more
    )


def test_a_comparison_has_a_row_a_run_and_the_page_the_follow_rate() -> None:
    base = [record("sft", 0, prompt, True, None) for prompt in "ab"]
    ours = [record("ani", seed, prompt, False, seed == 0 or prompt == "a") for seed in (0, 1) for prompt in "ab"]
    table, gained = Reading.tables([*base, *ours], "sft")
    assert [[cell.text for cell in row] for row in gained.rows] == [["sums", "ani", "-100.0", "-100.0"]]
    pairs = Reading.pairs([*base, *ours], "sft")
    assert pairs is not None and pairs.facts["reading"]["sums"]["all"]["value"] == -1
    rows = {tuple(cell.text for cell in row[:2]): row[2] for row in table.rows}
    assert {names: cell.text for names, cell in rows.items()} == {
        ("sums, right values", "sft"): "100.0%",
        ("sums, right values", "ani"): "0.0%",
        ("sums, other values", "ani"): "25.0%",
        ("sums, no values", "ani"): "0.0%",
        ("sums, follow rate", "ani"): "75.0%",
    }
    assert rows["sums, follow rate", "ani"].details[1:] == ("n = 2 × 2 seeds", "seeds 50.0–100.0")
    section = Reading.section([*base, *ours], Run())
    assert [headline.name for headline in section.headlines] == ["Reading, sums, follow rate"]
    assert section.figures[0].chart.bars["sums, follow rate, ani"].value == 0.75
    assert Reading.section(base, Run()).figures == ()


def test_questions_are_those_of_the_seed() -> None:
    questions = TASK.questions(seed=0)
    assert questions == TASK.questions(seed=0) != TASK.questions(seed=1)
    for kind, prompt, problem in questions:
        assert [int(number.value) for number in find_numbers(prompt)] == [problem.left, problem.right]
        assert (prompt == problem.prompt) == (kind == "sums") and not prompt[-1].isspace()
