import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import ani.cli
from ani.training.recipe import load_recipe
from ani.training.trainer import ADAPTER, LOG_FILE
from tests.conftest import save_tiny_llama
from tests.tokenizers import gemma_like

Write = Callable[..., Path]
TEXT = "Room 505 holds 1,234"


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Done]:
    """`ani …` in this process, in an empty working directory."""
    monkeypatch.delenv("ANI_TRACEBACK", raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["ani", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            ani.cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        return Done(code, *capsys.readouterr())

    return run


def assert_refused(done: Done, *parts: str) -> None:
    """Exit code 2 and one line that says why."""
    assert done.code == 2, done
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in done.out + done.err
    for part in parts:
        assert part in lines[0]


# --- what works ---


@pytest.mark.parametrize("command", [[], ["inspect"], ["train"], ["compare"], ["eval"], ["report"], ["demo"], ["env"]])
def test_help(run: Callable[..., Done], command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.code == 0
    assert "Usage" in done.out
    assert done.err == ""


def test_env(run: Callable[..., Done]) -> None:
    done = run("env", "--json")
    facts = json.loads(done.out)
    assert facts["python"] == sys.version.split()[0]
    assert {"torch", "transformers", "peft", "commit", "cpu_cores", "gpu"} <= facts.keys()
    plain = run("env").out.splitlines()
    assert [line.split(":")[0] for line in plain] == list(facts)


def test_inspect(run: Callable[..., Done], tiny_model: Path, tiny_adapter: Path) -> None:
    done = run("inspect", TEXT, "--model", tiny_model, "--adapter", tiny_adapter, "--json")
    assert done.code == 0
    record = json.loads(done.out)
    assert record["text"] == TEXT
    assert [(number["text"], number["value"]) for number in record["numbers"]] == [("505", "505"), ("1,234", "1234")]
    assert all(number["injected"] is (number["alpha"] > 0.5) for number in record["numbers"])
    shown = run("inspect", TEXT, "--model", tiny_model, "--adapter", tiny_adapter)
    for number in record["numbers"]:
        assert f"{number['alpha']:.3f}" in shown.out
        assert (f"[{number['text']}]" in shown.out) is number["injected"]


def test_inspect_shows_a_text_as_it_is(run: Callable[..., Done], tiny_model: Path, tiny_adapter: Path) -> None:
    done = run("inspect", "[bold]no[/bold] [number]", "--model", tiny_model, "--adapter", tiny_adapter)
    assert done.code == 0
    assert "[bold]no[/bold] [number]" in done.out
    assert "no number in the text" in done.out


def test_train_evaluate_report(run: Callable[..., Done], tiny_recipe: Write, tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "[a] run"
    done = run("train", tiny_recipe(output=str(output)), "training.steps=2", "lora.r=2", "training.learning_rate=1e-4")
    assert done.code == 0, done
    assert "step    2/2" in done.out
    assert str(output / ADAPTER) in done.out
    recipe = load_recipe(output / "recipe.yaml")
    assert recipe.lora is not None
    assert (recipe.training.steps, recipe.training.learning_rate, recipe.lora.r) == (2, 1e-4, 2)
    assert_refused(run("train", "--resume", output), "is finished", str(output))

    results = tmp_path / "results"
    arguments = ["eval", "--model", tiny_model, "--adapter", output / ADAPTER, "--out", results, "--limit", "2"]
    done = run(*arguments, "--tasks", "arithmetic,gating", "--operations", "addition,subtraction", "--json")
    assert done.code == 0, done
    scores = json.loads(done.out)
    assert set(scores["arithmetic"]) == {"addition", "subtraction"}
    by_length = [score for lengths in scores["arithmetic"].values() for score in lengths.values()]
    assert all(set(lengths) == {"2", "4", "6", "8", "10", "12"} for lengths in scores["arithmetic"].values())
    assert all(score["total"] == 2 and 0 <= score["low"] <= score["high"] <= 1 for score in by_length)
    decisions = [json.loads(line) for line in (results / "gating.jsonl").read_text().splitlines()]
    assert scores["gating"].keys() == {"nominal", "quantitative"}
    for role, score in scores["gating"].items():
        of_role = [decision for decision in decisions if decision["role"] == role]
        assert score["total"] == len(of_role)
        assert score["right"] == sum(decision["injected"] is (role == "quantitative") for decision in of_role)
    assert len((results / "arithmetic.jsonl").read_text().splitlines()) == 24
    shown = run(*arguments, "--tasks", "gating")
    assert shown.code == 0
    assert "How well the gate tells the roles apart" in shown.out

    shutil.copy(output / LOG_FILE, results / LOG_FILE)
    done = run("report", results)
    assert done.code == 0, done
    assert str(results / "report.html") in done.out
    page = (results / "report.html").read_text()
    assert "ani eval: gating" in page


def test_a_dry_run_writes_nothing(run: Callable[..., Done], tiny_recipe: Write, tmp_path: Path) -> None:
    recipe = tiny_recipe(data=[{"kind": "jsonl", "path": "[gone].jsonl"}])
    done = run("train", "--dry-run", recipe, "training.steps=5")
    assert done.code == 0, done
    assert "layer 1" in done.out and "[gone].jsonl" in done.out and "missing" in done.out
    assert "5 optimizer steps, 2,560 tokens at most" in done.out
    done = run("train", "--dry-run", recipe, "training.steps=5", "--json")
    assert json.loads(done.out)["memory"]["optimizer"] == 2 * json.loads(done.out)["memory"]["gradients"]
    assert not (tmp_path / "run").exists()
    assert_refused(run("train", "--dry-run", recipe, "ani.layer=9"), "layer=9 does not exist")


def test_an_interrupted_training_says_how_to_go_on(
    run: Callable[..., Done], tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(console: Any) -> Callable[[dict[str, Any]], None]:
        def stop(line: dict[str, Any]) -> None:
            raise KeyboardInterrupt

        return stop

    with monkeypatch.context() as patch:
        patch.setattr("ani.progress.training_lines", lines)
        done = run("train", tiny_recipe())
    assert done.code == 130
    assert f"ani train --resume {tmp_path / 'run'}" in done.out
    done = run("train", "--resume", tmp_path / "run")
    assert done.code == 0
    assert (tmp_path / "run" / ADAPTER).is_dir()


# --- bad input ---


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["bogus"], ["bogus"]),
        (["train", "--nope"], ["--nope"]),
        (["inspect"], ["'text'"]),
        (["eval", "--limit", "0", "--out", "x"], ["--limit"]),
        (["eval", "--limit", "many", "--out", "x"], ["--limit"]),
        (["eval"], ["--out"]),
        (["train"], ["either a recipe or --resume"]),
        (["train", "r.yaml", "--resume", "x"], ["either a recipe or --resume"]),
        (["train", "--dry-run", "--resume", "x"], ["--dry-run takes a recipe"]),
        (["train", "r.yaml", "--json"], ["--json is for --dry-run only"]),
        (["train", "[gone]/recipe.yaml"], ["[gone]/recipe.yaml does not exist"]),
        (["train", "--resume", "[gone]"], ["[gone] holds no recipe.yaml"]),
        (["inspect", "5", "--model", "other"], ["--adapter is missing"]),
        (["inspect", "5", "--model", "no/such-model", "--adapter", "x"], ["'no/such-model'", "smollm2"]),
        (["inspect", "5", "--model", "[x]/gone", "--adapter", "x"], ["'[x]/gone'"]),
        (["eval", "--out", "out", "--tasks", "arithmetics"], ["unknown task 'arithmetics'", "arithmetic, gating"]),
        (["eval", "--out", "out", "--tasks", ","], ["unknown task ','"]),
        (["eval", "--out", "out", "--operations", "division"], ["unknown operation 'division'"]),
        (["eval", "--out", "out", "--tasks", "gating"], ["needs --adapter"]),
        (["report", "gone"], ["gone"]),
        (["report", "."], ["arithmetic.jsonl"]),
        (["demo", "training.stepps=1"], ["did you mean 'steps'"]),
    ],
)
def test_bad_arguments(run: Callable[..., Done], arguments: list[str], parts: list[str]) -> None:
    assert_refused(run(*arguments), *parts)
    assert list(Path.cwd().iterdir()) == []


def test_without_arguments_there_is_help(run: Callable[..., Done]) -> None:
    done = run()
    assert done.code == 2
    assert "Usage" in done.out + done.err


def test_compare_refuses_what_is_no_comparison(run: Callable[..., Done], tiny_recipe: Write) -> None:
    assert_refused(run("compare", "gone.yaml"), "recipe gone.yaml does not exist")
    assert_refused(run("compare", tiny_recipe()), "recipe.yaml", "key 'evaluation' is missing")
    assert_refused(run("compare", tiny_recipe(), "seeds"), "override 'seeds' must have the form key=value")


def test_bad_recipes(run: Callable[..., Done], tiny_recipe: Write, tmp_path: Path) -> None:
    path = tiny_recipe()
    cases = [
        (["training.step=1"], ["unknown key 'training.step'", "'steps'"]),
        (["training.steps=[x]"], ["training.steps", "['x']"]),
        (["model=no/such-model"], ["'no/such-model'"]),
        (["ani.layer=3"], ["layer=3", "0 to 2"]),
        (["data=[{kind: jsonl, path: '[gone].jsonl'}]"], ["[gone].jsonl does not exist"]),
        (["data.0.count=1000000"], ["count"]),
        (["data.1.count=1000000"], ["count"]),
        (["output=../recipe.yaml"], ["recipe.yaml is a file"]),
    ]
    for overrides, parts in cases:
        assert_refused(run("train", path, *overrides), *parts)
        assert not (tmp_path / "run").exists()
        assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.jsonl holds no examples"),
        (
            '{"prompt": "1", "completion": "2"}\n{"prompt": "[1]", "completion": "2"\n',
            "data.jsonl, line 2: not valid JSON",
        ),
        ('{"prompt": "[b]1[/b]"}', "data.jsonl, line 1: no 'completion'"),
        ('{"prompt": [{"role": "user", "content": "1"}], "completion": "2"}', "no chat template"),
    ],
)
def test_bad_data(run: Callable[..., Done], tiny_recipe: Write, tmp_path: Path, content: str, message: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(content)
    done = run("train", tiny_recipe(data=[{"kind": "jsonl", "path": str(data)}]))
    assert_refused(done, message)
    assert not (tmp_path / "run").exists()


def test_bad_models(run: Callable[..., Done], tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
    def inspect(model: Path) -> Done:
        return run("inspect", "5", "--model", model, "--adapter", tiny_adapter)

    (tmp_path / "empty").mkdir()
    assert_refused(inspect(tmp_path / "empty"), "without a config.json")
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_model, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_refused(inspect(damaged), "no model", "damaged")
    (damaged / "config.json").write_text("{")
    assert_refused(inspect(damaged), "damaged")
    other = save_tiny_llama(tmp_path / "other", gemma_like(), hidden_size=16)
    assert_refused(inspect(other), "hidden_size=32", "hidden_size=16")
    assert_refused(inspect(save_tiny_llama(tmp_path / "letters", letters())), "no token with an ASCII digit")


def letters() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without digits."""
    vocab = {token: i for i, token in enumerate(["<unk>", *"abcdefghijklmnopqrstuvwxyz", "Ġ"])}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<unk>")


def test_bad_adapters(run: Callable[..., Done], tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"

    def evaluate(adapter: Path | str) -> Done:
        return run("eval", "--model", tiny_model, "--adapter", adapter, "--tasks", "gating", "--out", results)

    assert_refused(evaluate("no/such-adapter"), "no adapter at no/such-adapter")
    assert_refused(evaluate(tmp_path / "[gone]"), "no adapter at", "[gone]")
    assert_refused(evaluate(tiny_model), "no ani_config.json")
    damaged = tmp_path / "[damaged]"
    shutil.copytree(tiny_adapter, damaged)
    weights = damaged / "ani.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert_refused(evaluate(damaged), "[damaged]/ani.safetensors")
    assert not results.exists()


def test_bad_outputs(run: Callable[..., Done], tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run("eval", "--model", tiny_model, "--tasks", "arithmetic", "--limit", "1", "--out", tmp_path / "file")
    assert_refused(done, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    arguments = ["--model", tiny_model, "--adapter", tiny_adapter, "--limit", "1000000", "--out", tmp_path / "out"]
    assert_refused(run("eval", "--tasks", "gating", *arguments), "count is 1000000")


# --- failures ---


def test_a_failed_training_exits_with_one(run: Callable[..., Done], tiny_recipe: Write, tmp_path: Path) -> None:
    done = run("train", tiny_recipe(), "training.learning_rate=1e36", "training.save_every=1", "training.log_every=1")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("error: the loss is nan at step 2, on a batch of 4 that begins with ['")
    assert "Traceback" not in done.err
    # Its weights made the loss: nothing may resume from them.
    assert not (tmp_path / "run" / "checkpoint-1" / "complete").exists()


def test_the_traceback_can_be_had(
    run: Callable[..., Done], tiny_recipe: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANI_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="the loss is nan"):
        run("train", tiny_recipe(), "training.learning_rate=1e36")


def test_an_installed_command_says_one_line(tmp_path: Path) -> None:
    """In a process of its own: nothing that is imported adds to the message."""
    recipe = tmp_path / "[x].yaml"
    recipe.write_text(yaml.safe_dump({"output": "out"}))
    environment = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(
        [sys.executable, "-m", "ani.cli", "train", str(recipe)], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: recipe {recipe}: key 'data' is missing\n"
