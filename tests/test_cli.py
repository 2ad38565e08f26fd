import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import typer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import ani.cli
from ani.errors import InputError
from ani.evaluation.tasks.routing import Routing
from ani.results.records import TRAINING_LOG
from ani.training.checkpoints import ADAPTER
from ani.training.recipe import load_recipe
from tests.fixtures import save_tiny_llama
from tests.json_lines import read_lines as read
from tests.json_lines import write_lines as save
from tests.tokenizers import gemma_like
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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_argument(run: Run, command: str) -> None:
    assert command in run("--help", code=0).out
    assert "Usage" in "".join(run(code=2)[1:])
    done = run(command, "--help", code=0)
    assert "Usage: " in done.out and f"ani {command}" in done.out and done.err == ""
    for parameter in COMMANDS[command].params:
        if getattr(parameter, "hidden", False):
            continue
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
        assert all(name in done.out for name in names), names


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
    assert "step    2/2" in done.out and " GiB free\n" in done.out
    assert str(output / ADAPTER) in done.out
    recipe = load_recipe(output / "recipe.yaml")
    assert recipe.lora is not None
    assert (recipe.training.steps, recipe.training.learning_rate, recipe.lora.r) == (2, 1e-4, 2)
    assert_refused(run("train", "--resume", output), "is finished", str(output))

    results = tmp_path / "results"
    arguments = ["eval", "--model", tiny_model, "--adapter", output / ADAPTER, "--out", results, "--limit", "2"]
    asked = ("--tasks", "arithmetic,gates", "--operations", "addition,subtraction", "--json")
    scores = json.loads(run(*arguments, *asked, code=0).out)
    assert set(scores["arithmetic"]) == {"addition", "subtraction"}
    every = [lengths.pop("all") for lengths in scores["arithmetic"].values()]
    assert all(score["total"] == 12 for score in every)
    by_length = [score for lengths in scores["arithmetic"].values() for score in lengths.values()]
    assert all(set(lengths) == {"2", "4", "6", "8", "10", "12"} for lengths in scores["arithmetic"].values())
    assert all(score["total"] == 2 and 0 <= score["low"] <= score["high"] <= 1 for score in by_length)
    decisions = [number for record in read(results / "gates.jsonl") for number in record["numbers"]]
    (whole,) = (row for row in scores["gates"] if row["group"] is None)
    for role in ("nominal", "quantitative"):
        score, of_role = whole["measures"][role], [decision for decision in decisions if decision["role"] == role]
        assert score["total"] == len(of_role)
        assert score["right"] == sum(decision["injected"] is (role == "quantitative") for decision in of_role)
    assert len(read(results / "arithmetic.jsonl")) == 24
    shown = run(*arguments, "--tasks", "gates", code=0).out
    assert "Numbers injected" in shown and " GiB free\n" in shown

    shutil.copy(output / TRAINING_LOG, results / TRAINING_LOG)
    assert str(results / "report.html") in run("report", results, code=0).out
    page = (results / "report.html").read_text()
    # The second run replaced its own task's results and kept the other's.
    assert "Results: arithmetic, gates" in page and "Arithmetic</h2>" in page
    other = run("eval", "--model", tiny_model, "--out", results, "--limit", "1")
    assert_refused(other, str(results), str(tiny_model), str(output / ADAPTER))
    assert (results / "arithmetic.jsonl").is_file()


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    """Data of three tasks; MMLU asks two questions of each subject, as the others are its examples."""
    fields = ["anatomy", "marketing"]
    mmlu = [
        {"subject": field, "question": f"Is {i} odd?", "choices": ["1", "yes", "no", "maybe"], "answer": i % 4}
        for field in fields
        for i in range(7)
    ]
    tokens = ["Due", "in", "2031", ",", "120", "million"]
    tags = ["O", "O", "B-DebtInstrumentMaturityDate", "O", "B-DebtInstrumentFaceAmount", "O"]
    return {
        "gsm8k": save(
            tmp_path / "gsm8k.jsonl",
            *({"question": f"Ann has {i} figs and 12 nuts. How many?", "answer": f"#### {i + 12}"} for i in range(3)),
        ),
        "mmlu": save(tmp_path / "mmlu.jsonl", *mmlu),
        "finer": save(tmp_path / "finer.jsonl", {"tokens": tokens, "ner_tags": tags}),
    }


def test_evaluate_benchmarks_and_report(
    run: Run, chat_model: Path, tiny_adapter: Path, data: dict[str, Path], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    arguments = ["eval", "--model", chat_model, "--adapter", tiny_adapter, "--limit", "2", "--max-new-tokens", "2"]
    for task in ("gsm8k", "mmlu"):
        arguments += ["--data", f"{task}={data[task]}"]
    done = run(*arguments, "--tasks", "gsm8k,mmlu,routing", "--out", results, "--json", code=0)
    names = {"gsm8k.jsonl", "mmlu.jsonl", "routing.jsonl"}
    assert {path.name for path in results.iterdir()} == {*names, "run.json"}
    scores = json.loads(done.out)
    for task in ("gsm8k", "mmlu"):
        records = read(results / f"{task}.jsonl")
        assert len(records) == 2 and not any(record["truncated"] for record in records)
        assert scores[task]["all"]["total"] == 2
        assert scores[task]["all"]["right"] == sum(record["correct"] for record in records)
    groups = [record["group"] for record in read(results / "mmlu.jsonl")]
    assert {group: scores["mmlu"][group]["total"] for group in groups} == {g: groups.count(g) for g in groups}
    queries = read(results / "routing.jsonl")
    assert [query["query"] for query in queries] == [query.text for query in Routing(limit=2).questions(seed=0)]
    assert all(number["injected"] is not None for query in queries for number in query["numbers"])
    assert sum(scores["routing"][call]["right"] for call in ("called", "malformed", "none")) == 2
    facts = json.loads((results / "run.json").read_text())
    assert facts["settings"]["gsm8k"]["generation"]["max_gen_toks"] == 2
    assert facts["settings"]["mmlu"]["of"] == 4
    assert facts["adapter"] == str(tiny_adapter)

    assert run("report", results).code == 0
    page = (results / "report.html").read_text()
    assert all(f'<section id="{anchor}"' in page for anchor in ("benchmarks", "tool-routing", "provenance"))

    base = tmp_path / "base"
    options = ["--data", f"mmlu={data['mmlu']}", "--limit", "2"]
    shown = run("eval", "--model", chat_model, "--tasks", "mmlu,routing", *options, "--out", base, code=0)
    assert "Right answers by level or group" in shown.out and "Tool routing" in shown.out
    assert {path.name for path in base.iterdir()} == {"mmlu.jsonl", "routing.jsonl", "run.json"}
    assert json.loads(run("diff", results, base, "--json").out).keys() == {"mmlu"}


def test_an_interrupted_evaluation_goes_on(
    run: Run, chat_model: Path, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["eval", "--model", chat_model, "--tasks", "gsm8k", "--data", f"gsm8k={data['gsm8k']}"]
    arguments += ["--max-new-tokens", "2", "--batch-size", "1", "--out"]
    assert run(*arguments, tmp_path / "unbroken").code == 0
    whole, results = read(tmp_path / "unbroken" / "gsm8k.jsonl"), tmp_path / "results"
    counted: list[int] = []
    patience = 3  # nothing was there, one question, another

    @contextmanager
    def counting(*_: object) -> Iterator[Callable[[int], None]]:
        def count(amount: int) -> None:
            counted.append(amount)
            if len(counted) == patience:
                raise KeyboardInterrupt

        yield count

    monkeypatch.setattr("ani.evaluation.evaluate.counting", counting)
    assert run(*arguments, results).code == 130
    assert {path.name for path in results.iterdir()} == {"gsm8k.answers.jsonl", "run.json"}
    assert len((results / "gsm8k.answers.jsonl").read_text().splitlines()) == 2
    counted.clear()
    patience = 0
    assert run(*arguments, results).code == 0
    assert counted == [2, 1]  # two were there already
    assert read(results / "gsm8k.jsonl") == whole and len(whole) == 3
    assert {path.name for path in results.iterdir()} == {"gsm8k.jsonl", "run.json"}


def test_gates(run: Run, tiny_model: Path, tiny_adapter: Path, data: dict[str, Path], tmp_path: Path) -> None:
    notes, results = tmp_path / "notes.txt", tmp_path / "results"
    notes.write_text(f"{TEXT}\n\nno number\n{TEXT}, 12 of 99\n")
    arguments = ["eval", "--tasks", "gates", "--model", tiny_model, "--adapter", tiny_adapter, "--out", results]
    texts = [f"mmlu={data['mmlu']}", notes, f"finer={data['finer']}"]
    asked = [word for text in texts for word in ("--texts", text)]
    *shares, finer = json.loads(run(*arguments, *asked, "--json", code=0).out)["gates"]
    found = [
        (share["source"], share["group"], share["texts"], share["measures"]["numbers"]["total"]) for share in shares
    ]
    # Two numbers in a question and its choices, two and four in the notes.
    assert found[0] == ("mmlu", None, 4, 8) and found[3] == ("notes", None, 3, 6)
    assert sorted(found[1:3]) == [("mmlu", "anatomy", 2, 4), ("mmlu", "marketing", 2, 4)] and len(found) == 4
    records = read(results / "gates.jsonl")
    opened = [number["injected"] for record in records if record["source"] == "notes" for number in record["numbers"]]
    assert shares[3]["measures"]["numbers"]["right"] == sum(opened) and 0 < sum(opened) < 6
    assert shares[3]["measures"]["texts_open"]["total"] == 2
    assert [number["text"] for number in records[-1]["numbers"]] == ["2031", "120"]
    assert finer["measures"]["nominal"]["total"] == finer["measures"]["quantitative"]["total"] == 1
    assert json.loads((results / "run.json").read_text())["settings"]["gates"]["texts"][1] == str(notes)
    assert run("report", results).code == 0
    assert '<section id="gates"' in (results / "report.html").read_text()
    options = ("--texts", data["gsm8k"], "--field", "question", "--group", "answer", "--limit", "2")
    assert "How often gates are open" in run(*arguments, *options, code=0).out
    assert {record["group"] for record in read(results / "gates.jsonl")} < {"#### 12", "#### 13", "#### 14"}


def test_diff(run: Run, tmp_path: Path) -> None:
    for name, solved in (("[a]", [True, True, False]), ("b", [False, False, False])):
        (tmp_path / name).mkdir()
        answers = [{"task": "gsm8k", "id": i, "correct": c, "prompt_hash": f"{i}"} for i, c in enumerate(solved)]
        save(tmp_path / name / "gsm8k.jsonl", *answers)
    one, two = tmp_path / "[a]", tmp_path / "b"
    found = json.loads(run("diff", one, two, "--json").out)
    assert found.keys() == {"gsm8k"} and found["gsm8k"].keys() == {"all", "changed"}
    assert found["gsm8k"]["all"]["value"] == pytest.approx(2 / 3)
    assert json.loads(run("diff", two, one, "--json").out)["gsm8k"]["all"]["p"] == 1
    shown = run("diff", one, two)
    assert shown.code == 0 and "+66.7" in shown.out and "GSM8K" in shown.out
    assert_refused(run("diff", one, one), "would be compared to itself")


def test_a_dry_run_checks_recipe_and_data_and_writes_nothing(run: Run, tiny_recipe: Write, tmp_path: Path) -> None:
    recipe = tiny_recipe()
    assert "32 examples" in (out := run("train", "--dry-run", recipe, "training.steps=1200", code=0).out)
    assert "1,200 steps" in out
    for wrong in (["ani.layer=9"], ["ani.layer=paper"], ["data=[{kind: jsonl, path: '[gone].jsonl'}]"]):
        assert_refused(
            run("train", "--dry-run", recipe, *wrong), wrong[0].split("'")[1] if "'" in wrong[0] else "layer"
        )
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


@pytest.mark.parametrize("command", ["inspect 5", "playground", "eval --out o", "merge"])
def test_an_adapter_knows_its_model(
    run: Run, tiny_model: Path, tiny_adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == "playground":
        pytest.importorskip("gradio")  # which may say something when it is imported

    def asked_for(name: str) -> None:
        raise InputError(f"asked for {name}")

    def with_adapter(path: Path, *options: str | Path) -> Done:
        adapter = [path, "o"] if command == "merge" else ["--adapter", path]
        return run(*command.split(), *adapter, *options)

    for module in ("ani.evaluation.model_spec", "ani.serving.merge"):
        monkeypatch.setattr(f"{module}.load_tokenizer", asked_for)
    assert_refused(with_adapter(tiny_adapter), f"asked for {tiny_model}")
    moved = Path(shutil.copytree(tiny_adapter, tmp_path / "moved"))
    config = json.loads((moved / "ani_config.json").read_text())
    (moved / "ani_config.json").write_text(json.dumps({**config, "base": {"name": "/gone/model"}}))
    assert_refused(with_adapter(moved), f"{moved} was trained on /gone/model, which isn't there any more", "--model")
    assert_refused(with_adapter(moved, "--model", tiny_model), f"asked for {tiny_model}")


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
        (["train", "[gone]/recipe.yaml"], ["[gone]/recipe.yaml does not exist"]),
        (["train", "--resume", "[gone]"], ["[gone]", "recipe.yaml"]),
        (["inspect", "5", "--model", "other"], ["no model 'other'"]),
        (["inspect", "5", "--model", "no/such-model", "--adapter", "x"], ["'no/such-model'", "smollm2"]),
        (["compare", "x.yaml", "--gpus-per-run", "2"], ["--gpus-per-run is for --ray"]),
        (["inspect", "5", "--model", "[x]/gone", "--adapter", "x"], ["'[x]/gone'"]),
        (["eval", "--out", "out", "--tasks", "arithmetics"], ["unknown task 'arithmetics'", "known are arithmetic, "]),
        (["eval", "--out", "out", "--tasks", ","], ["unknown task ','"]),
        (["eval", "--out", "out", "--tasks", "routing,gsm8"], ["unknown task 'gsm8'; did you mean gsm8k?"]),
        (["eval", "--out", "out", "--data", "foo"], ["--data must be like gsm8k=PATH, not 'foo'"]),
        (["eval", "--out", "out", "--data", "gsm8k="], ["--data must be like gsm8k=PATH, not 'gsm8k='"]),
        (["compare", "gone.yaml"], ["recipe gone.yaml does not exist"]),
        (["diff", "one"], ["'baseline'"]),
        (
            ["diff", "[one]", "two"],
            ["[one] holds none of arithmetic.jsonl, arithmetic-chat.jsonl, reading.jsonl, gsm8k.jsonl"],
        ),
        (["eval", "--out", "out", "--operations", "power"], ["unknown operation 'power'"]),
        (["eval", "--out", "out", "--tasks", "gates"], ["the task gates needs --adapter"]),
        (["report", "gone"], ["gone"]),
        (["report", "."], ["arithmetic.jsonl"]),
        (["demo", "training.stepps=1"], ["did you mean 'steps'"]),
    ],
)
def test_bad_arguments(run: Run, arguments: list[str], parts: list[str]) -> None:
    assert_refused(run(*arguments), *parts)
    assert list(Path.cwd().iterdir()) == []


def test_compare_refuses_what_is_no_comparison(run: Run, tiny_recipe: Write) -> None:
    assert_refused(run("compare", tiny_recipe()), "recipe.yaml", "key 'recipe' is missing")
    assert_refused(run("compare", tiny_recipe(), "seeds"), "override 'seeds' must have the form key=value")


def test_bad_recipes(run: Run, tiny_recipe: Write, tmp_path: Path) -> None:
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
        ("", "data.jsonl"),
        ('{"prompt": "1", "completion": "2"}\n{"prompt": "[1]", "comp', "data.jsonl, line 2: not valid JSON"),
        ('{"prompt": "[b]1[/b]"}', "data.jsonl, line 1: no 'completion'"),
    ],
)
def test_bad_data(run: Run, tiny_recipe: Write, tmp_path: Path, content: str, message: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(content)
    assert_refused(run("train", tiny_recipe(data=[{"kind": "jsonl", "path": str(data)}])), message)
    assert not (tmp_path / "run").exists()


def test_bad_models(run: Run, tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
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


def test_bad_adapters(run: Run, tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"

    def evaluate(adapter: Path | str) -> Done:
        return run("eval", "--model", tiny_model, "--adapter", adapter, "--tasks", "gates", "--out", results)

    assert_refused(evaluate("no/such-adapter"), "no adapter at no/such-adapter")
    assert_refused(evaluate(tmp_path / "[gone]"), "no adapter at", "[gone]")
    assert_refused(evaluate(tiny_model), "no ani_config.json")
    damaged = tmp_path / "[damaged]"
    shutil.copytree(tiny_adapter, damaged)
    weights = damaged / "ani.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert_refused(evaluate(damaged), "[damaged]/ani.safetensors")
    assert not results.exists()


def test_bad_evaluations(
    run: Run, tiny_model: Path, chat_model: Path, tiny_adapter: Path, data: dict[str, Path], tmp_path: Path
) -> None:
    def evaluate(model: Path, *arguments: str) -> Done:
        return run("eval", "--model", model, "--out", tmp_path / "results", *arguments)

    assert_refused(evaluate(tiny_model, "--data", "arithmetic=x"), "the task arithmetic takes no data", "gsm8k, math")
    long = ("--tasks", "gsm8k", "--data", f"gsm8k={data['gsm8k']}", "--max-new-tokens", "5000")
    assert_refused(evaluate(chat_model, *long), "answers of up to 5,000 tokens to gsm8k leave no room")
    broken = save(tmp_path / "[broken].jsonl", *read(data["mmlu"])[:1], {"question": "Why?"})
    for task, message in (("mmlu", "no 'subject'"), ("gsm8k", "'answer' has a value")):
        done = evaluate(chat_model, "--adapter", str(tiny_adapter), "--tasks", task, "--data", f"{task}={broken}")
        assert_refused(done, f"{broken}, line {2 if task == 'mmlu' else 1}: {message}")
    assert not (tmp_path / "results").exists()


def test_bad_gates(run: Run, tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    ani.attach(model, gemma_like(), ani.AniConfig(layer=1, gate="open"))
    ani.save_adapter(model, tmp_path / "open")
    results, notes = tmp_path / "results", tmp_path / "notes.txt"
    results.mkdir()
    save(results / "gates.jsonl", {"of": "an earlier run"})
    notes.write_text("12\n")

    def gates(*texts: Path | str, adapter: Path = tiny_adapter) -> Done:
        asked = [word for text in texts for word in ("--texts", text)]
        of = ("--model", tiny_model, "--adapter", adapter, "--out", results)
        return run("eval", "--tasks", "gates", *asked, *of)

    assert_refused(gates(notes, adapter=tmp_path / "open"), "the task gates needs an adapter with a gate", "open")
    assert_refused(gates("[gone].txt"), "[gone].txt can't be read")
    assert_refused(gates("mmlu=gone.jsonl"), "data file gone.jsonl does not exist")
    assert_refused(gates(save(tmp_path / "x.jsonl", {"txt": ""})), "x.jsonl, line 1: no text under 'text'", "'txt'")
    assert_refused(gates(notes, save(tmp_path / "notes.jsonl", {"text": "3"})), "texts called 'notes' already")
    notes.write_text("12\n" + "word " * 600)
    assert_refused(gates(notes), "of notes has", "but the model reads 512")
    assert read(results / "gates.jsonl") == [{"of": "an earlier run"}]


def test_bad_outputs(run: Run, tiny_model: Path, tiny_adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run("eval", "--model", tiny_model, "--tasks", "arithmetic", "--limit", "1", "--out", tmp_path / "file")
    assert_refused(done, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    arguments = ["--model", tiny_model, "--adapter", tiny_adapter, "--limit", "1000000", "--out", tmp_path / "out"]
    assert_refused(run("eval", "--tasks", "gates", *arguments), "count is 1000000")


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
