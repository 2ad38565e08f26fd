"""GSM8K, MATH and MMLU through lm-evaluation-harness; knows nothing about prompts or judging (`lm_eval` does)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from ani.errors import InputError
from ani.launch import ONE_PROCESS, Processes
from ani.numbers.calculations import equations
from ani.results.files import Integer, Run
from ani.results.scores import ONE_MODEL, Answer, Difference, Score, differences, grouped, scores
from ani.results.sections import Bars, Figure, Section
from ani.results.statistics import (
    Estimate,
    difference_facts,
    grouped_difference,
    grouped_share,
    share_facts,
)
from ani.results.tables import MISSING, Cell, Table, leader, percent, points
from ani.tasks.answering import Answerer, VllmModel, longest_text
from ani.tasks.lm_eval.data import BenchmarkName
from ani.tasks.task import Count, Pairs, Task

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import Task as HarnessTask
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class BenchmarkAnswer(Answer):
    """One answered question, a line of `gsm8k.jsonl`, `math.jsonl` or `mmlu.jsonl`."""

    task: BenchmarkName
    id: Integer
    """Row of the data, from 0."""
    question: str | None = None
    answer: str | None = None
    """The right one; of MMLU its letter."""
    output: str | list[float] | None = None
    """What the model wrote; of MMLU the log-probabilities of A to D."""
    prompt_hash: str
    """SHA-256 of the chat messages, before a method rewrites them and before the model's template: equal prompts have
    equal ones, whatever the model."""
    truncated: bool = False
    """The prompt was too long, so its beginning was cut off."""
    marker: str | None = None
    """GSM8K: `####`, or "The answer is", by which the prediction was found."""
    subject: str | None = None
    """MATH, MMLU."""
    level: Integer | None = None
    """MATH: 1 to 5."""
    choices: list[str] | None = None
    group: str | None = None
    """MMLU: STEM, humanities, social sciences or other."""
    shots_from: str | None = None
    """MMLU: "dev", or "test, held out" (`ani.tasks.lm_eval.data.mmlu_questions`)."""

    @property
    def identity(self) -> tuple[int, str]:
        """Row and prompt."""
        return self.id, self.prompt_hash

    @property
    def part(self) -> str | None:
        """What the paper reports apart: of MATH easy and hard levels, of MMLU the group."""
        if self.task == "math" and self.level is not None:
            return "levels 1–3" if self.level <= 3 else "levels 4–5"
        return self.group

    @property
    def equations(self) -> list[bool]:
        """Of each equation that the answer writes (`ani.numbers.calculations`), whether it is right."""
        return [found.right for found in equations(self.output)] if isinstance(self.output, str) else []


class Questions(list[dict[str, Any]]):
    """A benchmark's questions, and lm-evaluation-harness's task that has them."""

    def __init__(self, task: HarnessTask, number: int, settings: dict[str, Any]) -> None:
        super().__init__(dict(doc) for _, doc in task.doc_iterator(limit=number))
        self.task = task
        self.settings = settings
        """What `run.json` says of them."""

    @property
    def written(self) -> bool:
        """Whether answers are written; those of MMLU are compared by their log-probabilities."""
        return bool(self.task.OUTPUT_TYPE == "generate_until")


class Benchmark(Task):
    """What the three have in common; each is asked at most once."""

    title = "Benchmarks"
    note = (
        "GSM8K: 8-shot, MATH: 4-shot, both with chains of thought; MMLU: 5-shot, by the log-probabilities of A to "
        "D. Intervals are for other questions, not for other training seeds."
    )
    unit = "questions"
    record = BenchmarkAnswer

    data: str | None = None
    """A hub name, a JSONL file or a directory of them; null: the set on the hub."""
    limit: int | None = Field(default=None, ge=1)
    """Questions, drawn by the seed; null: all. A larger limit only appends."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Of an answer; null: 512 of GSM8K, 2,048 of MATH. MMLU's answers aren't written."""

    def questions(self, seed: int) -> Questions:
        from lm_eval.tasks import TaskManager

        manager = TaskManager(
            include_path=str(Path(__file__).parent / "lm_eval"),
            include_defaults=False,
            metadata=cast(Any, {"seed": seed, **({} if self.data is None else {"data": self.data})}),
        )
        task = manager.load(f"ani_{self.name}")["tasks"][f"ani_{self.name}"]
        written = task.OUTPUT_TYPE == "generate_until"
        if self.max_new_tokens is not None and written:
            task.set_config("generation_kwargs", {"max_gen_toks": self.max_new_tokens}, update=True)
        asked, known = min(self.limit or len(task.eval_docs), len(task.eval_docs)), len(task.eval_docs)
        settings: dict[str, Any] = {"data": self.data or "hub", "questions": asked, "of": known, "seed": seed}
        settings["version"] = task.VERSION
        if written:
            settings["generation"] = dict(task.config.generation_kwargs)
        else:
            settings["shots_from"] = task.eval_docs[0]["shots_from"]
        return Questions(task, asked, settings)

    def check(self, questions: Sequence[Any], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        super().check(questions, tokenizer, config)
        self.prompt_room(config, cast(Questions, questions))

    def prompt_room(self, config: PreTrainedConfig, questions: Questions) -> int:
        """How many tokens a prompt may have, the rest being left to the answer; raises InputError if none."""
        longest = longest_text(config)
        answer = questions.task.config.generation_kwargs["max_gen_toks"] if questions.written else 0
        if answer >= longest:
            raise InputError(
                f"answers of up to {answer:,} tokens to {self.name} leave no room for a prompt: {longest:,} are read "
                "and written in all; lower max_new_tokens"
            )
        return longest - cast(int, answer)

    def facts(self, questions: Sequence[Any]) -> Mapping[str, Any]:
        return cast(Questions, questions).settings

    def answer(self, answerer: Answerer, questions: Sequence[Any], count: Count) -> Iterator[BenchmarkAnswer]:
        yield from self.run(answerer, questions, count)

    def run(
        self,
        answerer: Answerer,
        questions: Sequence[Any],
        count: Count = lambda _: None,
        processes: Processes = ONE_PROCESS,
        kept: Path | None = None,
        *,
        share_prefix: bool = True,
    ) -> Iterator[BenchmarkAnswer]:
        """Answer every question and judge it; records come when all are answered, in the benchmark's order.

        Prompts are chat messages in the model's template, answers greedy. A template's thinking mode is off, as the
        paper's scores of its reference model suggest. A template without a system role has that text before the user's.

        Args:
            answerer, questions, count: As for every task.
            processes: Those that share the work. They answer the batches in which one would answer all, if there is a
                batch size; the main one judges, and for the others no records come.
            kept: Keeps every answer as it comes, so that a killed run goes on (`ani.tasks.lm_eval.kept`).
            share_prefix: Compute what all prompts of a written benchmark begin with once, and not for every question.
                Not done where it can't be: sliding windows, prompts that are cut off.
        """
        from ani.tasks.lm_eval.kept import KeptAnswers, fingerprint
        from ani.tasks.lm_eval.model import ChatModel, VllmChat, exact_letters

        questions = cast(Questions, questions)
        model, tokenizer, method = answerer.model, answerer.tokenizer, answerer.method
        task, written = questions.task, questions.written
        self.check(questions, tokenizer, model.config)
        room = self.prompt_room(model.config, questions)
        if isinstance(model, VllmModel) and not written:
            room = min(room, longest_text(model.config) - 1)  # it can't but write a token
        generation = task.config.generation_kwargs
        state = partial(fingerprint, model, method, generation)
        with KeptAnswers(kept, state, 1 if written else 4, count, processes) as answers:
            lm: ChatModel | VllmChat
            precise: contextlib.AbstractContextManager[None]
            if isinstance(model, VllmModel):
                lm, precise = VllmChat(model, tokenizer, method, answers, room), contextlib.nullcontext()
            else:
                lm = ChatModel(model, tokenizer, method, answers, answerer.batch_size)
                precise = exact_letters(model, written)
            prompts = [_prompt(task, doc, lm.apply_chat_template) for doc in questions]
            requests = [_requests(task, doc, prompt) for doc, prompt in zip(questions, prompts, strict=True)]
            if isinstance(lm, ChatModel) and share_prefix and written:
                lm.share(prompts)
            with contextlib.redirect_stdout(sys.stderr), precise:  # the harness prints to stdout
                getattr(lm, requests[0][0].request_type)([request for each in requests for request in each])
            if not answers.gathered():
                return
            for doc, prompt, each in zip(questions, prompts, requests, strict=True):
                results = [answers[request] for request in each]
                yield BenchmarkAnswer(
                    run=ONE_MODEL,
                    task=cast(BenchmarkName, self.name),
                    **self._judged(doc, method.read(results[0]) if written else results),
                    prompt_hash=hashlib.sha256(_prompt(task, doc, _as_json).encode()).hexdigest(),
                    truncated=len(lm.tok_encode(prompt)) > room,
                )

    def _judged(self, doc: dict[str, Any], result: Any) -> dict[str, Any]:
        from ani.tasks.lm_eval.judging import judge_gsm8k, judge_math

        judge = judge_gsm8k if self.name == "gsm8k" else judge_math
        return {**doc, "output": result, **judge(doc["answer"], result)}

    @classmethod
    def scores(cls, records: Sequence[BenchmarkAnswer], part: Callable[[BenchmarkAnswer], Any]) -> list[Score]:
        """By benchmark."""
        return scores(records, lambda answer: answer.task, part)

    @classmethod
    def summary(cls, records: Sequence[BenchmarkAnswer]) -> dict[str, Any]:
        ((by_part,), (by_subject,)) = (cls.scores(records, key) for key in (_part, _subject))
        found = {"all": by_part.overall, **by_part.parts, **by_subject.parts}
        if right := _right_equations(records):
            found["equations"] = right
        return {part: share_facts(share) for part, share in found.items()}

    @classmethod
    def tables(cls, records: Sequence[BenchmarkAnswer], baseline: str | None = None) -> list[Table]:
        rows = cls.scores(records, _part)
        tables = [_main_results(rows), _parts(rows, "level or group", "Part")]
        if baseline is not None:
            tables.append(_differences(_compared(records, baseline, part=_part), baseline))
        return _with_rows([*tables, _equations(records, baseline)])

    @classmethod
    def _subject_tables(cls, records: Sequence[BenchmarkAnswer], baseline: str | None) -> list[Table]:
        tables = [_parts(cls.scores(records, _subject), "subject", "Subject")]
        if baseline is not None:
            tables.append(_differences(_compared(records, baseline, part=_subject), baseline, subjects=True))
        return _with_rows(tables)

    @classmethod
    def section(cls, records: Sequence[BenchmarkAnswer], run: Run) -> Section:
        rows = cls.scores(records, _part)
        cut = grouped((answer for answer in records if answer.truncated), lambda answer: (answer.task, answer.run))
        notes = [
            f"{row.task.upper()}, {row.run}: {number} of {row.overall.cases * row.overall.seeds} {what}."
            for row in rows
            for number, what in (
                (row.unreadable, "answers held no answer that could be read"),
                (len(cut.get((row.task, row.run), ())), "prompts were too long and lost their beginning"),
            )
            if number
        ]
        figures = []
        for task in dict.fromkeys(row.task for row in rows):
            runs = {row.run: row.overall for row in rows if row.task == task}
            if len(runs) > 1:
                figures.append(Figure(f"Right answers, {task.upper()}", Bars("Right answers", runs)))
        folded = tuple(cls._subject_tables(records, run.baseline))
        shown = super().section(records, run)
        return shown._replace(anchor="benchmarks", notes=(cls.note, *notes), figures=tuple(figures), folded=folded)

    @classmethod
    def pairs(cls, records: Sequence[BenchmarkAnswer], baseline: str) -> Pairs | None:
        by_part, by_subject = (_compared(records, baseline, part=key) for key in (_part, _subject))
        tables = [_differences(by_part, baseline), _differences(by_subject, baseline, subjects=True)]
        facts = {}
        for row, of_subjects in zip(by_part, by_subject, strict=True):
            found = {"all": row.overall, **row.parts, **of_subjects.parts}
            if gain := _gain(records, row.task, row.run, baseline):
                found["equations"] = gain
            facts[row.task] = difference_facts(found)
        return Pairs(_with_rows([*tables, _equations(records, baseline)]), facts)


class Gsm8k(Benchmark):
    """Word problems, 8-shot with chains of thought."""

    name = "gsm8k"


class Math(Benchmark):
    """Competition problems, 4-shot with chains of thought."""

    name = "math"


class Mmlu(Benchmark):
    """Multiple choice, 5-shot, by the log-probabilities of the letters."""

    name = "mmlu"

    def _judged(self, doc: dict[str, Any], result: Any) -> dict[str, Any]:
        best = max(range(4), key=lambda choice: result[choice])
        judged = {"answer": "ABCD"[doc["answer"]], "prediction": "ABCD"[best], "correct": best == doc["answer"]}
        return {key: value for key, value in doc.items() if key != "shots"} | {"output": result} | judged


_part, _subject = attrgetter("part"), attrgetter("subject")
_compared = partial(differences, task=attrgetter("task"))  # paper, "Fine-grained bootstrap"


def _with_rows(tables: Iterable[Table]) -> list[Table]:
    return [table for table in tables if table.rows]


def _main_results(rows: Sequence[Score]) -> Table:
    """One row a run, one column a benchmark (paper, Tables "Main Results" and "Scalability"); the best is bold."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    shares = {(row.run, row.task): row.overall for row in rows}
    leaders = {task: leader(row.overall for row in rows if row.task == task) for task in tasks}
    return Table(
        "Right answers, with Wilson 95% intervals",
        ("Run", *(task.upper() for task in tasks)),
        tuple(
            (Cell(run), *(percent(shares.get((run, task)), leader=leaders[task]) for task in tasks))
            for run in dict.fromkeys(row.run for row in rows)
        ),
        label_columns=1,
    )


def _parts(rows: Sequence[Score], by: str, head: str) -> Table:
    caption = f"Right answers by {by}, with Wilson 95% intervals"
    return _by_part(caption, head, ((row, row.parts) for row in rows), percent)


def _differences(rows: Sequence[Difference], baseline: str, subjects: bool = False) -> Table:
    caption = (
        f"Right answers{' by subject' if subjects else ''} compared to {baseline}, in percentage points: the same "
        "questions in pairs, with 95% bootstrap intervals and the one-sided p of no gain"
    )
    parts = ((row, row.parts if subjects else {"all": row.overall, **row.parts}) for row in rows)
    return _by_part(caption, "Part", parts, points)


def _right_equations(records: Iterable[BenchmarkAnswer]) -> Estimate | None:
    found = [(right, answer.id) for answer in records for right in answer.equations]
    return grouped_share([right for right, _ in found], [question for _, question in found])


def _gain(records: Sequence[BenchmarkAnswer], task: str, run: str, baseline: str) -> Estimate | None:
    """How much greater the share of right equations is than the baseline's."""

    def by_question(which: str) -> dict[int, list[bool]]:
        asked = (answer for answer in records if (answer.task, answer.run) == (task, which))
        return {
            question: [right for answer in answers for right in answer.equations]
            for question, answers in grouped(asked, attrgetter("id")).items()
        }

    return grouped_difference(by_question(run), by_question(baseline))


def _equations(records: Sequence[BenchmarkAnswer], baseline: str | None) -> Table:
    """One row a benchmark and run."""
    caption = (
        "Equations in written answers: calculations with the number behind the equals sign, of results that can be "
        "written out; with 95% intervals, questions resampled as wholes"
    )
    header = ["Benchmark", "Run", "Right equations", "Answers with an equation"]
    if baseline is not None:
        header.append(f"Right equations compared to {baseline}, in points")
    rows = []
    for (task, run), answers in grouped(records, attrgetter("task", "run")).items():
        if right := _right_equations(answers):
            holds = grouped_share([bool(answer.equations) for answer in answers], [answer.id for answer in answers])
            cells = [Cell(task.upper()), Cell(run), percent(right), percent(holds)]
            if baseline is not None:
                cells.append(points(None if run == baseline else _gain(records, task, run, baseline)))
            rows.append(tuple(cells))
    return Table(caption, tuple(header), tuple(rows), label_columns=2)


def _by_part(
    caption: str,
    head: str,
    rows: Iterable[tuple[Score | Difference, Mapping[str, Estimate]]],
    cell: Callable[[Estimate], Cell],
) -> Table:
    """One row a benchmark and part of it, one column a run."""
    runs: dict[str, None] = {}
    found: dict[tuple[str, str], dict[str, Cell]] = {}
    for row, parts in rows:
        runs[row.run] = None
        for part, estimate in parts.items():
            found.setdefault((row.task, part), {})[row.run] = cell(estimate)
    return Table(
        caption,
        ("Benchmark", head, *runs),
        tuple(
            (Cell(task.upper()), Cell(part), *(cells.get(run, Cell(MISSING)) for run in runs))
            for (task, part), cells in found.items()
        ),
        label_columns=2,
    )


def _prompt(task: HarnessTask, doc: dict[str, Any], template: Callable[..., str]) -> str:
    return cast(
        str,
        task.fewshot_context(
            doc, num_fewshot=0, apply_chat_template=True, fewshot_as_multiturn=True, chat_template=template
        ),
    )


def _as_json(messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
    return json.dumps(messages, ensure_ascii=False)


def _requests(task: HarnessTask, doc: dict[str, Any], prompt: str) -> list[Instance]:
    made = task.construct_requests(doc, prompt, apply_chat_template=True, metadata=(task.task_name, 0, 1))
    return made if isinstance(made, list) else [made]
