"""The curve over layers and layer sensitivity: page and terminal against the records and against brute force."""

import json
import re
from collections.abc import Mapping
from io import StringIO
from itertools import pairwise, permutations
from math import atanh, sqrt, tanh
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm, spearmanr

from ani.evaluation.tasks.arithmetic import ArithmeticAnswer
from ani.probing.curve import layers_table
from ani.report.layers import exact_shares, layer_effects, read_selection
from ani.results.statistics import correlation, wilson_interval
from ani.results.tables import Fitted
from tests.refusals import refused
from tests.report.test_page import CURVE, HELD_OUT, Page, answer, build, point, probed, write

SOLVED = {4: 3, 9: 5, 14: 9, 19: 8, 24: 6}
"""Layer: problems out of ten."""


def compared(folder: Path, runs: Mapping[str, int | None], solved: Mapping[str, int]) -> None:
    """The files of a comparison of runs that inject at the given layers (None: without ANI)."""
    answers = [
        answer(run, 2, problem < solved[run], prompt=f"problem {problem}", operation="+-"[problem % 2])
        for run in runs
        for problem in range(10)
    ]
    write(folder, "arithmetic.jsonl", answers)
    named = [{"variant": run, "seed": 0} | ({} if layer is None else {"layer": layer}) for run, layer in runs.items()]
    (folder / "run.json").write_text(json.dumps({"runs": named}))


def layered(folder: Path, layers: Mapping[int, int] = SOLVED) -> None:
    runs: dict[str, int | None] = {"reference": None} | {f"layer-{layer}": layer for layer in layers}
    compared(folder, runs, {"reference": 1} | {f"layer-{layer}": solved for layer, solved in layers.items()})


def alternatives(page: Page) -> list[str]:
    """Of the figures."""
    image = ("div", "role", "img")
    return [after[2] for before, after in pairwise(page.attributes) if before == image and after[1] == "aria-label"]


def drawn(folder: Path) -> list[list[str]]:
    """The texts in each figure of the page."""
    figures = re.findall(r"<svg.*?</svg>", (folder / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    return [re.findall(r"<text[^>]*>([^<]*)</text>", figure) for figure in figures]


def notes_on_effects(page: Page) -> str:
    return page.text[page.text.index("Task accuracy: exact answers of all operations") : page.text.index("By layer")]


# --- the curve ---


def test_the_curve_and_the_choice(tmp_path: Path) -> None:
    probed(tmp_path, argmax=24, reason="Layer 14 is the first of its stretch.")
    page = build(tmp_path)
    assert page.sections == ["layers"]
    assert page.rows[0] == ["Layer", "Random split", "Held out", "Control", "Selectivity", "Mark"]
    rows = {row[0]: row[1:] for row in page.rows[1:]}
    assert rows["14"] == ["94.0% (92.0–95.0)", "90.0% (88.0–93.0)", "52.0%", "+40.0 (+37.0…+42.0)", "chosen"]
    assert [row[-1] for row in rows.values()] == ["", "early peak", "", "chosen", "best held out", "paper's rule"]
    assert "Layer 14 is the first of its stretch." in page.text
    assert re.search(r"Injection layer\s*14\s*roles read held out: 90\.0%, 88\.0–93\.0", page.text)
    (told,) = alternatives(page)
    assert told.startswith("Accuracy of linear probes by layer. random split (the paper's measure): 59.0% at layer 0, ")
    held_out = ", ".join(f"{share:.1%} at layer {layer}" for layer, share in HELD_OUT.items())
    assert f"; held out: {held_out}; control task: 52.0% at layer 0, " in told
    marks = {"chosen: layer 14": "90.0%", "the paper's rule: layer 24": "93.0%", "early peak: layer 4": "74.0%"}
    assert told.endswith(
        "; ".join(["", *(f"{name}: {y} at layer {name.split()[-1]}" for name, y in marks.items())]) + "."
    )
    for entry in (*marks, "control task"):
        assert entry in page.text


def test_a_layer_can_have_several_marks(tmp_path: Path) -> None:
    probed(tmp_path, layer=19, early_peak=None)
    page = build(tmp_path)
    assert [row[-1] for row in page.rows if row[0] == "19"] == ["chosen, paper's rule, best held out"]
    assert "early peak" not in page.text + "".join(alternatives(page))


def test_without_a_selection_nothing_is_marked(tmp_path: Path) -> None:
    probed(tmp_path)
    page = build(tmp_path)
    assert page.sections == ["layers"]
    assert page.rows[0][-1] == "Selectivity" and len(page.rows) == 1 + len(CURVE)
    for text in ("Injection layer", "chosen", "paper's rule"):
        assert text not in page.text


def test_no_section_without_the_curve(tmp_path: Path) -> None:
    probed(tmp_path, layer=14)
    (tmp_path / "layers.jsonl").unlink()
    refused(lambda: build(tmp_path), "holds no results", "layers.jsonl", "ani probe")
    layered(tmp_path)
    page = build(tmp_path)
    assert page.sections == ["arithmetic"] and "Injection layer" not in page.text


@pytest.mark.parametrize(
    ("changes", "lowest"), [({}, "50%"), ({"control": 0.19}, "20%"), ({"held_out_low": 0.11}, "20%")]
)
def test_the_axis_shows_what_lies_below_chance(tmp_path: Path, changes: dict[str, float], lowest: str) -> None:
    probed(tmp_path, (point(3, 0.6, **changes), *CURVE[2:]))
    build(tmp_path)
    (svg,) = drawn(tmp_path)
    assert min((text for text in svg if "%" in text), key=lambda tick: int(tick[:-1])) == lowest


@pytest.mark.filterwarnings("error")
def test_one_layer_is_a_curve(tmp_path: Path) -> None:
    probed(tmp_path, CURVE[3:4], layer=14, best=14, argmax=14, early_peak=None)
    page = build(tmp_path)
    assert page.rows[1][-1] == "chosen, paper's rule, best held out"
    assert "held out: 90.0% at layer 14;" in alternatives(page)[0]


def test_layers_are_shown_in_order_and_once(tmp_path: Path) -> None:
    probed(tmp_path, (*CURVE, CURVE[2]))
    refused(lambda: build(tmp_path), "layers.jsonl: layer 9 was probed twice")
    probed(tmp_path, CURVE[::-1])
    assert [row[0] for row in build(tmp_path).rows[1:]] == ["0", "4", "9", "14", "19", "24"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"held_out": 1.2}, "layers.jsonl, line 2: held_out: Input should be less than or equal to 1"),
        ({"control": None}, "layers.jsonl, line 2: control: Input should be a valid number"),
        ({"selectivity_low": -2}, "layers.jsonl, line 2: selectivity_low"),
        ({"selection": {"layer": None}}, "selection.json: layer: Input should be a valid integer"),
        ({"selection": {"reason": 3}}, "selection.json: reason"),
        ({"selection": {"argmax": 7}}, "selection.json: layer 7 is not in layers.jsonl"),
        ({"selection": {"early_peak": 8}}, "selection.json: layer 8 is not in layers.jsonl"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    selection = changes.pop("selection", {})
    probed(tmp_path, (CURVE[0], CURVE[1].model_copy(update=changes), *CURVE[2:]), **selection)
    refused(lambda: build(tmp_path), what)
    assert not (tmp_path / "report.html").exists()


def test_the_terminal_shows_the_same_table(tmp_path: Path) -> None:
    probed(tmp_path, layer=14)
    stream = StringIO()
    Console(width=140, file=stream).print(Fitted(layers_table(CURVE, read_selection(tmp_path, CURVE))))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in stream.getvalue().splitlines()]
    shown = {line[0]: line for line in lines if len(line) == 6}
    for row in build(tmp_path).rows[1:]:
        assert shown[row[0]] == row
    assert "├" not in stream.getvalue()  # a layer a line, with no rules between them


# --- layer sensitivity ---


def test_task_accuracy_stands_beside_the_probes(tmp_path: Path) -> None:
    probed(tmp_path, layer=14)
    layered(tmp_path)
    page = build(tmp_path)
    assert page.sections == ["arithmetic", "layers", "layer-effects"]
    # Of both operations together, unlike the table of accuracies.
    low, high = wilson_interval(9, 10)
    assert ["14", "layer-14", f"90.0% {100 * low:.1f}–{100 * high:.1f} n = 10", "90.0% 88.0–93.0"] in page.rows
    by_layer, over_probe = alternatives(page)[-2:]
    assert by_layer.startswith("Right answers and held-out probe accuracy by layer. right answers: 30.0% at layer 4,")
    assert over_probe.endswith(", layer 24: 60.0% at held-out probe accuracy 89.0%.")
    # The points of the scatter plot are labelled with their layers.
    assert [text for text in drawn(tmp_path)[-1] if "layer" in text] == [f"layer {layer}" for layer in SOLVED]


def test_the_correlation_is_printed_with_its_uncertainty(tmp_path: Path) -> None:
    probed(tmp_path)
    layered(tmp_path)
    found = correlation([HELD_OUT[layer] for layer in SOLVED], [solved / 10 for solved in SOLVED.values()])
    assert found is not None
    note = notes_on_effects(build(tmp_path))
    interval = f"95% interval {found.low:+.2f} to {found.high:+.2f}, p = {found.pearson_p:.3f}"
    spearman = f"Spearman's ρ = {found.spearman:+.2f} (p = {found.spearman_p:.3f})"
    assert f"Over 5 layers: Pearson's r = {found.pearson:+.2f} ({interval}), {spearman}" in note
    assert f"5 layers say little: the interval is wide, {found.high - found.low:.2f} of the 2" in note


def test_correlations_equal_brute_force() -> None:
    x, y = [0.7, 0.82, 0.9, 0.91, 0.89, 0.6], [0.3, 0.5, 0.9, 0.8, 0.6, 0.5]
    found = correlation(x, y)
    assert found is not None and found.points == 6
    assert found.pearson == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.spearman == pytest.approx(float(spearmanr(x, y).statistic))
    reach = norm.ppf(0.975) / sqrt(6 - 3)
    limits = (tanh(atanh(found.pearson) - reach), tanh(atanh(found.pearson) + reach))
    assert (found.low, found.high) == pytest.approx(limits)
    for value, p, measure in (
        (found.pearson, found.pearson_p, lambda order: np.corrcoef(order, y)[0, 1]),
        (found.spearman, found.spearman_p, lambda order: float(spearmanr(order, y).statistic)),
    ):
        orders = np.array([measure(order) for order in permutations(x)])
        above, below = (orders >= value - 1e-12).mean(), (orders <= value + 1e-12).mean()
        assert p == pytest.approx(min(1.0, 2 * min(above, below)))


def test_correlation_of_three_points_and_of_a_constant() -> None:
    found = correlation([0.1, 0.2, 0.4], [0.3, 0.4, 0.9])
    assert found is not None and (found.low, found.high) == (-1, 1)
    # Of six orders one is the order found and another its reverse.
    assert found.pearson_p == found.spearman_p == pytest.approx(1 / 3)
    assert correlation([0.1, 0.2, 0.4], [0.3, 0.3, 0.3]) is None


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    """Accuracies that are all the same, too few layers, and runs that share one and so differ in more than it."""
    probed(tmp_path)
    layered(tmp_path, dict.fromkeys(SOLVED, 0))
    assert "have no correlation: one of them is the same" in notes_on_effects(build(tmp_path))
    layered(tmp_path, {4: 2, 9: 3, 15: 4})
    assert build(tmp_path).sections == ["arithmetic", "layers"]
    layered(tmp_path, {4: 2, 9: 3, 14: 4, 15: 4})
    page = build(tmp_path)
    assert "layer-effects" in page.sections
    assert "Not probed, so left out: layer 15." in notes_on_effects(page)
    assert "Over 3 layers" in page.text
    runs: dict[str, int | None] = {"a": 4, "b": 9, "c": 14, "c too": 14}
    compared(tmp_path, runs, dict.fromkeys(runs, 5))
    assert "layer-effects" not in build(tmp_path).sections


def test_effects_are_means_over_seeds() -> None:
    answers = [
        ArithmeticAnswer.model_validate(answer("late", 2, problem < solved, seed=seed, prompt=str(problem)))
        for seed, solved in enumerate((1, 4))
        for problem in range(4)
    ]
    early = [record.model_copy(update={"run": "early", "correct": False}) for record in answers]
    effects = layer_effects(exact_shares([*answers, *early]), {"late": 19, "early": 0, "absent": 4}, CURVE)
    assert [(effect.layer, effect.run, effect.task.value, *effect.task[3:5]) for effect in effects] == [
        (0, "early", 0, 4, 2),
        (19, "late", 2.5 / 4, 4, 2),
    ]
    assert effects[1].probe[:3] == (0.91, 0.91 - 0.02, 0.91 + 0.03)
