import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import typer

import ani.cli
from ani.data.labelled_sentences import read_labelled
from ani.errors import InputError
from ani.evaluation.tasks.routing import Routing
from ani.probing.run import HELD_OUT, RANDOM_SPLIT
from ani.results.records import LAYERS, SELECTION, TRAINING_LOG
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from tests.json_lines import read_lines as read
from tests.json_lines import write_lines as save
from tests.training.runs import interrupted

Write = Callable[..., Path]
TEXT = "Room 505 holds 1,234"


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`ani …` in this process, in an empty working directory; it must exit with `code` where one is given."""
    monkeypatch.delenv("ANI_TRACEBACK", raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def run(*arguments: str | Path, code: int | None = None) -> Done:
        monkeypatch.setattr(sys, "argv", ["ani", *map(str, arguments)])
        capsys.readouterr()
        ended = 0
        try:
            ani.cli.main()
        except SystemExit as stop:
            ended = stop.code if isinstance(stop.code, int) else 1
        done = Done(ended, *capsys.readouterr())
        assert code in (None, ended), done
        return done

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


COMMANDS = cast(Any, typer.main.get_command(ani.cli.app)).commands


def test_help_names_every_command_and_argument(run: Run) -> None:
    every = run("--help", code=0).out
    assert "Usage" in "".join(run(code=2)[1:])
    for command, found in COMMANDS.items():
        done = run(command, "--help", code=0)
        assert command in every and f"ani {command}" in done.out and done.err == ""
        for parameter in found.params:
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
            assert getattr(parameter, "hidden", False) or all(name in done.out for name in names), names


def test_env(run: Run) -> None:
    done = run("env", "--json")
    facts = json.loads(done.out)
    assert facts["python"] == sys.version.split()[0]
    assert {"torch", "transformers", "peft", "commit", "cpu_cores", "cuda", "driver", "cards"} <= facts.keys()
    plain = run("env").out.splitlines()
    assert [line.split(":")[0] for line in plain] == list(facts)


def test_inspect(run: Run, tiny_model: Path, tiny_adapter: Path) -> None:
    record = json.loads(run("inspect", TEXT, "--model", tiny_model, "--adapter", tiny_adapter, "--json", code=0).out)
    assert record["text"] == TEXT
    assert [(number["text"], number["value"]) for number in record["numbers"]] == [("505", "505"), ("1,234", "1234")]
    assert all(number["injected"] is (number["alpha"] > 0.5) for number in record["numbers"])
    shown = run("inspect", TEXT, "--model", tiny_model, "--adapter", tiny_adapter)
    for number in record["numbers"]:
        assert f"{number['alpha']:.3f}" in shown.out
        assert (f"[{number['text']}]" in shown.out) is number["injected"]
    shown = run("inspect", "[bold]no[/bold] [number]", "--model", tiny_model, "--adapter", tiny_adapter, code=0)
    assert "[bold]no[/bold] [number]" in shown.out and "no number in the text" in shown.out


def test_train_evaluate_report(run: Run, tiny_recipe: Write, tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "[a] run"
    settings = ("training.steps=2", "lora.r=2", "training.learning_rate=1e-4")
    done = run("train", tiny_recipe(output=str(output)), *settings, code=0)
    assert "step    2/2" in done.out and str(output / ADAPTER) in done.out
    recipe = load_recipe(output / "recipe.yaml")
    assert recipe.lora is not None
    assert (recipe.training.steps, recipe.training.learning_rate, recipe.lora.r) == (2, 1e-4, 2)
    assert_refused(run("train", "--resume", output), str(output))

    results = tmp_path / "results"
    arguments = ["eval", "--model", tiny_model, "--adapter", output / ADAPTER, "--out", results, "--limit", "2"]
    asked = ("--tasks", "arithmetic,gates", "--operations", "addition,subtraction", "--json")
    scores = json.loads(run(*arguments, *asked, code=0).out)
    assert set(scores["arithmetic"]) == {"addition", "subtraction"}
    for lengths in scores["arithmetic"].values():
        assert {part: score["total"] for part, score in lengths.items()} == {
            "all": 12,
            **dict.fromkeys(("2", "4", "6", "8", "10", "12"), 2),
        }
    decisions = [number for record in read(results / "gates.jsonl") for number in record["numbers"]]
    (whole,) = (row for row in scores["gates"] if row["group"] is None)
    for role in ("nominal", "quantitative"):
        score, of_role = whole["measures"][role], [decision for decision in decisions if decision["role"] == role]
        assert score["total"] == len(of_role)
        assert score["right"] == sum(decision["injected"] is (role == "quantitative") for decision in of_role)
    assert "Numbers injected" in run(*arguments, "--tasks", "gates", code=0).out

    shutil.copy(output / TRAINING_LOG, results / TRAINING_LOG)
    assert str(results / "report.html") in run("report", results, code=0).out
    # The second evaluation replaced its own task's results and kept the other's.
    assert "Arithmetic</h2>" in (results / "report.html").read_text()
    other = run("eval", "--model", tiny_model, "--out", results, "--limit", "1")
    assert_refused(other, str(results), str(tiny_model), str(output / ADAPTER))


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    """Data of two tasks; MMLU asks two questions per subject, as the others are examples."""
    fields = ["anatomy", "marketing"]
    mmlu = [
        {"subject": field, "question": f"Is {i} odd?", "choices": ["1", "yes", "no", "maybe"], "answer": i % 4}
        for field in fields
        for i in range(7)
    ]
    return {
        "gsm8k": save(
            tmp_path / "gsm8k.jsonl",
            *({"question": f"Ann has {i} figs and 12 nuts. How many?", "answer": f"#### {i + 12}"} for i in range(3)),
        ),
        "mmlu": save(tmp_path / "mmlu.jsonl", *mmlu),
    }


@pytest.mark.filterwarnings("ignore:the adapter")  # trained on another model
def test_evaluate_benchmarks_and_report(
    run: Run, chat_model: Path, tiny_adapter: Path, data: dict[str, Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    arguments = ["eval", "--model", chat_model, "--adapter", tiny_adapter, "--limit", "2", "--max-new-tokens", "2"]
    for task in ("gsm8k", "mmlu"):
        arguments += ["--data", f"{task}={data[task]}"]
    done = run(*arguments, "--tasks", "gsm8k,mmlu,routing", "--out", results, "--json", code=0)
    assert {path.name for path in results.iterdir()} == {"gsm8k.jsonl", "mmlu.jsonl", "routing.jsonl", "run.json"}
    scores = json.loads(done.out)
    for task in ("gsm8k", "mmlu"):
        records = read(results / f"{task}.jsonl")
        right = sum(record["correct"] for record in records)
        assert (scores[task]["all"]["total"], scores[task]["all"]["right"]) == (len(records), right) == (2, right)
    queries = read(results / "routing.jsonl")
    assert [query["query"] for query in queries] == [query.text for query in Routing(limit=2).questions(seed=0)]
    assert sum(scores["routing"][call]["right"] for call in ("called", "malformed", "none")) == 2
    facts = json.loads((results / "run.json").read_text())
    assert facts["settings"]["gsm8k"]["generation"]["max_gen_toks"] == 2
    assert facts["adapter"] == str(tiny_adapter)
    run("report", results, code=0)
    page = (results / "report.html").read_text()
    assert all(f'<section id="{anchor}"' in page for anchor in ("benchmarks", "tool-routing", "provenance"))

    base = tmp_path / "base"
    options = ["--data", f"mmlu={data['mmlu']}", "--limit", "2"]
    run("eval", "--model", chat_model, "--tasks", "mmlu,routing", *options, "--out", base, code=0)
    assert json.loads(run("diff", results, base, "--json").out).keys() == {"mmlu"}


# --- probe and paper-set ---

QUICK = ["--sentences", "240", "--out", "out"]


def test_probe_shows_table_and_reason(run: Run, tiny_model: Path) -> None:
    done = run("probe", "--model", tiny_model, *QUICK, code=0)
    chosen = json.loads(Path("out", SELECTION).read_text())
    assert "".join(chosen["reason"].split()) in "".join(done.out.split())
    assert all(f"{point['held_out']:.1%}" in done.out for point in read(Path("out", LAYERS)))
    assert {path.name for path in Path("out").iterdir()} == {LAYERS, RANDOM_SPLIT, HELD_OUT, SELECTION, "run.json"}


def test_bad_probes(run: Run, tiny_model: Path) -> None:
    Path("file").touch()
    for option, value, named in (
        ("--layers", "0,4", "4"),
        ("--layers", "1,two", "'1,two'"),
        ("--sentences", "30", "30"),
        ("--policy", "behind", "'behind'"),
        ("--data", "gone.jsonl", "gone.jsonl"),
        ("--out", "file", "file"),
    ):
        assert_refused(run("probe", "--model", tiny_model, *QUICK, option, value), named)
        assert list(Path().iterdir()) == [Path("file")]


def test_paper_set(run: Run, tmp_path: Path) -> None:
    sums = ({"question": f"{i} + 1?", "answer": "Quite."} for i in range(12))
    source, out = save(tmp_path / "maths.jsonl", *sums), tmp_path / "[a] set"
    settings = ["--nominal", "diagnostic", "--count", "10", "--seed", "4", "--numbers", "5"]
    done = run("paper-set", out, "--quantitative", source, *settings, code=0)
    assert "texts: 20 in" in done.out and str(out) in done.out
    assert len(read_labelled(out)) == 20
    assert "seed 4" in (out / "README.md").read_text(encoding="utf-8")
    done = run("paper-set", "set", "--quantitative", source, "--nominal", "diagnostic", "--count", "13")
    assert_refused(done, "gives 12 quantitative texts, 13 are wanted", "at most 12")
    assert not Path("set").exists()


# --- training ---


def test_a_recipe_of_the_package_is_found_by_its_name(run: Run, tiny_model: Path) -> None:
    settings = ("data=[{kind: arithmetic, count: 8}, {kind: diagnostic, count: 8}]", "training.steps=7", "ani.layer=1")
    for name in ("small/train", "recipes/small/train.yaml"):
        assert "7 steps" in run("train", "--dry-run", name, f"model={tiny_model}", *settings, code=0).out


def test_a_dry_run_checks_recipe_and_data_and_writes_nothing(run: Run, tiny_recipe: Write, tmp_path: Path) -> None:
    recipe = tiny_recipe()
    out = run("train", "--dry-run", recipe, "training.steps=1200", code=0).out
    assert "32 examples" in out and "1,200 steps" in out
    for wrong, named in (("ani.layer=9", "layer"), ("data=[{kind: jsonl, path: '[gone].jsonl'}]", "[gone].jsonl")):
        assert_refused(run("train", "--dry-run", recipe, wrong), named)
    assert not (tmp_path / "run").exists()


def test_an_interrupted_training_says_how_to_go_on(
    run: Run, tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ani.terminal.training_lines", lambda console: interrupted)
        done = run("train", tiny_recipe(), code=130)
    assert f"interrupted: continue with: ani train --resume {tmp_path / 'run'} (there is no checkpoint yet)" in done.err
    run("train", "--resume", tmp_path / "run", code=0)
    assert (tmp_path / "run" / ADAPTER).is_dir()


def test_an_adapter_knows_its_model(
    run: Run, tiny_model: Path, tiny_adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked_for(name: str) -> None:
        raise InputError(f"asked for {name}")

    for module in ("ani.evaluation.model_spec", "ani.serving.merge"):
        monkeypatch.setattr(f"{module}.load_tokenizer", asked_for)
    for command in ("inspect 5 --adapter", "eval --out o --adapter", "merge"):
        more = ["o"] if command == "merge" else []
        assert_refused(run(*command.split(), tiny_adapter, *more), f"asked for {tiny_model}")
        assert_refused(run(*command.split(), tiny_adapter, *more, "--model", "smollm2"), "asked for smollm2")


# --- bad input ---


BAD = {
    "bogus": "bogus",
    "train --nope": "--nope",
    "inspect": "text",
    "eval --limit 0 --out x": "--limit",
    "eval": "--out",
    "train": "--resume",
    "train r.yaml --resume x": "--resume",
    "train [gone]/recipe.yaml": "[gone]/recipe.yaml",
    "train --resume [gone]": "[gone]",
    "inspect 5 --model other": "'other'",
    "inspect 5 --model no/such-model --adapter x": "'no/such-model'",
    "inspect 5 --model [x]/gone --adapter x": "'[x]/gone'",
    "compare x.yaml --gpus-per-run 2": "--gpus-per-run",
    "compare gone.yaml": "gone.yaml",
    "eval --out out --tasks arithmetics": "'arithmetics'",
    "eval --out out --tasks ,": "','",
    "eval --out out --tasks gates": "--adapter",
    "eval --out out --data foo": "'foo'",
    "eval --out out --operations power": "'power'",
    "diff one": "baseline",
    "diff [one] two": "[one]",
    "report gone": "gone",
    "report .": "ani eval",
    "demo training.stepps=1": "'steps'",
}


def test_bad_arguments(run: Run) -> None:
    for arguments, named in BAD.items():
        assert_refused(run(*arguments.split()), named)
        assert list(Path.cwd().iterdir()) == []


def test_bad_evaluations(
    run: Run, tiny_model: Path, chat_model: Path, tiny_adapter: Path, data: dict[str, Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"

    def evaluate(model: Path, *arguments: str | Path) -> Done:
        return run("eval", "--model", model, "--out", results, *arguments)

    assert_refused(evaluate(tiny_model, "--data", "arithmetic=x"), "arithmetic", "gsm8k")
    long = ("--tasks", "gsm8k", "--data", f"gsm8k={data['gsm8k']}", "--max-new-tokens", "5000")
    assert_refused(evaluate(chat_model, *long), "gsm8k", "5,000")
    assert_refused(evaluate(tiny_model, "--tasks", "gates", "--adapter", tiny_model), "ani_config.json")
    assert not results.exists()
    results.mkdir()
    save(results / "gates.jsonl", {"of": "an earlier run"})
    asked = ("--tasks", "gates", "--adapter", tiny_adapter, "--texts")
    assert_refused(evaluate(tiny_model, *asked, "mmlu=gone.jsonl"), "gone.jsonl")
    assert read(results / "gates.jsonl") == [{"of": "an earlier run"}]


# --- failures ---


def test_a_failed_training_exits_with_one(
    run: Run, tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("training.learning_rate=1e36", "training.save_every=1", "training.log_every=1")
    done = run("train", tiny_recipe(), *settings, code=1)
    assert len(done.err.splitlines()) == 1
    assert "the loss is nan at step 2" in done.err
    assert "Traceback" not in done.err
    # Its weights made the loss: nothing may resume from them.
    assert not (tmp_path / "run" / "checkpoint-1" / "complete").exists()
    assert not (tmp_path / "run" / ADAPTER).exists() and len(read(tmp_path / "run" / TRAINING_LOG)) == 1
    monkeypatch.setenv("ANI_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="the loss is nan"):
        run("train", tiny_recipe(output=str(tmp_path / "other")), "training.learning_rate=1e36")


def test_an_installed_command_says_one_line(tmp_path: Path) -> None:
    """In a process of its own: nothing that is imported adds to the message."""
    recipe = tmp_path / "[x].yaml"
    recipe.write_text("output: out")
    command, environment = [sys.executable, "-m", "ani", "train", str(recipe)], {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: recipe {recipe}: key 'data' is missing\n"
