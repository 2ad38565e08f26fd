"""Task `mmlu`: multiple choice, 5-shot, by the log-probabilities of the letters A to D."""

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ani.errors import InputError
from ani.evaluation.tasks.benchmarks import Benchmark, Row, field_of, shuffled, text_of
from ani.results.scores import grouped

if TYPE_CHECKING:
    from datasets import Dataset

MMLU = [("cais/mmlu", "all")]
SHOTS = 5
MMLU_GROUPS = {
    "STEM": """abstract_algebra anatomy astronomy college_biology college_chemistry college_computer_science
        college_mathematics college_physics computer_security conceptual_physics electrical_engineering
        elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science
        high_school_mathematics high_school_physics high_school_statistics machine_learning""",
    "humanities": """formal_logic high_school_european_history high_school_us_history high_school_world_history
        international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory
        professional_law world_religions""",
    "social sciences": """econometrics high_school_geography high_school_government_and_politics
        high_school_macroeconomics high_school_microeconomics high_school_psychology human_sexuality
        professional_psychology public_relations security_studies sociology us_foreign_policy""",
    "other": """business_ethics clinical_knowledge college_medicine global_facts human_aging management marketing
        medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology""",
}
"""The four groups of the MMLU paper (arXiv 2009.03300) and their subjects."""
_GROUP = {subject: group for group, subjects in MMLU_GROUPS.items() for subject in subjects.split()}


class Mmlu(Benchmark):
    """Multiple choice, 5-shot, by the log-probabilities of the letters."""

    name, hub = "mmlu", MMLU
    needs_score = True

    @staticmethod
    def row(record: Any, where: str) -> Row:
        """Return `question`, `choices`, `answer` (0 to 3), `subject` and `group`."""
        question, subject = text_of(record, "question", where), text_of(record, "subject", where)
        choices = field_of(record, "choices", where, lambda value: isinstance(value, list) and len(value) == 4)
        answer = field_of(record, "answer", where, lambda value: type(value) is int and 0 <= value <= 3)
        if subject not in _GROUP:
            raise InputError(f"{where}: 'subject' must be one of MMLU's 57, not {subject!r:.80}")
        facts = {"answer": answer, "subject": subject, "group": _GROUP[subject]}
        return {"question": question.strip(), "choices": [str(choice) for choice in choices], **facts}

    @classmethod
    def read(cls, data: str | None = None, seed: int = 0, **_: Any) -> "dict[str, Dataset]":
        """Return rows with the keys of `row`, and `id`, `shots` and `shots_from`.

        The examples are the first five of the subject's dev split. A local file has no such split: then the first five
        rows of each subject are its examples, no question is asked about them, and `shots_from` says "test, held out".
        Raises InputError also if a subject has fewer than five examples.
        """
        found = cls.rows(data, "test")
        dev = grouped(cls.rows(data, "dev"), itemgetter("subject"))
        shots_from = "dev" if dev else "test, held out"
        if not dev:
            dev = grouped(found, itemgetter("subject"))
            held_out = {row["id"] for shots in dev.values() for row in shots[:SHOTS]}
            found = [row for row in found if row["id"] not in held_out]
        for subject in sorted({row["subject"] for row in found} | set(dev)):
            if (known := len(dev.get(subject, ()))) < SHOTS:
                raise InputError(
                    f"{data or MMLU[0][0]}: {known} rows of the subject {subject!r} to show as examples, {SHOTS} are "
                    "needed"
                )
        shots = {
            subject: [{key: row[key] for key in ("question", "choices", "answer")} for row in examples[:SHOTS]]
            for subject, examples in dev.items()
        }
        return shuffled([{**row, "shots": shots[row["subject"]], "shots_from": shots_from} for row in found], seed)

    @staticmethod
    def judge(answer: int, output: Sequence[float]) -> dict[str, Any]:
        """Return `answer` and `prediction` (the likeliest choice) as letters, and `correct`."""
        best = max(range(4), key=lambda choice: output[choice])
        return {"answer": "ABCD"[answer], "prediction": "ABCD"[best], "correct": best == answer}


read = Mmlu.read  # named by mmlu.yaml
