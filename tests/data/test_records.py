from pathlib import Path
from typing import Any

import pytest

from ani.data.records import Example, read_examples
from tests.json_lines import write_lines
from tests.refusals import refused

USER = {"role": "user", "content": "Room 505 holds 10?"}
ASSISTANT = {"role": "assistant", "content": "Yes, 10."}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
PAIR = {"prompt": "1 + 1 =", "completion": " 2"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({**PAIR, "unused": 3}, [Example("1 + 1 =", " 2")]),
        ({"prompt": [USER], "completion": "Yes."}, [Example([USER], "Yes.")]),
        ({"prompt": [USER], "completion": [ASSISTANT]}, [Example([USER], "Yes, 10.")]),
        (
            {"messages": [USER, ASSISTANT, USER, ASSISTANT], "roles": ["nominal", "quantitative"]},
            [Example([USER], "Yes, 10."), Example([USER, ASSISTANT, USER], "Yes, 10.", ("nominal", "quantitative"))],
        ),
        ({"messages": [{**USER, "name": "x"}, {**ASSISTANT, "tool_calls": None}]}, [Example([USER], "Yes, 10.")]),
        ({**PAIR, "roles": "quantitative"}, [Example("1 + 1 =", " 2", ("quantitative", "quantitative"))]),
        ({**PAIR, "roles": ["nominal", None]}, [Example("1 + 1 =", " 2", ("nominal", None))]),
        ({**PAIR, "roles": None}, [Example("1 + 1 =", " 2")]),
        ({"prompt": "No number", "completion": "!", "roles": []}, [Example("No number", "!", ())]),
        ({"prompt": "No number", "completion": "!", "roles": "nominal"}, [Example("No number", "!", ())]),
    ],
)
def test_every_form_of_a_record(tmp_path: Path, record: Any, expected: list[Example]) -> None:
    assert read_examples(write_lines(tmp_path / "data.jsonl", record)) == expected


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (None, "NoneType"), ({"completion": "x"}, "'prompt'"), ({"prompt": "x", "completion": ""}, "'completion'"),
        ({"prompt": [], "completion": "x"}, "chat messages"), ({"prompt": ["hi"], "completion": "x"}, "'role'"),
        ({"prompt": [{"role": "user", "content": 5}], "completion": "x"}, "'content'"),
        ({"prompt": "x", "completion": [USER]}, "'completion'"),
        ({"prompt": "x", "completion": [ASSISTANT, ASSISTANT]}, "'completion'"),
        ({"messages": [ASSISTANT]}, "'messages'"),
        ({"messages": [USER, ASSISTANT, USER, {**ASSISTANT, "content": ""}, USER, ASSISTANT]}, "'messages'"),
        ({"messages": [USER, CALL]}, "'tool_calls'"), ({**PAIR, "roles": "number"}, "'roles'"),
        ({"messages": [USER, ASSISTANT], "roles": ["nominal"] * 3}, "3 numbers"),
    ],
)  # fmt: skip
def test_a_malformed_record_names_file_line_and_key(tmp_path: Path, record: Any, named: str) -> None:
    path = write_lines(tmp_path / "data.jsonl", PAIR, record)
    refused(lambda: read_examples(path), f"{path}, line 2: ", named)
    path.write_text("\n \n")
    refused(lambda: read_examples(path), str(path))
