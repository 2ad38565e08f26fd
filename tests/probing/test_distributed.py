import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ani import InputError, cli
from ani.data.contrastive import contrastive_sentences
from ani.launch import Processes
from ani.models import load_model, load_tokenizer
from ani.probing.run import probe
from ani.probing.states import number_states
from ani.results.files import SELECTION
from tests.processes import forked, together
from tests.tiny import pair


@pytest.mark.parametrize(("count", "sentences", "batches"), [(2, 200, 3), (3, 4, 1)])
def test_states_are_those_of_one_process(count: int, sentences: int, batches: int) -> None:
    model, tokenizer = pair("llama")
    model.to(torch.bfloat16)
    asked = contrastive_sentences(sentences)
    counted: list[int] = []
    whole = number_states(model, tokenizer, asked, on_sentence=counted.append)
    assert len(counted) == batches

    def work(processes: Processes) -> None:
        shown: list[int] = []
        found = number_states(model, tokenizer, asked, on_sentence=shown.append, processes=processes)
        assert found.numbers == whole.numbers
        if processes.main:
            assert torch.equal(found.states, whole.states) and shown == counted
        else:
            assert found.states.shape == (5, 0, 32) and shown == []

    assert together(count, work) == [0] * count


def test_two_processes_leave_what_one_leaves(tiny_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(tiny_model), dtype="float32", device="cpu"), load_tokenizer(str(tiny_model))
    settings: dict[str, Any] = {"sentences": 240, "layers": [0, 1], "held_out": "contrastive"}
    one = probe(model, tokenizer, tmp_path / "one", **settings)

    def work(processes: Processes) -> None:
        assert probe(model, tokenizer, tmp_path / "two", processes=processes, **settings) == one

    assert together(2, work) == [0, 0]
    for path in (tmp_path / "one").iterdir():
        if path.name != "run.json":
            assert (tmp_path / "two" / path.name).read_text() == path.read_text()


def test_what_the_main_process_refuses_ends_all(tiny_model: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(str(tiny_model), device="cpu"), load_tokenizer(str(tiny_model))

    def work(processes: Processes) -> None:
        with pytest.raises(InputError if processes.main else RuntimeError):
            probe(model, tokenizer, tmp_path, sentences=20, processes=processes)

    assert together(2, work) == [0, 0]


def test_the_option_starts_processes(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["probe", "--model", tiny_model, "--sentences", 240, "--layers", 1, "--out", tmp_path, "--json"]
    monkeypatch.setattr(sys, "argv", ["ani", *map(str, command), "--processes", "2"])
    assert forked(cli.main) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == json.loads((tmp_path / SELECTION).read_text())
    assert err == ""
