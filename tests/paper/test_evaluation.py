"""The evaluation against the paper: prompts letter by letter, how answers are judged, sizes of the sets, statistics."""

import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ani.data.sources import MATH
from ani.evaluation.engines import MAX_LENGTH
from ani.evaluation.tasks import TASKS
from ani.evaluation.tasks.gates import FINER_NAME, NOMINAL_TAGS, PUBLISHED, DecidedText, Gates
from ani.evaluation.tasks.gsm8k import GSM8K
from ani.evaluation.tasks.mmlu import MMLU, MMLU_GROUPS, Mmlu
from ani.evaluation.tasks.routing import Routing, judged, routing_queries
from ani.injection.decisions import NumberDecision
from ani.probing.curve import LayerPoint, LayerSelection, layers_table
from ani.results.statistics import bootstrap_means, paired_difference
from tests.json_lines import write_lines
from tests.paper import facts, project

PROMPTS = Path(__file__).parent / "prompts"


@pytest.mark.parametrize(
    ("task", "record"),
    [
        ("gsm8k", {"question": "How many are 2 and 3?", "answer": "2 + 3 = 5.\n#### 5"}),
        (
            "math",
            {"problem": "How many are 2 and 3?", "solution": r"\boxed{5}.", "type": "Algebra", "level": "Level 1"},
        ),
    ],
)
def test_the_prompts_of_gsm8k_and_math_are_the_papers(task: str, record: dict[str, Any], tmp_path: Path) -> None:
    question = project.question(task, write_lines(tmp_path / f"{task}.jsonl", record))
    template = (PROMPTS / f"{task}.txt").read_text().strip()
    messages = (f"[{message['role'].title()}]\n{message['content']}\n\n" for message in question.messages)
    assert "".join(messages).strip() == re.sub(r"\{Target \w+\}", "How many are 2 and 3?", template)
    assert question.generation["max_gen_toks"] == facts.UNSAID[f"tokens of {task.upper()}'s answers"]
    assert not question.generation["do_sample"]


def test_the_prompt_of_mmlu_is_the_papers(tmp_path: Path) -> None:
    def row(number: int) -> dict[str, Any]:
        choices = [f"{letter}{number}" for letter in "wxyz"]
        return {"question": f"Q{number}?", "choices": choices, "answer": number % 4, "subject": "college_physics"}

    (tmp_path / "mmlu").mkdir()
    write_lines(tmp_path / "mmlu" / "test.jsonl", row(9))
    write_lines(tmp_path / "mmlu" / "dev.jsonl", *map(row, range(6)))
    template = (PROMPTS / "mmlu.txt").read_text().strip()
    system, shot, target = re.split(r"\n\[User\]\n|\n\n", template)

    def filled(text: str, number: int) -> str:
        text = text.replace("{Few-shot Example}", f"Q{number}?").replace("{Target Question}", f"Q{number}?")
        text = text.replace("{Letter}", "ABCD"[number % 4])
        return re.sub(r"\{Option (\d)\}", lambda match: "wxyz"[int(match[1]) - 1] + str(number), text)

    shots = [filled(shot, number) for number in range(facts.MMLU_SHOTS)]
    system = system.removeprefix("[System]\n").replace("{subject}", "college physics")
    question = project.question("mmlu", tmp_path / "mmlu")
    assert [message["role"] for message in question.messages] == ["system", "user"]
    assert question.messages[0]["content"] == system
    assert question.messages[1]["content"] == "\n\n".join([*shots, filled(target, 9)])
    assert question.generation is None  # the letters' log-probabilities are compared
    assert Mmlu.judge(0, [-3.0, -2.0, -0.5, -1.0])["prediction"] == "C"


def test_the_sets_are_those_of_the_paper() -> None:
    assert {"gsm8k": GSM8K[0][0], "math": MATH[0][0], "mmlu": MMLU[0][0]} == facts.HUB
    assert len(MATH) == facts.MATH_SUBJECTS
    subjects = [subject for group in MMLU_GROUPS.values() for subject in group.split()]
    assert len(set(subjects)) == len(subjects) == facts.MMLU_SUBJECTS
    for level, hard in facts.HARD_LEVELS.items():
        answer: Any = TASKS["math"].record(run="", task="math", id=0, prompt_hash="", level=level, correct=True)
        assert answer.part == ("levels 4–5" if hard else "levels 1–3")
    assert MAX_LENGTH == facts.LONGEST_TEXT


def test_additions_are_a_hundred_of_each_length() -> None:
    problems = project.additions()
    assert Counter(problem.digits for problem in problems) == dict.fromkeys(facts.DIGITS, facts.PROBLEMS)
    for problem in problems:
        left, right = map(int, re.findall(r"\d+", problem.prompt))
        assert "+" in problem.prompt and problem.answer == left + right
        assert len(str(left)) == len(str(right)) == problem.digits


@pytest.mark.parametrize(("off_by", "right"), [(0, True), (1, False), (10**11, False)])
def test_an_addition_is_right_if_it_matches_exactly(off_by: int, right: bool) -> None:
    assert project.arithmetic_verdict(12, off_by) is right


def test_finer_has_its_nominal_tag(tmp_path: Path) -> None:
    assert FINER_NAME.endswith(facts.FINER) and set(NOMINAL_TAGS) == facts.NOMINAL_TAGS
    tokens = ["It", "owes", "100", "dollars", "until", "2025", "at", "7"]
    tags = ["O", "O", "B-DebtInstrumentFaceAmount", "O", "O", "B-DebtInstrumentMaturityDate", "O", "O"]
    data = write_lines(tmp_path / "test.jsonl", {"tokens": tokens, "ner_tags": tags})
    assert project.finer_labels(data) == [["quantitative", "nominal", None]]


def test_published_values_are_beside_ours() -> None:
    figure_6, mmlu, finer, routed, untrained, *_ = facts.FIGURES
    assert {("math", "numbers"): figure_6, ("mmlu", "numbers"): mmlu, ("finer", "nominal"): finer} == PUBLISHED
    decided = NumberDecision(text="5", value=Decimal(5), start=0, end=1, first_token=0, last_token=0, injected=True)
    numbers = (decided, decided.model_copy(update={"role": "nominal", "injected": False}))
    records = [DecidedText(source=source, text="5", numbers=numbers) for source in ("math", "mmlu", "finer", "gsm8k")]
    cells = [
        cell for row in Gates.tables(records)[0].rows for cell in row if any("paper" in each for each in cell.details)
    ]
    assert [cell.details[-1] for cell in cells] == [f"paper: {figure_6}", f"paper: {mmlu}", f"paper: {finer}"]
    (query,) = (query for query in routing_queries()[:1])
    labels = [row[0] for row in Routing.tables([judged(query, 'calculator(["1"])')])[0].rows]
    (label,) = [label for label in labels if label.details]
    assert "of all" in label.text and routed in label.details[0] and untrained in label.details[0]
    point = dict.fromkeys(LayerPoint.model_fields, 0.5) | {"layer": 3}
    selection = LayerSelection(layer=3, stretch=(3, 3), best=3, argmax=3, reason="")
    assert facts.PROBE in layers_table([LayerPoint(**point)], selection).caption


def test_routing_mixes_traps_with_operands() -> None:
    queries = project.routing()
    assert len(queries) == facts.DEVIATIONS["tool routing"][1]
    for query, roles in queries:
        assert roles.count("nominal") >= 1 and roles.count("quantitative") >= 2, query


def test_gains_are_bootstrapped_in_pairs() -> None:
    assert len(bootstrap_means(np.zeros((3, 1)))) == facts.BOOTSTRAP_SAMPLES
    ours, theirs = (np.arange(100.0) < right for right in (60, 45))
    gain, loss = (paired_difference(*map(np.float64, pair)) for pair in ((ours, theirs), (theirs, ours)))
    assert gain.value == pytest.approx(0.15) == pytest.approx(-loss.value)
    # Only the pairs' differences vary: 15 of 100 are 1, whose share has a standard error of 0.0357.
    assert (gain.low, gain.high) == pytest.approx((0.15 - 1.96 * 0.0357, 0.15 + 1.96 * 0.0357), abs=0.015)
    assert gain.p < 0.01 and loss.p > 0.99  # one-sided
