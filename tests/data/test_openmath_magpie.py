import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet
import pytest

from ani.data import MAGPIE, OPENMATH, openmath_magpie
from ani.data.labelled_sentences import read_labelled
from ani.data.openmath_magpie import CARD_FILE, TRAINING_FILE, build_openmath_magpie
from ani.numbers import find_numbers
from tests.json_lines import write_lines
from tests.refusals import refused

USER = {"role": "user", "content": "Room 505?"}
ASSISTANT = {"role": "assistant", "content": "Upstairs."}


ANSWERED = "Half of 48?\n\n48/2 = 24.\nSo $72."


def problem(i: int) -> dict[str, Any]:
    """A record of OpenMathInstruct-2."""
    return {
        "problem": f"What is {i} + 1?",
        "generated_solution": f"It is \\boxed{{{i + 1}}}.",
        "expected_answer": str(i + 1),
        "problem_source": "augmented_gsm8k",
    }


def chat(question: str, answer: str, *more: str) -> dict[str, Any]:
    """A record of Magpie."""
    turns = [{"from": "gpt" if i % 2 else "human", "value": value} for i, value in enumerate((question, answer, *more))]
    return {"uuid": "x", "conversations": turns, "difficulty": None}


def write(path: Path, *records: Any) -> str:
    return str(write_lines(path, *records))


@pytest.fixture
def maths(tmp_path: Path) -> str:
    return write(tmp_path / "openmath.jsonl", *map(problem, range(30)))


@pytest.fixture
def names(tmp_path: Path) -> str:
    return write(tmp_path / "magpie.jsonl", *(chat(f"Where is room {i}?", "Upstairs.") for i in range(30)))


def nominal_texts(tmp_path: Path, maths: str, *records: Any, count: int = 1) -> list[str]:
    """The texts that records give on the nominal side, sorted."""
    source = write(tmp_path / "nominal.jsonl", *records)
    build_openmath_magpie(tmp_path / "set", quantitative=maths, nominal=source, count=count, numbers=0)
    return sorted(s.text for s in read_labelled(tmp_path / "set") if s.domain == "nominal.jsonl")


def table(card: str, header: str) -> dict[str, list[str]]:
    """The rows of the card's table with this first column, by their first cell."""
    rows = card[card.index(f"| {header} |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    return {first: rest for first, *rest in cells}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (problem(41), "What is 41 + 1?\n\nIt is \\boxed{42}."),
        ({"question": "Half of 48?", "answer": "48/2 = <<48/2=24>>24.\nSo $<<48+24=72>>72.\n#### 72"}, ANSWERED),
        ({"problem": "x^2?", "level": "Level 5", "type": "Algebra", "solution": "It is $4$."}, "x^2?\n\nIt is $4$."),
        (chat("Louis XIV?", "King until 1715.", "And then?", "Louis XV."), "Louis XIV?\n\nKing until 1715."),
        ({"messages": [{"role": "system", "content": "Be kind."}, USER, ASSISTANT]}, "Room 505?\n\nUpstairs."),
        ({"prompt": "Calculate 1 + 1 =", "completion": " 2"}, "Calculate 1 + 1 = 2"),
        ({"prompt": [USER], "completion": [ASSISTANT]}, "Room 505?\n\nUpstairs."),
        ({"text": "  Take bus 7.  "}, "Take bus 7."),
    ],
)
def test_records_are_known_by_their_fields(tmp_path: Path, names: str, record: Any, text: str) -> None:
    source = write(tmp_path / "source.jsonl", record)
    build_openmath_magpie(tmp_path / "set", quantitative=source, nominal=names, count=1, numbers=0)
    first = read_labelled(tmp_path / "set")[0]
    assert first.text == text == first.template
    assert first.domain == "source.jsonl"
    assert set(first.roles) == {"quantitative"}
    assert len(first.roles) == len(find_numbers(text))


def test_a_term_is_a_whole_word(tmp_path: Path, maths: str) -> None:
    for word in ("after-math", "MATH's", "equations", "linear algebra", "python3", "C++", "Node.js"):
        texts = partial(nominal_texts, tmp_path, maths, {"text": f"Room 505: {word} club"})
        refused(texts, "0 nominal", "1 maths or programming term")
    words = sorted(f"Room 505: {word} club" for word in ("aftermath", "Mathilda", "summer", "pythonic", "C"))
    assert nominal_texts(tmp_path, maths, *({"text": text} for text in words), count=5) == words


def test_the_card_counts_what_was_read_and_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmath_magpie, "SHUFFLE_BUFFER", 1)  # the order of the file
    monkeypatch.setattr(openmath_magpie, "MOST_CHARACTERS", 40)
    maths = ["1 + 1", " 1  +\n1 ", "no number", "2 + 2", "algebra 3", "4 is left over"]
    quantitative = write(tmp_path / "maths.jsonl", *({"text": text} for text in maths))
    chats = ["Algebra in room 12", "ALGEBRA in room 13", "Python in room 14", "ROOM 5", "room 5", "room 6"]
    chats += ["room 7 " + "x" * 40, "1 + 1", "room", "room 8", "room 9 is left over"]
    nominal = write(tmp_path / "chat.jsonl", *({"text": text} for text in chats))
    out = tmp_path / "set"
    build_openmath_magpie(out, quantitative=quantitative, nominal=nominal, count=3)
    kept = ["1 + 1", "ROOM 5", "2 + 2", "room 6", "algebra 3", "room 8"]
    assert [sentence.text for sentence in read_labelled(out)] == kept

    card = (out / CARD_FILE).read_text(encoding="utf-8")
    assert table(card, "role") == {
        "quantitative": ["maths.jsonl", "5", "3", "5"],
        "nominal": ["chat.jsonl", "10", "3", "3"],
    }
    assert table(card, "why") == {
        "maths or programming term": ["0", "3"],
        "duplicate": ["1", "2"],
        "too long": ["0", "1"],
        "no number": ["1", "1"],
        "no number in the question": ["0", "0"],
    }
    assert str(tmp_path) not in card
    assert "## Licences" in card


def test_questions_contain_enough_numbers(tmp_path: Path, maths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats have their numbers in the answers; the gate may see those of questions alone."""
    monkeypatch.setattr(openmath_magpie, "SHUFFLE_BUFFER", 1)  # the order of the file
    out, blind = tmp_path / "set", [chat(f"Who is in room {letter}?", "Bob, since 1999 or 2001.") for letter in "abcd"]
    source = write(tmp_path / "chats.jsonl", *blind, *(chat(f"Is {n} or {n + 1} a bus?", "No.") for n in range(3)))
    build = partial(build_openmath_magpie, out, quantitative=maths, nominal=source, count=4)

    def questions() -> list[str]:
        lines = [json.loads(line) for line in (out / TRAINING_FILE).read_text().splitlines()]
        return [line["messages"][0]["content"] for line in lines if line["roles"] == "nominal"]

    def seen() -> list[str]:
        """Numbers of questions, and of questions and answers, by the card."""
        return table((out / CARD_FILE).read_text(encoding="utf-8").split("gate sees")[1], "role")["nominal"]

    build(numbers=0)
    assert (questions(), seen()) == ([f"Who is in room {letter}?" for letter in "abcd"], ["0", "8"])
    build()
    in_their_places = ["Is 0 or 1 a bus?", "Is 1 or 2 a bus?", "Who is in room c?", "Who is in room d?"]
    assert (questions(), seen()) == (in_their_places, ["4", "8"])
    assert len(read_labelled(out)) == 8
    write(tmp_path / "chats.jsonl", *blind, blind[0])
    refused(build, "chats.jsonl gives 0 numbers", "4 are wanted", "1 duplicate", "at most 0 numbers")
    refused(partial(build, numbers=5), "count=4", "5")


def test_numbers_that_count_items_are_taken_out_and_long_texts_are_cut(
    tmp_path: Path, maths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = "Try:\n1. Bus 7\n 2) Tram 8\n**3. Boat**\n1984. A year"
    assert nominal_texts(tmp_path, maths, {"text": listed}) == ["Try:\nBus 7\n Tram 8\n**Boat**\n1984. A year"]
    refused(lambda: nominal_texts(tmp_path, maths, {"text": "1. Tea\n2. Cake"}), "1 no number")
    refused(lambda: nominal_texts(tmp_path, maths, {"premise": "a", "label": 1}), "nominal.jsonl, line 1: ", "'prompt'")
    monkeypatch.setattr(openmath_magpie, "MOST_CHARACTERS", 20)
    texts = ("Take bus 7 now. It leaves at 3.", "Line 1\nof a long list", "Pay 1,234,567,890,123,456")
    found = nominal_texts(tmp_path, maths, *({"text": text} for text in texts), count=2)
    assert found == ["Line 1", "Take bus 7 now."]


def test_only_a_diagnostic_set_is_replaced(tmp_path: Path, maths: str, names: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    for out in (tmp_path / "full", Path(maths)):
        refused(lambda out=out: build_openmath_magpie(out, quantitative=maths, nominal=names, count=1), out.name)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "x"
    for count in (1, 2):
        build_openmath_magpie(tmp_path / "set", quantitative=maths, nominal=names, count=count)
        assert len(read_labelled(tmp_path / "set")) == 2 * count
    (tmp_path / "bad.parquet").write_text("1")
    build = partial(build_openmath_magpie, tmp_path / "set", quantitative=maths, nominal=names)
    refused(partial(build, count=31), "30 quantitative", "at most 30")
    for name in ("gone.jsonl", "bad.parquet"):
        refused(partial(build, quantitative=str(tmp_path / name), count=1), name)
    assert len(read_labelled(tmp_path / "set")) == 4


def test_a_directory_gives_its_train_files_jsonl_and_parquet(tmp_path: Path, names: str) -> None:
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    write(folder / "train-0.jsonl", problem(1))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([problem(3)]), folder / "train-1.parquet")
    write(folder / "test.jsonl", problem(5))
    build = partial(build_openmath_magpie, tmp_path / "out", quantitative=str(tmp_path / "set"), nominal=names)
    build(count=2)
    texts = {sentence.text for sentence in read_labelled(tmp_path / "out") if sentence.domain == "set"}
    assert {text.split()[2] for text in texts} == {"1", "3"}
    refused(partial(build, count=3), "2 quantitative", "3")


class _Stream:
    """A streamed dataset that records how it was shuffled, and how much of it was read."""

    def __init__(self, records: Iterator[Any]) -> None:
        self.records, self.read, self.shuffled = records, 0, dict[str, int]()

    def shuffle(self, **options: int) -> "_Stream":
        self.shuffled = options
        return self

    def __iter__(self) -> Iterator[Any]:
        for record in self.records:
            self.read += 1
            yield record


def test_the_hub_is_read_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {OPENMATH: _Stream(problem(i) for i in range(10**9))}
    streams[MAGPIE] = _Stream(chat(f"Where is room {i}?", "Here.") for i in range(10**9))
    hub = SimpleNamespace(load_dataset=lambda name, split, streaming: streams[name])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    build_openmath_magpie(tmp_path / "set", count=50, seed=3)
    assert {sentence.domain for sentence in read_labelled(tmp_path / "set")} == {OPENMATH, MAGPIE}
    for stream in streams.values():
        assert stream.read == 50
        assert stream.shuffled == {"seed": 3, "buffer_size": openmath_magpie.SHUFFLE_BUFFER}
