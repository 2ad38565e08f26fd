"""Numbers of natural texts with hand-made roles: the package's file, and null for roles that nobody knows."""

import json
import re
from collections import Counter
from importlib.resources import files

from pydantic import TypeAdapter

from ani.data.collator import tokenize
from ani.data.kinds import DataSource, NaturalData
from ani.data.sources import Example, record_examples
from ani.injection.attach import number_locator
from ani.injection.locate import NOMINAL, QUANTITATIVE, UNKNOWN_ROLE
from ani.numbers import find_numbers
from tests.refusals import refused
from tests.tiny import attached

FILE = files("ani.data") / "natural_roles.jsonl"
RECORDS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def test_the_card_counts_what_the_file_holds() -> None:
    card = (files("ani.data") / "natural_roles.md").read_text(encoding="utf-8")
    roles = Counter(role for record in RECORDS for role in record["roles"])
    told = re.search(r"([\d,]+) numbers in (\d+) texts, (\d+) of them nominal and (\d+) quantitative", card)
    assert told is not None
    found = [roles["nominal"] + roles["quantitative"], len(RECORDS), roles["nominal"], roles["quantitative"]]
    assert [int(count.replace(",", "")) for count in told.groups()] == found
    rows = re.findall(r"^\| .+ \| .+ \| (\d+) \| (\d+) \|$", card, re.MULTILINE)
    assert [sum(map(int, column)) for column in zip(*rows, strict=True)] == found[2:]


def test_each_record_is_an_example_whose_last_number_has_a_role() -> None:
    source: NaturalData = TypeAdapter(DataSource).validate_python({"kind": "natural", "limit": 5})
    whole = NaturalData(kind="natural").examples(0)
    assert source.examples(0) == whole[:5] and len(whole) == len({str(example) for example in whole}) == len(RECORDS)
    for example, record in zip(whole, RECORDS, strict=True):
        assert isinstance(example.prompt, str) and example.roles is not None and example.roles[-1] is not None
        assert find_numbers(example.prompt)[-1].end == len(example.prompt)
        assert find_numbers(example.prompt + example.completion)[len(example.roles) - 1].end == len(example.prompt)
        assert record["source"] and record["licence"]


def test_a_number_without_a_role_is_unknown() -> None:
    model, tokenizer = attached("llama")
    row = tokenize(
        Example("12 of 345 in 7", " rooms", (None, "quantitative", "nominal")), tokenizer, number_locator(model), 99
    )
    numbers = number_locator(model).scanner.scan(row.input_ids)
    assert [row.roles[number.last_token] for number in numbers] == [UNKNOWN_ROLE, QUANTITATIVE, NOMINAL]
    wrong = {"prompt": "1 and 2", "completion": " x", "roles": [None, "name"]}
    refused(lambda: list(record_examples(wrong, "here")), "here: 'roles' must be 'nominal' or 'quantitative'")
