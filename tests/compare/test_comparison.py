import copy
import json
import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from filelock import FileLock
from rich.console import Console

import ani
from ani.compare import runs
from ani.compare.plan import Comparison, evaluation_tasks, variant_recipes
from ani.evaluation.evaluate import LoadedTask
from ani.evaluation.tasks.gates import Gates
from ani.injection.adapter import Adapter
from ani.results.records import SELECTION, TRAINING_LOG, read_run
from ani.settings import load_settings
from ani.training.checkpoints import ADAPTER
from ani.training.examples import load_examples
from ani.training.recipe import load_recipe
from tests.fixtures import MadeOnce, need_libnuma
from tests.json_lines import read_lines as read
from tests.json_lines import write_lines
from tests.properties import deep
from tests.refusals import refused
from tests.tiny import tiny
from tests.tokenizers import CHATML, mistral
from tests.training.runs import interrupt_at, interrupted

SHIPPED = [
    path
    for path in sorted((Path(ani.__file__).parent / "recipes").rglob("*.yaml"))
    if "variants" in yaml.safe_load(path.read_text())
]
assert SHIPPED
TEXTS = Path(__file__).parents[1] / "rows" / "language.jsonl"
RUNS = [("early", 0), ("late", 0), ("early", 1), ("late", 1)]

Write = Callable[..., Path]
Compare = Callable[..., Path]


@pytest.fixture
def write(tiny_recipe: Write, tmp_path: Path) -> Write:
    """Write a comparison of two layers of the tiny model with two seeds, with results in `tmp_path/results`."""

    def write(**changes: Any) -> Path:
        tiny_recipe(training={"log_every": 1, "save_every": 2, "steps": 4, "gradient_accumulation": 1})
        settings = {
            "output": str(tmp_path / "results"),
            "recipe": "recipe.yaml",
            "overrides": ["lora.dropout=0"],
            "variants": {"early": ["ani.layer=1"], "late": ["ani.layer=2"]},
            "seeds": [0, 1],
            "baseline": "reference",
            "evaluation": {
                "arithmetic": {"count": 3, "digits": [1, 3]},
                "gates": {"limit": 5},
                "language": {"texts": str(TEXTS), "field": "body", "count": 3},
            },
            **changes,
        }
        path = tmp_path / "comparison.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    return write


@pytest.fixture
def compare(write: Write) -> Compare:
    """Carry out the comparison; keyword arguments except `console` are changes to it."""

    def compare(*overrides: str, console: Console | None = None, **changes: Any) -> Path:
        console = console or Console(file=StringIO())
        return runs.run_comparison(write(**changes), console, overrides, start=runs.in_this_process)

    return compare


@pytest.fixture
def finished(compare: Compare, made_once: MadeOnce) -> Path:
    """The folder of a finished comparison, `results`, and a file with its output, `printed`."""

    def make(folder: Path) -> None:
        folder.mkdir()
        with (folder / "printed").open("w") as printed:
            page = compare(output=str(folder / "results"), console=Console(file=printed, width=140))
        assert page == folder / "results" / "report.html"

    return made_once("comparison", make)


def place(folder: Path, variant: str, seed: int = 0) -> Path:
    return folder / "runs" / variant / f"seed-{seed}"


def files_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_every_run_and_the_tables(finished: Path) -> None:
    folder = finished / "results"
    results = {"arithmetic.jsonl", "gates.jsonl", "language.jsonl"}
    names = {*results, "comparison.md", "comparison.yaml", "report.html", "run.json", "runs"}
    assert {path.name for path in folder.iterdir() if path.name != ".lock"} == names

    answers = read(folder / "arithmetic.jsonl")
    runs = list(dict.fromkeys((record["run"], record["seed"]) for record in answers))
    assert runs == [("reference", None), *RUNS]
    asked = {each: [r["prompt"] for r in answers if (r["run"], r["seed"]) == each] for each in runs}
    assert all(prompts == asked["reference", None] for prompts in asked.values())
    assert len(set(asked["reference", None])) == 6
    decisions = read(folder / "gates.jsonl")
    assert list(dict.fromkeys((record["run"], record["seed"]) for record in decisions)) == RUNS
    assert len({record["text"] for record in decisions}) == 5

    losses = read(folder / "language.jsonl")
    scored = {each: [(r["text"], r["tokens"]) for r in losses if (r["run"], r["seed"]) == each] for each in runs}
    assert all(texts == scored["reference", None] for texts in scored.values())
    assert len(scored["reference", None]) == 6 and len(losses) == 6 * len(runs)
    assert len({record["loss"] for record in losses}) == len(losses)

    run = json.loads((folder / "run.json").read_text())
    layers = {(each["variant"], each["seed"]): each.get("layer") for each in run["runs"]}
    assert layers == {("reference", None): None} | {(v, s): {"early": 1, "late": 2}[v] for v, s in RUNS}

    adapters, examples = set(), []
    for variant, seed in RUNS:
        training = place(folder, variant, seed) / "training"
        assert not list(training.glob("checkpoint-*"))
        assert len(read(training / TRAINING_LOG)) == 4
        adapters.add((training / ADAPTER / "ani.safetensors").read_bytes())
        recipe = load_recipe(training / "recipe.yaml")
        assert recipe.seed == seed
        examples.append(load_examples(recipe))
    assert len(adapters) == 4
    assert all(found == examples[0] for found in examples)
    assert load_examples(recipe.model_copy(update={"data_seed": None})) != examples[0]

    markdown = (folder / "comparison.md").read_text()
    assert "| + | late | " in markdown
    assert "n = 3 × 2 seeds" in markdown and "Exact answers compared to reference" in markdown
    language = markdown[markdown.index("Perplexity of word tokens") :]
    assert "minus that of reference" in language and language.count("n = 3 × 2 seeds") == 4
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert "Exact answers compared to reference" in html and ">Gates<" in html
    assert "Perplexity of word tokens" in html
    output = (finished / "printed").read_text()
    assert "1/5 reference" in output and "5/5 late, seed 1" in output and "step    4/4" in output
    assert output.count("Exact answers by number of digits") == 1 and output.count(", float32, ") == 5


def test_an_interrupted_comparison_goes_on(
    compare: Compare, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken, folder = finished / "results", tmp_path / "results"
    original = Gates.answer

    def in_the_second_run(*args: Any, **kwargs: Any) -> Any:
        return (interrupted if [*folder.glob("runs/late/*/training")] else original)(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Gates, "answer", in_the_second_run)
        with pytest.raises(KeyboardInterrupt):
            compare()
    late = place(folder, "late")
    assert {"training", "arithmetic.jsonl", "run.json"} <= {path.name for path in late.iterdir()}
    assert not (late / "gates.jsonl").exists()
    shown = (folder / "comparison.md").read_text()  # of the runs so far
    assert "| early |" in shown and "| late |" not in shown

    finished = files_of(folder / "runs")
    (run,) = (file for file in finished if file.match("late/*/run.json"))  # says when and by what it was asked last
    del finished[run]
    finished = {path: file for path, file in finished.items() if not path.name.endswith(".answers.jsonl")}
    with monkeypatch.context() as patch:
        patch.setattr(runs, "training_lines", lambda console: interrupt_at(3))
        with pytest.raises(KeyboardInterrupt):
            compare()
    assert (place(folder, "early", 1) / "training" / "checkpoint-2").is_dir()
    assert finished.items() <= files_of(folder / "runs").items()
    assert (late / "gates.jsonl").is_file()

    compare()
    assert finished.items() <= files_of(folder / "runs").items()
    for name in ("arithmetic.jsonl", "gates.jsonl", "language.jsonl", "comparison.md"):
        assert (folder / name).read_text() == (unbroken / name).read_text()
    log = read(place(folder, "early", 1) / "training" / TRAINING_LOG)
    assert [line["step"] for line in log] == [1, 2, 3, 4]

    with monkeypatch.context() as patch:
        patch.setattr(runs, "carry_out", interrupted)
        compare()


def test_runs_that_find_their_layer_probe_once(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[str] = []
    real = runs.probe

    def counted(*args: Any, **kwargs: Any) -> Any:
        probed.append(kwargs["policy"])
        return real(*args, **kwargs)

    monkeypatch.setattr(runs, "probe", counted)
    auto = {"overrides": ["ani.layer=auto", "probe.sentences=240"], "variants": {"a": [], "b": ["ani.penalty=0"]}}
    auto["variants"] |= {"c": ["ani.policy=after"]}  # is probed elsewhere
    compare(seeds=[0], **auto)
    assert probed == ["terminal", "after"]
    trained = [place(tmp_path / "results", name) / "training" for name in "abc"]
    found = [json.loads((each / "probe" / SELECTION).read_text()) for each in trained]
    used = [Adapter.read(each / ADAPTER).settings.module.layer for each in trained]
    assert used == [each["layer"] for each in found] and used[0] == used[1]
    assert [each["policy"] for each in found] == ["terminal", "terminal", "after"]


def test_another_recipe_makes_another_run_and_other_questions_are_asked_of_the_same(
    compare: Compare, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(finished / "results", tmp_path / "results"))
    small: dict[str, Any] = {"seeds": [0], "reference": False, "baseline": None}
    before = files_of(folder / "runs")
    asked: list[str] = []
    original = runs.answer

    def asking(loaded: list[LoadedTask], *args: Any, name: str, **options: Any) -> Any:
        asked.extend(f"{name}: {each.task.name}" for each in loaded)
        return original(loaded, *args, name=name, **options)

    monkeypatch.setattr(runs, "answer", asking)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "train", interrupted)  # both are trained
        compare("evaluation.gates.limit=6", **small)
    assert asked == ["early, seed 0: gates", "late, seed 0: gates"]
    assert len({record["text"] for record in read(folder / "gates.jsonl")}) == 6
    compare("variants.late=[ani.layer=0]", **small)
    (earlier,) = folder.glob("runs/late/seed-0-*")
    assert {path.name for path in (folder / "runs" / "early").iterdir()} == {"seed-0", "seed-1"}
    monkeypatch.setattr(runs, "train", interrupted)
    compare("evaluation.gates.limit=6", **small)  # as it was
    assert not earlier.exists() and len([*folder.glob("runs/late/seed-0*")]) == 2
    weights = {path: file for path, file in before.items() if path.suffix == ".safetensors"}
    assert weights.items() <= files_of(folder / "runs").items()


def test_a_comparison_may_grow(
    compare: Compare, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(finished / "results", tmp_path / "results"))
    compare(seeds=[0], variants={"early": ["ani.layer=1"]}, baseline=None)
    before = files_of(folder / "runs")
    methods = {
        **{name: [f"method={name}"] for name in ("sft", "numerologic")},
        "early": ["ani.layer=1"],
    }
    compare(seeds=[0], variants=methods, more_seeds={"sft": [3]}, baseline="sft")
    assert {path: file for path, file in files_of(folder / "runs").items() if path in before} == before
    found = {(record["seed"], record["run"]) for record in read(folder / "arithmetic.jsonl")}
    assert found == {(None, "reference"), (0, "early"), (0, "sft"), (3, "sft"), (0, "numerologic")}
    gated = {record["run"] for record in read(folder / "gates.jsonl")}
    assert gated == {"early"}  # the others have no gate
    monkeypatch.setattr(runs, "carry_out", interrupted)  # nothing is left to do
    compare(seeds=[0], variants={"early": ["ani.layer=1"]}, baseline=None)


def test_further_models_are_asked_and_not_trained(compare: Compare, tiny_model: Path, tmp_path: Path) -> None:
    twin = shutil.copytree(tiny_model, tmp_path / "twin")
    page = compare(variants={}, models={"twin": str(twin)}, evaluation={"arithmetic": {"count": 3, "digits": [1]}})
    found = read(page.parent / "arithmetic.jsonl")
    answers = {run: [each["output"] for each in found if each["run"] == run] for run in ("reference", "twin")}
    assert len(answers["twin"]) == 3 and answers["twin"] == answers["reference"]
    assert not [*(page.parent / "runs").rglob("training")]
    refused(lambda: compare(models={"late": str(twin)}), "'late'")


def test_benchmarks_are_in_the_tables(compare: Compare, chat_model: Path, tmp_path: Path) -> None:
    data, folder = tmp_path / "mmlu.jsonl", tmp_path / "results"
    row = {"subject": "anatomy", "choices": ["a", "b", "1", "22"]}
    write_lines(data, *({**row, "question": f"{i}?", "answer": i % 4} for i in range(9)))
    settings = {"variants": {"sft": ["method=sft"]}, "evaluation": {"mmlu": {"data": str(data), "limit": 3}}}
    sums = write_lines(tmp_path / "gsm8k.jsonl", {"question": "1 + 1?", "answer": "#### 2"})
    long = {"overrides": [f"model={chat_model}"], **settings}
    long["evaluation"] = {"gsm8k": {"data": str(sums), "max_new_tokens": 5000}}
    refused(lambda: compare(**long), "5,000", "gsm8k")
    assert not folder.exists()

    printed = StringIO()
    page = compare(overrides=[f"model={chat_model}"], console=Console(file=printed, width=140), **settings)
    records = read(folder / "mmlu.jsonl")
    ids = [record["id"] for record in records[:3]]
    runs = [("reference", None), ("sft", 0), ("sft", 1)]
    assert len(set(ids)) == 3 and min(ids) >= 5  # the first five are the examples
    assert [(r["run"], r["seed"], r["id"]) for r in records] == [(*each, i) for each in runs for i in ids]
    assert len({tuple(record["output"]) for record in records}) == 9
    assert not list(folder.rglob("*.answers.jsonl"))
    share = sum(record["correct"] for record in records[3:]) / 6
    reference = sum(record["correct"] for record in records[:3]) / 3
    markdown = (folder / "comparison.md").read_text()
    assert re.search(rf"\| sft \| \**{share:.1%}\** \(.*, n = 3 × 2 seeds\)", markdown)
    assert f"| MMLU | sft | {100 * (share - reference):+.1f} (" in markdown
    assert "mmlu, questions, sft, seed 1: 3 in" in printed.getvalue() and "n = 3 × 2 seeds" in printed.getvalue()
    assert "Right answers compared to reference" in page.read_text(encoding="utf-8")


SMALL: dict[str, Any] = {"seeds": [0], "variants": {"early": ["ani.layer=1"]}, "reference": False, "baseline": None}


def commanded(path: Path, **options: Any) -> subprocess.Popen[str]:
    """Start `ani compare`, which starts a process per run."""
    command = [sys.executable, "-m", "ani", "compare", str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=path.parent, **options
    )


def started_training(folder: Path, variant: str, process: subprocess.Popen[str]) -> psutil.Process:
    """The process of a run, once it trains."""
    while not [*folder.glob(f"runs/{variant}/*/training/recipe.yaml")]:
        assert process.poll() is None
        time.sleep(0.1)
    return psutil.Process(process.pid).children()[0]


ENDLESS = ["training.steps=100000", "training.save_every=100000"]


def test_runs_in_processes_of_their_own_are_those_of_this_one(write: Write, finished: Path, tmp_path: Path) -> None:
    """One of them fails, and one is killed: the others go on, and the exit code says so."""
    bad = write_lines(tmp_path / "bad.jsonl", {"prompt": "12"})  # is read when its turn comes
    variants = {"bad": [f"data=[{{kind: jsonl, path: {bad}}}]"], "killed": ENDLESS, "early": ["ani.layer=1"]}
    process = commanded(write(**{**SMALL, "variants": variants}, output=str(tmp_path / "two")))
    started_training(tmp_path / "two", "killed", process).kill()
    out, error = process.communicate()
    assert process.returncode == 1, error
    assert "bad.jsonl, line 1: no 'completion'" in error and "killed, seed 0 was ended by signal 9" in error
    assert "bad, seed 0, killed, seed 0 failed" in error
    assert "gates, texts, early, seed 0" in out
    for name in ("arithmetic.jsonl", "gates.jsonl", "language.jsonl"):
        own = [each for each in read(finished / "results" / name) if (each["run"], each["seed"]) == ("early", 0)]
        assert own and read(tmp_path / "two" / name) == own


def test_the_process_of_a_run_ends_with_the_command(write: Write, tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc: only Linux signals a process whose parent was killed")
    process = commanded(write(**SMALL, overrides=ENDLESS))
    own = started_training(tmp_path / "results", "early", process)
    process.kill()
    process.communicate()
    own.wait(60)


if deep():

    def test_benchmarks_are_answered_as_they_would_be_served(
        compare: Compare,
        write: Write,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        need_libnuma()
        base, tokenizer = tmp_path / "base", copy.deepcopy(mistral())  # a small vocabulary, as vLLM starts with it
        tokenizer.chat_template = CHATML
        model = tiny("qwen3", tokenizer=tokenizer, head_dim=32, max_position_embeddings=8192)
        model.generation_config.repetition_penalty = 1.1  # not for `xval` in vLLM
        model.save_pretrained(base)
        tokenizer.save_pretrained(base)
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")  # as the command line sets it
        monkeypatch.setenv("TORCH_LOGS", "-all")
        for logger in (
            "torch._library.triton",
            "transformers.training_args",
        ):  # once a process, in whichever test is first
            caplog.set_level(logging.ERROR, logger)

        data, folder, printed = tmp_path / "gsm8k.jsonl", tmp_path / "results", StringIO()
        write_lines(data, *({"question": f"{i} + {i}?", "answer": f"#### {2 * i}"} for i in range(12)))
        settings: dict[str, Any] = {
            "overrides": [f"model={base}"],
            "variants": {"ours": []},
            "evaluation": {"gsm8k": {"data": str(data), "limit": 3, "max_new_tokens": 4}},
            "seeds": [0],
            "reference": False,
            "baseline": None,
        }
        both = {**settings, "variants": {"ours": [], "xval": ["method=xval"]}}
        compare(backend="vllm", console=Console(file=printed, width=200), **both)
        assert capfd.readouterr().err == ""
        served, said = read(folder / "gsm8k.jsonl"), printed.getvalue()
        assert "; gsm8k by vLLM on merged weights in" in said and ", of xval by transformers on the same." in said
        assert "xval, seed 0: by transformers, not vLLM (" in said and "ours, seed 0: by transformers" not in said
        assert [record["run"] for record in served] == ["ours"] * 3 + ["xval"] * 3
        assert not list(folder.rglob("*merged*")) and not list(folder.rglob("*.answers.jsonl"))
        found = [read_run(place(folder, name)) for name in ("ours", "xval")]
        assert [run and run.backend for run in found] == ["vllm", "transformers"]
        page = (folder / "report.html").read_text(encoding="utf-8")
        assert "gsm8k by vLLM on merged weights in" in page and "Engine" not in page


def test_a_folder_of_something_or_somebody_else_is_refused(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    with FileLock(tmp_path / "results" / ".lock"):
        refused(compare, "another process works on")
    assert not files_of(tmp_path / "results")
    (tmp_path / "results" / "arithmetic.jsonl").write_text("mine")
    refused(compare, "comparison.yaml")
    assert files_of(tmp_path / "results").keys() == {Path("arithmetic.jsonl")}


BAD = {
    "sed=1": "'sed' … 'seeds'",
    "evaluation.arithmetic.digit=[2]": "evaluation.arithmetic.problems.0.digit",
    "evaluation.arithmetic=[{count: 5}, {count: 5, digits: [2, 3]}]": "evaluation.arithmetic: addition of 2",
    "evaluation.gatez.limit=5": "gatez … gates",
    "evaluation={gates: {limit: 5}}": "reference: false",
    "evaluation.arithmetic.count=1000000": "test split",
    "evaluation.language.field=text": "language.jsonl, line 1: … 'text'",
    "more_seeds={early: [1]}": "seeds",
    "more_seeds={sft: [0]}": "more_seeds: … 'sft'",
    "published={sft: {math: 50}}": "published: … 'sft'",
    "baseline=later": "baseline 'later'",
    "variants={a/b: []}": "variant 'a/b'",
    "variants={reference: []}": "variant 'reference'",
    "variants.late=[ani.layers=2]": "variant 'late': … 'ani.layers' … 'layer'",
    "variants.late=[method=xval, ani.layer=2]": "'xval' … ani.layer",
    "variants.late=[ani.layer=4]": "variant 'late': layer=4",
    "variants.late=[quantization=nf4, lora=null]": "variant 'late': … 4-bit",
    "variants.late=[data_seed=7]": "variant 'late' … data_seed",
    "recipe=gone.yaml": "gone.yaml",
    "overrides=[model=gone/model]": "'gone/model'",
}


def test_bad_comparisons_leave_nothing(compare: Compare, tmp_path: Path) -> None:
    for override, message in BAD.items():
        refused(lambda override=override: compare(override), message)
        assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_shipped_comparisons_are_valid(path: Path) -> None:
    found = load_settings(path, Comparison)
    assert list(variant_recipes(path)) == list(found.variants)
    wanted = [name for name, settings in found.evaluation.items() if settings is not None]
    assert [task.name for task in evaluation_tasks(found, str(path))] == wanted


def test_other_data_makes_another_run(compare: Compare, tmp_path: Path) -> None:
    data = tmp_path / "sums.jsonl"
    settings: dict[str, Any] = {
        "overrides": ["lora.dropout=0", f"data=[{{kind: jsonl, path: {data}}}]"],
        "variants": {"early": ["ani.layer=1"]},
        "seeds": [0],
        "reference": False,
        "baseline": None,
    }
    for first in (10, 20):
        sums = ({"prompt": f"{i} + 1 =", "completion": f" {i + 1}"} for i in range(first, first + 20))
        write_lines(data, *sums)
        compare(**settings)
    assert len([*(tmp_path / "results" / "runs" / "early").glob("seed-0*")]) == 2


def test_another_budget_is_noted(compare: Compare, tmp_path: Path) -> None:
    printed = StringIO()
    other_rate = ["method=sft", "training.module_learning_rate=0.5", "training.loss_on=all"]
    variants = {"sft": other_rate, "short": ["method=sft", "training.steps=2"]}
    compare(seeds=[0], variants=variants, console=Console(file=printed, width=200))
    note = "short has other training than the recipe"
    assert note in printed.getvalue()
    assert note in (tmp_path / "results" / "comparison.md").read_text()
    assert "sft has other" not in printed.getvalue()
