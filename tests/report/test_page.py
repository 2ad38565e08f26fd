"""The page: its numbers by formula, hostile text, missing and malformed files."""

import json
import math
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ani.probing.curve import LayerPoint
from ani.report import build_report
from tests.json_lines import write_lines
from tests.refusals import refused

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> $\\frac$ [red]{{ 7*7 }}&amp; url(http://a.b)"


def write(folder: Path, name: str, records: list[dict[str, Any]]) -> None:
    write_lines(folder / name, *records)


def answer(run: str, digits: int, correct: bool, **more: Any) -> dict[str, Any]:
    problem = {"prompt": "1 + 2 =", "answer": "3", "output": " 3", "prediction": "3"}
    return {"run": run, "operation": "addition", "digits": digits, "correct": correct, **problem, **more}


def decided(text: str, *numbers: tuple[float | None, bool], role: str | None = None, **more: Any) -> dict[str, Any]:
    """A record of a text with α and the decision of each number."""
    places = [match.span() for match in re.finditer(r"\d+", text)][: len(numbers)]
    found = [
        {"text": text[start:end], "value": text[start:end], "start": start, "end": end, "alpha": alpha}
        | {"injected": injected, "role": role}
        for (start, end), (alpha, injected) in zip(places, numbers, strict=True)
    ]
    return {"source": "diagnostic", "text": text, "numbers": found, **more}


def text_loss(run: str, kind: str, loss: float, **more: Any) -> dict[str, Any]:
    return {"run": run, "seed": None, "kind": kind, "text": "some words", "tokens": 2, "loss": loss, **more}


def benchmark_answer(run: str, task: str, number: int, correct: bool, **more: Any) -> dict[str, Any]:
    question = {"id": number, "question": "?", "prompt_hash": str(number), "prediction": "3", "truncated": False}
    return {"run": run, "task": task, "correct": correct, **question, **more}


def routed(call: str, exact: bool, numbers: list[tuple[str, bool | None, bool | None]]) -> dict[str, Any]:
    """A record of a query; each number is (role, injected, passed)."""
    keys = ("role", "injected", "passed")
    place = {"text": "5", "value": "5", "start": 0, "end": 1}
    listed = [{**place, **dict(zip(keys, n, strict=True))} for n in numbers]
    return {"query": f"What of the {call}?", "call": call, "exact": exact, "numbers": listed}


HELD_OUT = {0: 0.55, 4: 0.7, 9: 0.82, 14: 0.9, 19: 0.91, 24: 0.89}


def point(layer: int, held_out: float, **changes: Any) -> LayerPoint:
    above = {"random_split": (0.04, 0.02, 0.05), "held_out": (0, -0.02, 0.03), "selectivity": (-0.5, -0.53, -0.48)}
    estimates = {
        f"{name}{end}": held_out + more
        for name, ends in above.items()
        for end, more in zip(("", "_low", "_high"), ends, strict=True)
    }
    made = LayerPoint(layer=layer, control=0.52, deficit_high=0.02, strength=0.001, **estimates)
    return made.model_copy(update=changes)


CURVE = tuple(point(layer, held_out) for layer, held_out in HELD_OUT.items())


def probed(folder: Path, curve: tuple[LayerPoint, ...] = CURVE, **selection: Any) -> None:
    """The files of `ani probe`; with keyword arguments also `selection.json`."""
    write(folder, "layers.jsonl", [one.model_dump() for one in curve])
    if selection:
        chosen = {"layer": 14, "stretch": [14, 24], "best": 19, "argmax": 19}
        (folder / "selection.json").write_text(json.dumps({**chosen, "reason": "Because.", **selection}))


def everything(folder: Path, text: str = "plain") -> None:
    run = {"title": text, "model": text, "policy": text, "settings": {text: [text]}, "packages": {text: text}}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    write(folder, "arithmetic.jsonl", [answer(text, 2, True, operation=text), answer("after", 2, False)])
    gates = [decided(f"1 {text}", (0.2, False), role="nominal"), decided("2", (0.9, True), role="quantitative")]
    gates += [
        decided("3", (0.9, injected), source=text, group=group) for group, injected in ((text, True), ("b", False))
    ]
    write(folder, "gates.jsonl", gates)
    parts = {"subject": text, "group": text}
    write(folder, "mmlu.jsonl", [benchmark_answer(run, "mmlu", 0, run == text, **parts) for run in (text, "after")])
    write(folder, "routing.jsonl", [{**routed("none", False, [("nominal", True, None)]), "query": text}])
    write(folder, "language.jsonl", [text_loss(text, "plain", 1.0, text=text)])
    log = [{"step": step, "loss": 1.0, "gate_open_nominal": 0.5, "embedding_ratio": 0.1} for step in (1, 2)]
    write(folder, "training_log.jsonl", log)
    probed(folder, reason=text)


class Page(HTMLParser):
    """The elements, attributes, text, sections and table rows of a page, as a browser would see them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.in_cell = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.in_cell = True
        if tag == "small":
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.in_cell:
            self.rows[-1][-1] += data

    @property
    def sections(self) -> list[str]:
        return [value for tag, name, value in self.attributes if tag == "section" and name == "id"]

    @property
    def charts(self) -> dict[str, str]:
        """The SVG of each chart, by its alternative text."""
        values = [value.removeprefix("data:image/svg+xml;base64,") for tag, _, value in self.attributes if tag == "img"]
        return {alt: b64decode(svg).decode() for alt, svg in zip(values[::2], values[1::2], strict=True)}


def build(folder: Path) -> Page:
    path = build_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_a_section_a_file(tmp_path: Path) -> None:
    everything(tmp_path)
    names = ["arithmetic", "mmlu", "gates", "routing", "language", "layers", "training_log"]
    others = {"mmlu": "benchmarks", "training_log": "training", "routing": "tool-routing"}
    sections = {f"{name}.jsonl": others.get(name, name) for name in names} | {"run.json": "provenance"}
    assert build(tmp_path).sections == list(sections.values())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    folded = " ".join(re.findall("<details>.*?</details>", page, re.S))  # charts with a bar per group
    assert [each.count("Chart: How often gates are open") for each in (page, folded)] == [2, 1]
    assert "Chart: loss" in page and "Chart: loss" not in folded
    for name, section in sections.items():
        alone = tmp_path / section
        alone.mkdir()
        (tmp_path / name).rename(alone / name)
        assert build(alone).sections == [section]


def test_no_results(tmp_path: Path) -> None:
    (tmp_path / "gates.jsonl").write_text("\n")
    refused(lambda: build_report(tmp_path), str(tmp_path))
    refused(lambda: build_report(tmp_path / "missing"), "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["gates.jsonl"]


def test_hostile_text_stays_text_and_nothing_is_loaded(tmp_path: Path) -> None:
    everything(tmp_path, "plain")
    plain = build(tmp_path)
    everything(tmp_path, HOSTILE)
    page = build(tmp_path)
    assert page.tags == plain.tags and not {"script", "link", "iframe", "image"} & set(page.tags)
    assert {name for _, name, _ in page.attributes} == {name for _, name, _ in plain.attributes}
    shown = page.text.count(HOSTILE) + page.text.count(json.dumps(HOSTILE)[1:-1])  # some facts are shown as JSON
    assert shown >= plain.text.count("plain") - 2 > 10
    assert all("<script" not in svg and "<img" not in svg for svg in page.charts.values())
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "data", "action"):
            assert value.startswith("data:image/svg+xml;base64," if tag == "img" else "#"), (tag, name, value)
        assert name != "style"
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    style = source[source.index("<style>") : source.index("</style>")]
    assert "@import" not in style and "url(" not in style and "default-src 'none'" in source


@pytest.mark.parametrize(
    ("name", "line", "what"),
    [
        ("arithmetic.jsonl", b"{not json", "JSON"),
        ("arithmetic.jsonl", b'{"run": "x", "operation": "addition", "digits": 2}', "correct"),
        ("gates.jsonl", json.dumps(decided("a 9", (math.nan, True), role="nominal")).encode(), "numbers.0.alpha"),
        ("training_log.jsonl", b'{"loss": 1.0}', "step"),
        ("layers.jsonl", CURVE[1].model_copy(update={"held_out": 1.2}).model_dump_json().encode(), "held_out"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, name: str, line: bytes, what: str) -> None:
    everything(tmp_path)
    good = (tmp_path / name).read_bytes().splitlines()[0]
    (tmp_path / name).write_bytes(good + b"\n\n" + line + b"\n")
    refused(lambda: build_report(tmp_path), f"{name}, line 3: ", what)
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "run.json").write_text('{"layer": "ten"}')
    refused(lambda: build_report(tmp_path), "run.json: layer")


def test_published_values_stand_beside_the_measured(tmp_path: Path) -> None:
    write(tmp_path, "arithmetic.jsonl", [answer("ours", 12, i < 3, operation="+", prompt=str(i)) for i in range(4)])
    answers = [benchmark_answer(run, "math", i, run == "ours") for run in ("base", "ours") for i in range(2)]
    write(tmp_path, "math.jsonl", answers)
    published = {"base": {"math": 49.28, "gsm8k": 90}, "ours": {"12 digits": 82}}
    (tmp_path / "run.json").write_text(json.dumps({"published": published}))
    page = build(tmp_path)
    assert ["Run", "MATH", "12 digits"] in page.rows
    assert ["base", "0.0% 0.0–65.8 published 49.3%", "–"] in page.rows
    assert ["ours", "100.0% 34.2–100.0", "75.0% 30.1–95.4 published 82.0%"] in page.rows
    gains = {"baseline": "base", "published": {"ours": {"levels 1–3 gain": 1.34, "levels 4–5 gain": -0.5}}}
    write(tmp_path, "run.json", [gains])
    (tmp_path / "arithmetic.jsonl").unlink()
    write(tmp_path, "math.jsonl", [{**each, "level": 2} for each in answers])
    shown = next(row for row in build(tmp_path).rows if row[0] == "ours" and "published" in "".join(row))
    assert [["published +1.3" in cell, "published -0.5" in cell] for cell in shown[1:]] == [[True, False]]
    write(tmp_path, "run.json", [{"published": {"base": {"gsm8k": 90}}}])
    assert "published" not in build(tmp_path).text
