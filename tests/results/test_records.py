from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ani.results.records import Record, read_records, write_records
from tests.refusals import refused


class Line(Record):
    a: Any = None
    b: Any = None


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner),
    max_leaves=5,
)


@given(records=st.lists(st.dictionaries(st.sampled_from(["a", "b"]), JSON), max_size=4))
def test_records_survive(records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "new" / "records.jsonl"
    lines = [Line(**record) for record in records]
    assert write_records(path, iter(lines)) == lines
    found = read_records(path, Line)
    assert found == lines
    assert [line.model_dump(exclude_unset=True) for line in found] == records  # what wasn't said isn't written
    assert [p.name for p in path.parent.iterdir()] == ["records.jsonl"]


def test_separators_inside_texts_do_not_end_a_line_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path, records = tmp_path / "records.jsonl", [Line(a="a\u2028b\u0085c\x0bd\r\ne")]
    write_records(path, records)
    assert read_records(path, Line) == records
    path.write_text('{"a": 1}\n{"a":\n')
    refused(lambda: read_records(path, Line), "records.jsonl, line 2")


def fails() -> Iterator[Line]:
    yield Line(a=0)
    raise RuntimeError("out of memory")


def test_a_failure_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for earlier in ([], [path]):
        with pytest.raises(RuntimeError, match="out of memory"):
            write_records(path, fails())
        assert list(tmp_path.iterdir()) == earlier
        assert not earlier or read_records(path, Line) == [Line(a="old")]
        write_records(path, [Line(a="old")])
