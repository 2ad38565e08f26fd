"""What the code of commit 8cac4ba wrote is read as it was, and makes the same tables (`tests/stored/README.md`)."""

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from ani.tasks import TASKS, presented, read_results
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

import ani

# All that these tests know of the package's inside.
from ani import cells, comparison
from ani.evaluation.diff import compare_folders
from ani.models import load_model, load_tokenizer
from ani.probing.curve import layers_table
from ani.report import build_report
from ani.report.layers import read_curve, read_selection
from ani.results.tables import Fitted, Table, markdown
from ani.training.recipe import load_recipe
from ani.training.run import resume_recipe, train

STORED = Path(__file__).parent / "stored"
TEXTS = (
    "Room 505 has a capacity of 10.",
    "Bus 42 needs 1,234.5 litres, 7% more than in 2019; -3 of them are left.",
    "Calculate 345 + 678 =",
)


@pytest.fixture(autouse=True)
def in_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files name each other by relative paths."""
    monkeypatch.chdir(STORED)


# --- what is printed --------------------------------------------------------------------------------------------------


def shown(tables: Iterable[Table]) -> str:
    """As the command line prints tables where there is no terminal."""
    out = io.StringIO()
    console = Console(width=120, file=out)
    for table in tables:
        console.print(Fitted(table))
    return out.getvalue()


def eval_tables(folder: str) -> list[Table]:
    """Then `ani eval` printed no kinds of errors, and went by another order of tasks."""
    found = read_results(Path(folder))
    order = ("arithmetic", "gating", "gsm8k", "math", "mmlu", "routing", "finer")
    tables = [table for name in order if (records := found.get(TASKS[name])) for table in TASKS[name].tables(records)]
    return [table for table in tables if not table.caption.startswith("How wrong")]


def compared() -> list[Table]:
    results = presented(read_results(Path("comparison")))
    return [table for task, records in results for table in task.tables(records, "sft")]


def probed() -> Table:
    curve = read_curve(Path("probe"))
    return layers_table(curve, read_selection(Path("probe"), curve))


PRINTED: dict[str, Callable[[], str]] = {
    "eval.txt": lambda: shown(eval_tables("eval")),
    "eval-other.txt": lambda: shown(eval_tables("eval-other")),
    "compare.txt": lambda: shown(compared()),
    "gate-shares.txt": lambda: shown(
        TASKS["gate-shares"].tables(read_results(Path("gate-shares"))[TASKS["gate-shares"]])
    ),
    "probe.txt": lambda: shown([probed()]),
    "diff.txt": lambda: shown(compare_folders(Path("eval"), Path("eval-other"))[0]),
    "demo.txt": lambda: shown(eval_tables("demo")),
}


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=0) + "\n"


def summaries(folder: str) -> dict[str, Any]:
    """What `ani eval --json` and `ani gate-shares --json` print, from the folder's records."""
    return {task.name: task.summary(records) for task, records in read_results(Path(folder)).items()}


def by_digits_alone(found: dict[str, Any]) -> dict[str, Any]:
    """Then the summary of `arithmetic` had no "all"."""
    for shares in found["arithmetic"].values():
        del shares["all"]
    return found


def operations_first(found: dict[str, Any]) -> dict[str, Any]:
    """Then operations stood beside benchmarks, and those of `arithmetic` and `arithmetic-chat` were one."""
    return {**found.pop("arithmetic"), **found}


JSON: dict[str, Callable[[], str]] = {
    "eval.json": lambda: as_json(by_digits_alone(summaries("eval"))),
    "gate-shares.json": lambda: as_json(summaries("gate-shares")["gate-shares"]),
    "diff.json": lambda: as_json(operations_first(compare_folders(Path("eval"), Path("eval-other"))[1])),
}


@pytest.mark.parametrize("name", PRINTED)
def test_tables_are_the_same_byte_for_byte(name: str) -> None:
    """But for `diff.txt`, stored anew: what is too wide was cut off with "…" then, and stands in blocks now."""
    assert PRINTED[name]() == Path("printed", name).read_text(encoding="utf-8")


def test_the_comparison_wrote_its_tables_too() -> None:
    assert Path("comparison/comparison.md").read_text(encoding="utf-8").endswith(markdown(compared()))


@pytest.mark.parametrize("name", JSON)
def test_json_says_the_same(name: str) -> None:
    found, stored = json.loads(JSON[name]()), json.loads(Path("printed", name).read_text(encoding="utf-8"))
    assert rounded(found) == rounded(stored)


def rounded(value: Any) -> Any:
    """Floats to 9 digits: the last ones are the platform's."""
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {key: rounded(part) for key, part in value.items()}
        case list():
            return [rounded(part) for part in value]
    return value


# --- the page ---------------------------------------------------------------------------------------------------------


class PageText(HTMLParser):
    """The page's text by section: a line a heading, note, row or entry; drawings by their description."""

    LINES = frozenset(
        {"h1", "h2", "h3", "p", "caption", "summary", "tr", "li", "dt", "dd", "figure", "table", "section"}
    )

    def __init__(self) -> None:
        super().__init__()
        self.sections: dict[str, list[str]] = {"": []}
        self.parts: list[str] = []
        self.title = ""
        self.hidden = 0
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("svg", "style", "title")
        if tag in self.LINES:
            self.end_line()
        elif tag in ("td", "th") and self.parts:
            self.parts.append(" | ")
        elif tag in ("br", "small"):
            self.parts.append(" ")
        self.in_title = self.in_title or tag == "h2"
        if (described := dict(attrs)).get("role") == "img":
            self.end_line()
            self.add(f"({described['aria-label']})")

    def handle_endtag(self, tag: str) -> None:
        if tag == "h2":
            self.title = " ".join("".join(self.parts).split())
            self.sections[self.title], self.parts, self.in_title = [], [], False
        elif tag in self.LINES:
            self.end_line()
        self.hidden -= tag in ("svg", "style", "title")

    def handle_data(self, data: str) -> None:
        if not self.hidden and (self.parts or data.strip()):
            self.parts.append(data)

    def end_line(self) -> None:
        line, self.parts = " ".join("".join(self.parts).split()), []
        self.add(line)

    def add(self, line: str) -> None:
        if line and not self.in_title and line not in self.sections[self.title]:
            self.sections[self.title].append(line)


def page_text(page: Path) -> dict[str, list[str]]:
    """Without what differs between machines and versions: the page's last section."""
    parser = PageText()
    parser.feed(page.read_text(encoding="utf-8"))
    parser.close()
    return {title: parser.sections[title] for title in sorted(parser.sections) if title != "Provenance"}


def report(folder: str) -> dict[str, list[str]]:
    """The text of the page that the folder's files make."""
    with TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        return page_text(build_report(Path(copy)))


def _paged(folder: str) -> Callable[[], str]:
    return lambda: as_json(report(folder))


PAGES: dict[str, Callable[[], str]] = {
    f"{folder}.page.json": _paged(folder)
    for folder in ("comparison", "eval", "gate-shares", "probe", "demo", "training")
}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_lost_nothing(name: str) -> None:
    found = json.loads(PAGES[name]())
    stored: Mapping[str, Iterable[str]] = json.loads(Path("printed", name).read_text(encoding="utf-8"))
    assert stored.keys() <= found.keys()
    for title, lines in stored.items():
        assert [line for line in lines if line not in found[title]] == [], title


# --- adapters, checkpoints, runs --------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def with_adapter() -> Loaded:
    loaded = Loaded(load_model("model", dtype="float32", device="cpu"), load_tokenizer("model"))
    ani.load_adapter(loaded.model, loaded.tokenizer, "training/adapter")
    return loaded


def merged() -> Loaded:
    with TemporaryDirectory() as folder:  # the tokenizer is stored once
        for stored in ("model", "merged"):
            shutil.copytree(stored, folder, dirs_exist_ok=True)
        return Loaded(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), load_tokenizer(folder))


LOADED: dict[str, Callable[[], Loaded]] = {"adapter": with_adapter, "merged": merged}


def facts_of(loaded: Loaded) -> list[dict[str, Any]]:
    """Of each text: what the gate decides, the last token's first logits, and what is written on."""
    model, tokenizer = loaded
    facts = []
    for text in TEXTS:
        encoded = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**encoded).logits[0, -1, :8]
            ids = model.generate(**encoded, max_new_tokens=8, do_sample=False)[0, encoded["input_ids"].shape[1] :]
        numbers = [
            {
                "text": number.text,
                "value": str(number.value),
                "start": number.start,
                "end": number.end,
                "alpha": round(number.alpha, 6),
                "injected": number.injected,
            }
            for number in ani.inspect(model, tokenizer, text)
        ]
        facts.append(
            {
                "text": text,
                "numbers": numbers,
                "logits": [round(value, 6) for value in logits.tolist()],
                "written": ids.tolist(),
            }
        )
    return facts


def adapter_facts() -> dict[str, Any]:
    return {name: facts_of(load()) for name, load in LOADED.items()}


@pytest.mark.parametrize("name", LOADED)
def test_decisions_and_logits_are_the_same(name: str) -> None:
    stored = json.loads(Path("adapter.json").read_text(encoding="utf-8"))[name]
    for found, expected in zip(facts_of(LOADED[name]()), stored, strict=True):
        assert found["written"] == expected["written"]
        torch.testing.assert_close(
            torch.tensor(found["logits"]), torch.tensor(expected["logits"]), rtol=1e-4, atol=1e-5
        )
        for number, before in zip(found["numbers"], expected["numbers"], strict=True):
            assert number.pop("alpha") == pytest.approx(before.pop("alpha"), abs=2e-6)
            assert number == before


def test_a_stopped_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkpoint of then, to the same losses and gates."""
    shutil.copytree("stopped", tmp_path / "training")
    shutil.copytree("model", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    train(resume_recipe(Path("training")), resume=True)
    found, stored = (lines(folder / "training/training_log.jsonl") for folder in (tmp_path, STORED))
    assert [line["step"] for line in found] == [line["step"] for line in stored]
    for line, before in zip(found, stored, strict=True):
        for key in before.keys() - {"tokens_per_second"}:
            assert line[key] == pytest.approx(before[key], rel=1e-3, abs=1e-4), (line["step"], key)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_finished_comparison_is_not_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are put back as they were, from the results that were merged of them."""
    for name in ("comparison", "model", "data"):
        shutil.copytree(name, tmp_path / name)
    shutil.copy("comparison-of.yaml", tmp_path)
    # What was the default then.
    recipe = Path("recipe.yaml").read_text().replace("  role_weight", "  policy: terminal\n  role_weight")
    (tmp_path / "recipe.yaml").write_text(recipe + "probe: {data: contrastive}\n")
    monkeypatch.chdir(tmp_path)
    folder = Path("comparison")
    before = {file.name: lines(file) for file in folder.glob("*.jsonl")}
    for cell in json.loads((folder / "run.json").read_text())["cells"]:
        name, seed = cell.pop("variant"), cell.pop("seed")
        place = folder / "cells" / name / ("." if seed is None else f"seed-{seed}")
        (place / "training" / "adapter").mkdir(parents=True)
        (place / "training" / "adapter" / "ani_config.json").write_text(json.dumps(cell))
        for file in folder.glob("*.jsonl"):
            mine = [r for r in lines(file) if (r.get("run"), r.get("seed")) == (name, seed)]
            if mine:
                (place / file.name).write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in mine))

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(cells, "train", never)
    monkeypatch.setattr(cells, "load_model", never)
    # Then this was the default; a comparison that was begun so goes on so.
    comparison.run_comparison("comparison-of.yaml", Console(quiet=True), recipe_overrides=["ani.sign=phase"])
    assert {name: lines(folder / name) for name in before} == before


def test_recipes_are_read() -> None:
    for folder in ("training", "stopped"):
        recipe = load_recipe(Path(folder, "recipe.yaml"))
        assert (recipe.model, recipe.output, recipe.training.steps) == ("model", "training", 40)
