import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani import InputError
from ani.data.arithmetic import ArithmeticProblem
from ani.data.diagnostic import diagnostic_sentences
from ani.data.kinds import Gsm8kData, HubData, MathData
from ani.data.sources import (
    MATH,
    Example,
    diagnostic_examples,
    problem_example,
    read_jsonl,
    sentence_examples,
)
from ani.numbers import find_numbers
from tests.json_lines import write_lines
from tests.refusals import refused

USER = {"role": "user", "content": "Room 505 holds 10?"}
ASSISTANT = {"role": "assistant", "content": "Yes, 10."}
PAIR = {"prompt": "1 + 1 =", "completion": " 2"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (PAIR, [Example("1 + 1 =", " 2")]),
        ({**PAIR, "unused": 3}, [Example("1 + 1 =", " 2")]),
        ({"prompt": [USER], "completion": "Yes."}, [Example([USER], "Yes.")]),
        ({"prompt": [USER], "completion": [ASSISTANT]}, [Example([USER], "Yes, 10.")]),
        ({"messages": [USER, ASSISTANT]}, [Example([USER], "Yes, 10.")]),
        (
            {"messages": [USER, ASSISTANT, USER, ASSISTANT], "roles": ["nominal", "quantitative"]},
            [Example([USER], "Yes, 10."), Example([USER, ASSISTANT, USER], "Yes, 10.", ("nominal", "quantitative"))],
        ),
        ({"messages": [{**USER, "name": "x"}, ASSISTANT]}, [Example([USER], "Yes, 10.")]),
        ({"messages": [USER, {**ASSISTANT, "tool_calls": None}]}, [Example([USER], "Yes, 10.")]),
        ({**PAIR, "roles": "quantitative"}, [Example("1 + 1 =", " 2", ("quantitative", "quantitative"))]),
        ({**PAIR, "roles": ["quantitative", "nominal"]}, [Example("1 + 1 =", " 2", ("quantitative", "nominal"))]),
        ({**PAIR, "roles": ["nominal", None]}, [Example("1 + 1 =", " 2", ("nominal", None))]),
        ({**PAIR, "roles": None}, [Example("1 + 1 =", " 2")]),
        ({"prompt": "No number", "completion": "!", "roles": []}, [Example("No number", "!", ())]),
        ({"prompt": "No number", "completion": "!", "roles": "nominal"}, [Example("No number", "!", ())]),
    ],
)
def test_every_form_of_a_record(tmp_path: Path, record: Any, expected: list[Example]) -> None:
    assert read_jsonl(write_lines(tmp_path / "data.jsonl", record)) == expected


def test_records_stay_in_order_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "a", "completion": "b"}\r\n\n  \n{"prompt": "\xe2\x80\xa8", "completion": "d"}'
    )
    assert read_jsonl(path) == [Example("a", "b"), Example("\u2028", "d")]


MALFORMED: list[tuple[Any, str]] = [
    ([1], "expected an object, found list"),
    ("text", "expected an object, found str"),
    (None, "expected an object, found NoneType"),
    ({}, "no 'prompt'"),
    ({"completion": "x"}, "no 'prompt'"),
    ({"prompt": "x"}, "no 'completion'"),
    ({"prompt": "", "completion": "x"}, "not empty"),
    ({"prompt": "x", "completion": ""}, "not empty"),
    ({"prompt": 1, "completion": "x"}, "must be texts"),
    ({"prompt": "x", "completion": 1}, "must be texts"),
    ({"prompt": "x", "completion": None}, "must be texts"),
    ({"prompt": "x", "completion": {"role": "assistant"}}, "must be texts"),
    ({"prompt": [], "completion": "x"}, "chat messages must be a list, and not empty"),
    ({"prompt": ["hi"], "completion": "x"}, "every chat message needs"),
    ({"prompt": [{"role": "user"}], "completion": "x"}, "every chat message needs"),
    ({"prompt": [{"role": "user", "content": 5}], "completion": "x"}, "every chat message needs"),
    ({"prompt": [{"role": None, "content": "x"}], "completion": "x"}, "every chat message needs"),
    ({"prompt": "x", "completion": [USER]}, "a text or one assistant message"),
    ({"prompt": "x", "completion": [ASSISTANT, ASSISTANT]}, "a text or one assistant message"),
    ({"messages": []}, "chat messages must be a list, and not empty"),
    ({"messages": "hi"}, "chat messages must be a list, and not empty"),
    ({"messages": [USER]}, "no assistant message after the first"),
    ({"messages": [ASSISTANT]}, "no assistant message after the first"),
    ({"messages": [USER, {**ASSISTANT, "content": ""}]}, "an answer of the assistant in 'messages' is empty"),
    (
        {"messages": [USER, ASSISTANT, USER, {**ASSISTANT, "content": ""}, USER, ASSISTANT]},
        "an answer of the assistant in 'messages' is empty; leave it out",
    ),
    (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
        "a chat message has 'tool_calls', which aren't trained; write the call as text in 'content'",
    ),
    ({"messages": [USER, {**ASSISTANT, "tool_calls": [{"id": "1"}]}]}, "has 'tool_calls'"),
    ({"prompt": [USER], "completion": [{**ASSISTANT, "tool_calls": [{"id": "1"}]}]}, "has 'tool_calls'"),
    ({**PAIR, "roles": "number"}, "'roles' must be 'nominal' or 'quantitative'"),
    ({"prompt": "No number", "completion": "!", "roles": "number"}, "'roles' must be"),
    ({**PAIR, "roles": 1}, "'roles' must be"),
    ({**PAIR, "roles": ["nominal", "unknown"]}, "'roles' must be"),
    ({**PAIR, "roles": [["nominal"], "nominal"]}, "'roles' must be"),
    ({**PAIR, "roles": ["nominal"]}, "'roles' names 1 numbers, the prompt holds 2"),
    ({"messages": [USER, ASSISTANT], "roles": ["nominal"] * 3}, "'roles' names 3 numbers, the prompt holds 2"),
]


@pytest.mark.parametrize(("record", "message"), MALFORMED)
def test_a_malformed_record_names_file_and_line(tmp_path: Path, record: Any, message: str) -> None:
    path = write_lines(tmp_path / "data.jsonl", PAIR, record)
    refused(lambda: read_jsonl(path), f"{path}, line 2: ", message)


@pytest.mark.parametrize(
    "line", ["{", "{'prompt': 1}", '{"prompt": "a"} x', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_a_line_that_is_no_json_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(PAIR) + "\n\n" + line + "\n")
    refused(lambda: read_jsonl(path), "data.jsonl, line 3: not valid JSON")


@given(data=st.binary(max_size=40))
def test_bytes_give_examples_or_an_input_error(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"fuzz\.jsonl"):  # 40 bytes are too few for a whole record
        read_jsonl(path)


def test_files_without_examples(tmp_path: Path) -> None:
    refused(lambda: read_jsonl(tmp_path / "gone.jsonl"), "gone.jsonl does not exist")
    (tmp_path / "empty.jsonl").write_text("\n \n")
    refused(lambda: read_jsonl(tmp_path / "empty.jsonl"), "empty.jsonl holds no examples")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9", "completion": "x"}')
    refused(lambda: read_jsonl(tmp_path / "latin.jsonl"), "latin.jsonl is not UTF-8 text")


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


def load_hub(name: str, split: str, limit: int | None = None) -> list[Example]:
    return HubData(kind="hub", name=name, split=split, limit=limit).examples(0)


def load_gsm8k(path: str) -> list[Example]:
    return Gsm8kData(kind="gsm8k", path=path).examples(0)


def load_math(path: str, limit: int | None = None) -> list[Example]:
    return MathData(kind="math", path=path, limit=limit).examples(0)


def offer(monkeypatch: pytest.MonkeyPatch, records: list[Any] | Exception) -> None:
    """Have `datasets` stream records, or fail."""

    def load_dataset(name: str, *configuration: str, split: str, streaming: bool) -> list[Any]:
        assert streaming and (name, *configuration) in [("openai/gsm8k", "main"), ("a/b",), *MATH]
        if isinstance(records, Exception):
            raise records
        return records

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_nearly_all_sentences_are_examples() -> None:
    """More than half of what the generator gives can be asked for, as few sentences end with a number."""
    assert len(set(diagnostic_examples(22_000))) == 22_000
    refused(lambda: diagnostic_examples(43_559), "count=43559, but there are 43558 sentences", "lower count")


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, [PAIR, {"messages": [USER, ASSISTANT]}, {}])
    assert load_hub("a/b", "train", 2) == [Example("1 + 1 =", " 2"), Example([USER], "Yes, 10.")]
    refused(lambda: load_hub("a/b", "train"), "a/b[2]: no 'prompt'")
    offer(monkeypatch, ConnectionError("no\nroute"))
    refused(lambda: load_hub("a/b", "test"), "'a/b' (split 'test')", "no route", "kind: jsonl")


GSM8K = {
    "question": "Ann has 48 figs and $3. How many figs has she in 2 bags?",
    "answer": "48/2 = <<48/2=24>>24 figs.\nShe pays 2 * 0.5 = $<<2*0.5=1>>1.\n#### 24",
}


def test_gsm8k_is_read_without_its_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = "Q: Ann has 48 figs and $3. How many figs has she in 2 bags?\nA:"
    completion = " 48/2 = 24 figs.\nShe pays 2 * 0.5 = $1.\n#### 24"
    expected = Example(prompt, completion, ("quantitative",) * 3)
    path = write_lines(tmp_path / "data.jsonl", GSM8K, GSM8K)
    assert load_gsm8k(str(path)) == [expected] * 2
    write_lines(path, GSM8K, GSM8K, {"question": "x"})
    refused(lambda: load_gsm8k(str(path)), "data.jsonl, line 3: ", "'question' and 'answer'")
    refused(lambda: load_gsm8k("gone.jsonl"), "does not exist")
    offer(monkeypatch, [GSM8K])
    assert load_gsm8k("openai/gsm8k") == [expected]


def test_math_is_read_as_gsm8k_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"problem": "Find $1 + 2$.", "solution": "It is $\\boxed{3}$.", "level": "Level 1"}
    expected = Example("Q: Find $1 + 2$.\nA:", " It is $\\boxed{3}$.")
    path = write_lines(tmp_path / "data.jsonl", record, record)
    assert load_math(str(path)) == [expected] * 2
    write_lines(path, record, record, {"problem": "x"})
    refused(lambda: load_math(str(path)), "data.jsonl, line 3: ", "'problem' and 'solution'")
    (tmp_path / "empty.jsonl").write_text("")
    refused(lambda: load_math(str(tmp_path / "empty.jsonl")), "holds no examples")
    offer(monkeypatch, [record])  # by each subject
    assert load_math("EleutherAI/hendrycks_math") == [expected] * len(MATH)
    assert load_math("EleutherAI/hendrycks_math", 3) == [expected] * 3


def test_the_seed_draws_from_all_subjects(tmp_path: Path) -> None:
    """The files are sorted by subject."""
    rows = [{"problem": subject, "solution": str(i)} for i, subject in enumerate(sorted([*"abcdefg"] * 100))]
    path = str(write_lines(tmp_path / "data.jsonl", *rows))
    few, more, other = (
        MathData(kind="math", path=path, limit=limit).examples(seed) for limit, seed in ((70, 0), (140, 0), (70, 1))
    )
    assert few == more[:70] and few != other
    for drawn in (few, other):
        assert {str(example.prompt)[3] for example in drawn} == {*"abcdefg"}
        assert len({example.completion for example in drawn}) == 70
