import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

import ani
from ani import InputError, LayerSelection
from ani.data.diagnostic import DiagnosticSentence, diagnostic_sentences
from ani.data.labelled_sentences import LABELLED_FILE, write_labelled
from ani.injection.model_parts import is_attached
from ani.probing.curve import LayerPoint
from ani.probing.run import HELD_OUT, RANDOM_SPLIT, probe
from ani.results.records import LAYERS, SELECTION
from tests.json_lines import read_lines as read
from tests.refusals import refused
from tests.tokenizers import gemma_like

FILES = sorted([LAYERS, RANDOM_SPLIT, HELD_OUT, SELECTION, "run.json"])
SENTENCES = 240


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PreTrainedModel:
    return LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return gemma_like()


@pytest.fixture(scope="module")
def probed(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LayerSelection, Path]:
    out = tmp_path_factory.mktemp("probed") / "[new] folder"
    return probe(model, tokenizer, out, sentences=SENTENCES, policy="terminal", facts={"model": "tiny"}), out


def accuracy(records: list[dict[str, Any]], key: str) -> list[float]:
    return [float(share) for share in np.mean([record[key] for record in records], axis=0)]


def own_sentences() -> list[DiagnosticSentence]:
    """Those that are probed if no file is named."""
    third = SENTENCES // 3
    return [*diagnostic_sentences(SENTENCES - third, split="train"), *diagnostic_sentences(third, split="test")]


def test_what_is_left_and_that_the_records_give_the_curve(probed: tuple[LayerSelection, Path]) -> None:
    selection, out = probed
    assert sorted(path.name for path in out.iterdir()) == FILES
    run = json.loads((out / "run.json").read_text())
    assert (run["title"], run["model"], run["settings"]["sentences"]) == ("ani probe", "tiny", SENTENCES)
    chosen = json.loads((out / SELECTION).read_text())
    for name in ("layer", "best", "argmax", "reason"):
        assert chosen[name] == getattr(selection, name)
    assert tuple(chosen["stretch"]) == selection.stretch
    assert chosen["numbers"] == len(read(out / RANDOM_SPLIT))
    assert [LayerPoint(**point) for point in read(out / LAYERS)] == list(selection.curve)
    assert [point.layer for point in selection.curve] == [0, 1, 2, 3]
    assert selection.layer in (0, 1, 2)

    random_split, held_out = read(out / RANDOM_SPLIT), read(out / HELD_OUT)
    roles = [record["role"] for record in random_split]
    assert roles.count("nominal") == roles.count("quantitative") > SENTENCES / 4
    assert len(held_out) == chosen["held_out_numbers"]
    assert accuracy(held_out, "held_out") == pytest.approx([point.held_out for point in selection.curve])
    assert accuracy(random_split, "random_split") == pytest.approx([point.random_split for point in selection.curve])
    seen = [record for record in random_split if record["seen"]]
    assert 0 < len(seen) < len(random_split)
    control = accuracy(seen, "control")
    assert control == pytest.approx([point.control for point in selection.curve])
    gain = np.subtract(accuracy(seen, "random_split"), control)
    assert gain == pytest.approx([point.selectivity for point in selection.curve])


def test_the_policy_says_where_and_is_recorded(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, probed: tuple[LayerSelection, Path]
) -> None:
    selection = probe(model, tokenizer, tmp_path, data="diagnostic", sentences=SENTENCES)
    assert json.loads((tmp_path / SELECTION).read_text())["policy"] == "after"
    assert selection.curve != probed[0].curve
    for name in (RANDOM_SPLIT, HELD_OUT):  # each number is read after its last token
        after, terminal = (
            {(record["sentence"], record["value"]): record["position"] for record in read(folder / name)}
            for folder in (tmp_path, probed[1])
        )
        assert len(after.keys() & terminal.keys()) > 20
        assert all(after[number] > terminal[number] for number in after.keys() & terminal.keys())
    console = Console(file=io.StringIO(), width=100)
    found = ani.select_layer(model, tokenizer, own_sentences(), policy="after", console=console)
    assert found == selection and not is_attached(model)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert said.startswith("sentences read: 240 in ") and "layers probed: 4 in " in said


def test_an_earlier_run_is_replaced_and_kept_if_this_one_is_refused(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    for name in (*FILES, "own.txt"):
        (tmp_path / name).write_text("earlier")
    for settings in ({"layers": [9]}, {"sentences": 20}, {"held_out": "gone.jsonl"}):
        with pytest.raises(InputError):
            probe(model, tokenizer, tmp_path, **settings)  # type: ignore[arg-type]
        assert {path.read_text() for path in tmp_path.iterdir()} == {"earlier"}
    probe(model, tokenizer, tmp_path, sentences=SENTENCES, layers=[1])
    assert [path.name for path in tmp_path.iterdir() if path.read_text() == "earlier"] == ["own.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FILES, "own.txt"])


def one_role_a_file(folder: Path) -> Path:
    """Labelled sentences as of the paper's set: a domain of names and a domain of quantities."""
    folder.mkdir()
    sentences = diagnostic_sentences(2 * SENTENCES, split="train", seed=3)
    one_role = [s for s in sentences if len(set(s.roles)) == 1]
    write_labelled(folder / LABELLED_FILE, [s._replace(domain=s.roles[0], template=s.text) for s in one_role])
    return folder


def test_domains_of_one_role_need_a_second_set(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    data = str(one_role_a_file(tmp_path / "data"))
    ask = partial(probe, model, tokenizer, tmp_path / "out")
    refused(lambda: ask(data=data), "0 quantities", "0 names")  # values of one split only
    selection = ask(data=data, held_out="diagnostic", sentences=SENTENCES)
    written = json.loads((tmp_path / "out" / SELECTION).read_text())
    assert (written["data"], written["held_out"]) == (data, "diagnostic")
    held_out = read(tmp_path / "out" / HELD_OUT)
    assert {record["domain"] for record in held_out} <= {sentence.domain for sentence in own_sentences()}
    assert accuracy(held_out, "held_out") == pytest.approx([point.held_out for point in selection.curve])
    assert {record["domain"] for record in read(tmp_path / "out" / RANDOM_SPLIT)} == {"nominal", "quantitative"}
