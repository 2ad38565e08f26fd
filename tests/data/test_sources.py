import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani import InputError
from ani.data.arithmetic import ArithmeticProblem
from ani.data.calculations import calculation_problems
from ani.data.diagnostic import diagnostic_sentences
from ani.data.sources import Example, load_gsm8k, load_hub, problem_example, read_jsonl, sentence_examples
from ani.numbers import find_numbers

USER = {"role": "user", "content": "Room 505 holds 10?"}
ASSISTANT = {"role": "assistant", "content": "Yes, 10."}
PAIR = {"prompt": "1 + 1 =", "completion": " 2"}


def write(folder: Path, *records: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


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
            [
                Example([USER], "Yes, 10."),
                Example([USER, ASSISTANT, USER], "Yes, 10.", ("nominal", "quantitative")),
            ],
        ),
        ({"messages": [{**USER, "name": "x"}, ASSISTANT]}, [Example([USER], "Yes, 10.")]),
        ({**PAIR, "roles": "quantitative"}, [Example("1 + 1 =", " 2", ("quantitative", "quantitative"))]),
        ({**PAIR, "roles": ["quantitative", "nominal"]}, [Example("1 + 1 =", " 2", ("quantitative", "nominal"))]),
        ({**PAIR, "roles": None}, [Example("1 + 1 =", " 2")]),
        ({"prompt": "No number", "completion": "!", "roles": []}, [Example("No number", "!", ())]),
        ({"prompt": "No number", "completion": "!", "roles": "nominal"}, [Example("No number", "!", ())]),
    ],
)
def test_every_form_of_a_record(tmp_path: Path, record: Any, expected: list[Example]) -> None:
    assert read_jsonl(write(tmp_path, record)) == expected


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
    ({**PAIR, "roles": "number"}, "'roles' must be 'nominal' or 'quantitative'"),
    ({"prompt": "No number", "completion": "!", "roles": "number"}, "'roles' must be"),
    ({**PAIR, "roles": 1}, "'roles' must be"),
    ({**PAIR, "roles": ["nominal", None]}, "'roles' must be"),
    ({**PAIR, "roles": [["nominal"], "nominal"]}, "'roles' must be"),
    ({**PAIR, "roles": ["nominal"]}, "'roles' names 1 numbers, the prompt holds 2"),
    ({"messages": [USER, ASSISTANT], "roles": ["nominal"] * 3}, "'roles' names 3 numbers, the prompt holds 2"),
]


@pytest.mark.parametrize(("record", "message"), MALFORMED)
def test_a_malformed_record_names_file_and_line(tmp_path: Path, record: Any, message: str) -> None:
    path = write(tmp_path, PAIR, record)
    with pytest.raises(InputError) as caught:
        read_jsonl(path)
    assert f"{path}, line 2: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "line", ["{", "{'prompt': 1}", '{"prompt": "a"} x', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"]
)
def test_a_line_that_is_no_json_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(PAIR) + "\n\n" + line + "\n")
    with pytest.raises(InputError, match=r"data\.jsonl, line 3: not valid JSON"):
        read_jsonl(path)


@given(data=st.binary(max_size=40))
def test_bytes_give_examples_or_an_input_error(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"fuzz\.jsonl"):  # 40 bytes are too few for a whole record
        read_jsonl(path)


def test_files_without_examples(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl does not exist"):
        read_jsonl(tmp_path / "gone.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n \n")
    with pytest.raises(InputError, match=r"empty\.jsonl holds no examples"):
        read_jsonl(tmp_path / "empty.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9", "completion": "x"}')
    with pytest.raises(InputError, match=r"latin\.jsonl is not UTF-8 text"):
        read_jsonl(tmp_path / "latin.jsonl")


def test_problems_hold_quantities() -> None:
    example = problem_example(ArithmeticProblem(2, "-", 12, 34))
    assert example == Example("Calculate 12 - 34 =", " -22", ("quantitative", "quantitative"))
    (problem,) = calculation_problems(1, operands=(3,), split="train")
    example = problem_example(problem)
    assert example == Example(f"Calculate {problem.expression} =", f" {problem.answer}", ("quantitative",) * 3)


def test_sentences_are_cut_after_their_last_number() -> None:
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


class _Hub:
    """Stands for `datasets`: a streamed dataset of given records, or an error."""

    def __init__(self, records: list[Any], error: Exception | None = None) -> None:
        self.records, self.error = records, error

    def load_dataset(self, name: str, *configuration: str, split: str, streaming: bool) -> "_Hub":
        assert streaming and configuration == (("main",) if name == "openai/gsm8k" else ())
        if self.error is not None:
            raise self.error
        return self

    def __iter__(self) -> Any:
        return iter(self.records)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(records: list[Any], error: Exception | None = None) -> None:
        module = ModuleType("datasets")
        module.load_dataset = _Hub(records, error).load_dataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", module)

    return install


def test_hub_records_are_read_like_lines(hub: Any) -> None:
    hub([PAIR, {"messages": [USER, ASSISTANT]}, {}])
    assert load_hub("a/b", "train", 2) == [Example("1 + 1 =", " 2"), Example([USER], "Yes, 10.")]
    with pytest.raises(InputError, match=r"a/b\[2\]: no 'prompt'"):
        load_hub("a/b", "train")


def test_an_unreachable_hub_is_bad_input(hub: Any) -> None:
    hub([], ConnectionError("no\nroute"))
    with pytest.raises(InputError) as caught:
        load_hub("a/b", "test")
    assert "'a/b' (split 'test')" in str(caught.value)
    assert "no route" in str(caught.value)
    assert "kind: jsonl" in str(caught.value)


GSM8K = {
    "question": "Ann has 48 figs and $3. How many figs has she in 2 bags?",
    "answer": "48/2 = <<48/2=24>>24 figs.\nShe pays 2 * 0.5 = $<<2*0.5=1>>1.\n#### 24",
}


def test_gsm8k_is_read_without_its_annotations(tmp_path: Path, hub: Any) -> None:
    prompt = "Q: Ann has 48 figs and $3. How many figs has she in 2 bags?\nA:"
    completion = " 48/2 = 24 figs.\nShe pays 2 * 0.5 = $1.\n#### 24"
    expected = Example(prompt, completion, ("quantitative",) * 3)
    path = write(tmp_path, GSM8K, GSM8K, {"question": "x"})
    assert load_gsm8k(str(path), 2) == [expected] * 2
    with pytest.raises(InputError, match=r"data\.jsonl, line 3: .* 'question' and 'answer'"):
        load_gsm8k(str(path))
    with pytest.raises(InputError, match="does not exist"):
        load_gsm8k("gone.jsonl")
    hub([GSM8K])
    assert load_gsm8k("openai/gsm8k") == [expected]
