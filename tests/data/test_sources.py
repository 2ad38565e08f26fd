import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from ani.data.arithmetic import ArithmeticProblem
from ani.data.diagnostic import diagnostic_sentences
from ani.data.records import Example
from ani.data.sources import (
    MATH,
    SOURCES,
    DataSource,
    Gsm8kSource,
    HubSource,
    MathSource,
    problem_example,
    sentence_examples,
)
from ani.numbers import find_numbers
from ani.training.recipe import load_recipe
from tests.json_lines import write_lines
from tests.refusals import refused

USER = {"role": "user", "content": "Room 505 holds 10?"}
ASSISTANT = {"role": "assistant", "content": "Yes, 10."}
PAIR = {"prompt": "1 + 1 =", "completion": " 2"}


def test_examples_of_generated_problems_and_sentences() -> None:
    """Numbers of problems are quantities; sentences are cut after their last number."""
    example = problem_example(ArithmeticProblem(2, "-", 12, 34))
    assert example == Example("Calculate 12 - 34 =", " -22", ("quantitative", "quantitative"))
    sentences = diagnostic_sentences(300, split="train", seed=1)
    by_text = {sentence.text: sentence for sentence in sentences}
    examples = list(sentence_examples(sentences))
    assert 100 < len(examples) < 300
    for example in examples:
        assert isinstance(example.prompt, str)
        sentence = by_text[example.prompt + example.completion]
        assert example.roles == sentence.roles
        assert len(find_numbers(example.prompt)) == len(sentence.roles)
        assert not find_numbers(example.completion)
        assert len(example.completion.split()) >= 2


def test_a_source_of_ones_own_is_known_to_recipes(tmp_path: Path) -> None:
    class Own(DataSource):
        """One example."""

        word: str

        def examples(self, seed: int) -> list[Example]:
            return [Example(self.word, " x")]

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("{output: x, ani: {layer: 3}, data: [{kind: own, word: Seven}, {kind: arithmetic, count: 1}]}")
    refused(lambda: load_recipe(recipe), "data.0", "'own'")
    with patch.dict(SOURCES, own=Own):
        loaded = load_recipe(recipe)
        assert loaded.data[0].examples(0) == [Example("Seven", " x")]
        assert loaded.model_dump()["data"][0] == {"kind": "own", "word": "Seven"}
        assert type(loaded).model_validate(loaded.model_dump(mode="json")) == loaded
        refused(lambda: load_recipe(recipe, ["data.1.counts=2"]), "data.1.counts", "'count'")


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have `datasets` stream records, or fail."""

    def offered(records: list[Any] | Exception) -> None:
        def load_dataset(name: str, *configuration: str, split: str, streaming: bool) -> list[Any]:
            assert streaming and (name, *configuration) in [("openai/gsm8k", "main"), ("a/b",), *MATH]
            if isinstance(records, Exception):
                raise records
            return records

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))

    return offered


def test_the_hub(offer: Any) -> None:
    def load(split: str, limit: int | None = None) -> list[Example]:
        return HubSource(kind="hub", name="a/b", split=split, limit=limit).examples(0)

    offer([PAIR, {"messages": [USER, ASSISTANT]}, {}])
    assert load("train", 2) == [Example("1 + 1 =", " 2"), Example([USER], "Yes, 10.")]
    refused(lambda: load("train"), "a/b[2]", "'prompt'")
    offer(ConnectionError("no\nroute"))
    refused(lambda: load("test"), "'a/b'", "'test'", "no route")


GSM8K = {
    "question": "Ann has 48 figs and $3. How many figs has she in 2 bags?",
    "answer": "48/2 = <<48/2=24>>24 figs.\nShe pays 2 * 0.5 = $<<2*0.5=1>>1.\n#### 24",
}
SOLVED = "Q: Ann has 48 figs and $3. How many figs has she in 2 bags?\nA:"
RECORDS: list[tuple[type[DataSource], dict[str, str], Example, str]] = [
    (
        Gsm8kSource,
        GSM8K,
        Example(SOLVED, " 48/2 = 24 figs.\nShe pays 2 * 0.5 = $1.\n#### 24", ("quantitative",) * 3),
        "openai/gsm8k",
    ),
    (
        MathSource,
        {"problem": "Find $1 + 2$.", "solution": "It is $\\boxed{3}$.", "level": "Level 1"},
        Example("Q: Find $1 + 2$.\nA:", " It is $\\boxed{3}$."),
        "EleutherAI/hendrycks_math",
    ),
]


@pytest.mark.parametrize(("kind", "record", "expected", "name"), RECORDS)
def test_published_problems(
    kind: Any, record: dict[str, str], expected: Example, name: str, tmp_path: Path, offer: Any
) -> None:
    """GSM8K without its annotations; from a file, and from every configuration on the hub."""

    def load(path: Path | str, limit: int | None = None) -> list[Example]:
        return kind(kind="x", path=str(path), limit=limit).examples(0)  # type: ignore[no-any-return]

    path = write_lines(tmp_path / "data.jsonl", record, record)
    assert load(path) == [expected] * 2
    write_lines(path, record, record, {"problem": "x", "question": "x"})
    refused(lambda: load(path), "data.jsonl, line 3", *map(repr, kind.keys))
    path.write_text("")
    refused(lambda: load(path), "data.jsonl")
    offer([record])
    assert load(name) == [expected] * len(kind.configurations)
    assert load(name, 1) == [expected]
