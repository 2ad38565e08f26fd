"""Base of the tasks `gsm8k`, `math` and `mmlu`. lm-evaluation-harness makes the prompts from `prompts/*.yaml`.

The YAML files contain the paper's prompts, word for word ("Evaluation Prompts"), and the settings.
lm-evaluation-harness alone runs them too:

    lm_eval --include_path src/ani/evaluation/tasks/prompts --tasks ani_gsm8k --apply_chat_template ...
        [--metadata '{"data": "a directory, a JSONL file or a hub name"}']
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

from pydantic import Field

from ani.data.records import hub_errors, hub_records, names_file
from ani.errors import InputError
from ani.evaluation.engines import Engine, longest_text
from ani.evaluation.task import Answers, Pairs, Scored, accuracies, changes, facts_of, gains
from ani.numbers import find_numbers
from ani.results.records import Integer
from ani.results.scores import ONE_MODEL, Answer, differences, grouped, scores
from ani.results.statistics import grouped_share, share_facts
from ani.results.tables import Cell, Table, percent
from ani.revisions import hub_name, pinned
from ani.text_files import json_lines

if TYPE_CHECKING:
    from datasets import Dataset
    from lm_eval.api.task import Task as HarnessTask
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


BenchmarkName = Literal["gsm8k", "gsm8k-chat", "math", "math-chat", "mmlu"]
Row = dict[str, Any]
"""A question of a data set, in the form that the YAML files read."""
LONGEST_ANSWER = 500
"""Characters; longer answers are compared as texts only, because parsing may take forever."""

_BOX = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"(?<!\\)[{}]")
_BASE = re.compile(r"\d\s*_\s*\{?(\d+)\}?$")
_NOT_SEEN = re.compile(r"\\(?:left|right|displaystyle|[!,;: ])|[$\s]")
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf)\{([^{}]*)\}")


class BenchmarkAnswer(Answer):
    """One answered question, a line of `gsm8k.jsonl`, `math.jsonl` or `mmlu.jsonl`."""

    known_by = "id", "prompt_hash"

    task: BenchmarkName
    id: Integer
    """Row number in the data, from 0."""
    question: str | None = None
    answer: str | None = None
    """Right answer; MMLU: its letter."""
    output: str | list[float] | None = None
    """Text that the model wrote; MMLU: the log-probabilities of A to D."""
    prompt_hash: str
    """SHA-256 of the chat messages, before a method rewrites them and before the model's template."""
    truncated: bool = False
    """True if the prompt was too long, so that its beginning was cut off."""
    marker: str | None = None
    """GSM8K: the text before the prediction, `####` or "The answer is"."""
    subject: str | None = None
    """MATH, MMLU."""
    level: Integer | None = None
    """MATH: 1 to 5."""
    choices: list[str] | None = None
    group: str | None = None
    """MMLU: STEM, humanities, social sciences or other."""
    shots_from: str | None = None
    """MMLU: "dev", or "test, held out" (`Mmlu.read`)."""
    ways: dict[str, bool] | None = None
    """MATH: the verdict by length and rule (`Math.cut`)."""

    @property
    def part(self) -> str | None:
        """Part that the paper reports by itself: MATH's easy or hard levels, MMLU's groups."""
        if self.level is not None:
            return "levels 1–3" if self.level <= 3 else "levels 4–5"
        return self.group


class BenchmarkQuestion(NamedTuple):
    """A question as lm-evaluation-harness's task words it."""

    doc: dict[str, Any]
    messages: list[dict[str, str]]
    generation: dict[str, Any] | None
    """Settings `max_gen_toks` and `until` of a written answer; None: letters are compared."""
    facts: dict[str, Any]
    """Facts about all questions for `run.json`."""

    @property
    def new_tokens(self) -> int:
        """Maximum number of new tokens."""
        return 0 if self.generation is None else int(self.generation["max_gen_toks"])


class Benchmark(Scored):
    """Base of the three benchmarks."""

    title = "Benchmarks"
    what, heading, kinds = "Right answers", "Benchmark", (lambda answer: answer.task.upper(),)
    parts, chart = "level or group", "bars"
    note = (
        "GSM8K: 8-shot, MATH: 4-shot, both with chains of thought (CHAT: no examples); MMLU: 5-shot, by the "
        "log-probabilities of A to D. Intervals are for other questions, not for other training seeds."
    )
    unit = "questions"
    record = BenchmarkAnswer
    together = sys.maxsize  # sorted by length, and vLLM makes its own batches

    data: str | None = None
    """A hub name (or `NAME@REVISION`), a JSONL file or a directory of them; null: the set on the hub."""
    limit: int | None = Field(default=None, ge=1)
    """Number of questions, drawn by the seed; null: all. A larger limit only appends."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of new tokens of an answer; null: 512 for GSM8K, 2,048 for MATH. MMLU's answers aren't written."""

    hub: ClassVar[list[tuple[str, str]]]
    """Data sets on the hub and their configurations."""

    @staticmethod
    @abstractmethod
    def row(record: Any, where: str) -> Row:
        """Return the question of a record; raises InputError, which names the place `where`, if it is malformed."""

    @staticmethod
    @abstractmethod
    def judge(answer: Any, output: Any) -> dict[str, Any]:
        """Return a record's facts about an output: `prediction`, `correct` and more."""

    @classmethod
    def read(cls, data: str | None = None, seed: int = 0, **_: Any) -> dict[str, Dataset]:
        """Return lm-evaluation-harness's `custom_dataset`: one split, `test`, in an order that the seed draws.

        `data` is None (the set on the hub), another hub name, a JSONL file, or a directory with `test.jsonl` (for MMLU
        perhaps also `dev.jsonl`). Raises InputError, which names file and line, if the data can't be read.
        """
        return shuffled(cls.rows(data, "test"), seed)

    @classmethod
    def rows(cls, data: str | None, split: str) -> list[Row]:
        """Return the questions of a split, with their row number as `id`. A local file or directory may lack the split
        `dev`."""
        read = enumerate(_records(data, split, cls.hub))
        return [{"id": number, **cls.row(record, where)} for number, (where, record) in read]

    @classmethod
    def results(cls, doc: dict[str, Any], outputs: Sequence[str]) -> dict[str, float]:
        """Return lm-evaluation-harness's `process_results` of a written answer."""
        return {"acc": float(cls.judge(doc["answer"], outputs[0])["correct"])}

    def harness(self, seed: int) -> HarnessTask:
        """Return lm-evaluation-harness's task."""
        from lm_eval.tasks import TaskManager

        manager = TaskManager(
            include_path=str(Path(__file__).parent / "prompts"),
            include_defaults=False,
            metadata=cast(Any, {"seed": seed, **({} if self.data is None else {"data": self.data})}),
        )
        return manager.load(f"ani_{self.name}")["tasks"][f"ani_{self.name}"]

    def questions(self, seed: int) -> list[BenchmarkQuestion]:
        task = self.harness(seed)
        docs = task.eval_docs
        asked = min(self.limit or len(docs), len(docs))
        facts = {"data": self.data or "hub", "questions": asked, "of": len(docs), "version": task.VERSION}
        generation: dict[str, Any] | None = None
        if task.OUTPUT_TYPE == "generate_until":
            generation = dict(task.config.generation_kwargs)
            generation["max_gen_toks"] = self.max_new_tokens or generation["max_gen_toks"]
            facts["generation"] = generation
        else:
            facts["shots_from"] = docs[0]["shots_from"]
        return [
            BenchmarkQuestion(dict(doc), messages_of(task, doc), generation, facts)
            for _, doc in task.doc_iterator(limit=asked)
        ]

    def check(self, questions: Sequence[Any], tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        longest, answer = longest_text(config), questions[0].new_tokens
        if answer >= longest:
            raise InputError(
                f"answers of up to {answer:,} tokens to {self.name} leave no room for a prompt: {longest:,} are read "
                "and written in all; lower max_new_tokens"
            )

    def facts(self, questions: Sequence[Any]) -> Mapping[str, Any]:
        return cast(dict[str, Any], questions[0].facts)

    def answer(self, engine: Engine, questions: Sequence[BenchmarkQuestion]) -> Answers:
        """Ask, greedily, by chat messages in the model's template, and judge. A template's thinking mode is off, as the
        paper's scores of its reference model suggest. A template without a system role has that text before the
        user's."""
        lengths = [len(engine.ids(question.messages)) for question in questions]
        order = sorted(range(len(questions)), key=lambda place: -lengths[place])
        size = engine.batch_size or (64 if engine.on_gpu else 8)
        prompts = [questions[place].messages for place in order]
        results: Iterator[tuple[int, Any]]
        if (generation := questions[0].generation) is None:
            results = engine.score(prompts, "ABCD", batch_size=size)
        else:
            results = engine.generate(prompts, questions[0].new_tokens, stop=generation["until"], batch_size=size)
        for position, result in results:
            doc, messages, _, _ = questions[place := order[position]]
            facts = {**doc, "task": self.name, "output": result, **self.judge(doc["answer"], result)}
            facts["prompt_hash"] = hashlib.sha256(json.dumps(messages, ensure_ascii=False).encode()).hexdigest()
            facts["truncated"] = lengths[place] > longest_text(engine.config) - questions[place].new_tokens
            yield place, [BenchmarkAnswer(run=ONE_MODEL, **facts)]

    @staticmethod
    def part(record: BenchmarkAnswer) -> str | None:
        return record.part

    @classmethod
    def summary(cls, records: Sequence[BenchmarkAnswer]) -> dict[str, Any]:
        ((row,), (by_subject,)) = (cls.scores(records), scores(records, _TASK, _SUBJECT))
        found = {"all": row.overall, **row.parts, **by_subject.parts}
        return {part: share_facts(share) for part, share in found.items()}

    @classmethod
    def tables(cls, records: Sequence[BenchmarkAnswer], baseline: str | None = None) -> list[Table]:
        tables, rows = super().tables(records, baseline), []
        for run, found in grouped((each for each in records if each.ways), lambda each: each.run).items():
            shares = {
                way: grouped_share((each.id, each.seed, each.ways[way]) for each in found if each.ways)
                for way in found[0].ways or ()
            }
            rows.append((Cell(run), *map(percent, shares.values())))
        if rows:
            caption = "MATH by the length of answers and the rule that judges them, with 95% intervals"
            tables.append(Table(caption, ("Run", *shares), tuple(rows), label_columns=1))
        return tables

    @classmethod
    def details(cls, records: Sequence[BenchmarkAnswer], baseline: str | None = None) -> list[Table]:
        rows = scores(records, _SUBJECT, lambda _: None)
        tables = [accuracies(rows, f"{cls.what} by subject", "Subject", chart=None)] if rows else []
        return tables if baseline is None else [*tables, *cls._subject_gains(records, baseline)]

    @classmethod
    def _subject_gains(cls, records: Sequence[BenchmarkAnswer], baseline: str) -> list[Table]:
        rows = differences(records, baseline, _SUBJECT, lambda _: None)  # paper, "Fine-grained bootstrap"
        return [gains(rows, baseline, f"{cls.what} by subject", "Subject")] if rows else []

    @classmethod
    def notes(cls, records: Sequence[BenchmarkAnswer]) -> list[str]:
        cut = grouped((answer for answer in records if answer.truncated), lambda each: (each.task.upper(), each.run))
        return [cls.note] + [
            f"{row.task}, {row.run}: {number} of {row.overall.cases * row.overall.seeds} {what}."
            for row in cls.scores(records)
            for number, what in (
                (row.unreadable, "answers contain no answer that can be read"),
                (len(cut.get((row.task, row.run), ())), "prompts were too long and lost their beginning"),
            )
            if number
        ]

    @classmethod
    def pairs(cls, records: Sequence[BenchmarkAnswer], baseline: str) -> Pairs | None:
        rows, subjects = cls.differences(records, baseline), differences(records, baseline, _TASK, _SUBJECT)
        tables = [gains(rows, baseline, cls.what, cls.heading), changes(rows, baseline)]
        facts = {of.task: facts_of(row, of.parts) for row, of in zip(rows, subjects, strict=True)}
        return Pairs([*tables, *cls._subject_gains(records, baseline)], facts)


_TASK, _SUBJECT = attrgetter("task"), attrgetter("subject")


def messages_of(task: HarnessTask, doc: dict[str, Any]) -> list[dict[str, str]]:
    """Return the chat messages of the harness's prompt."""
    as_chat = {"apply_chat_template": True, "fewshot_as_multiturn": True}
    prompt: Any = task.fewshot_context(doc, 0, **as_chat, chat_template=lambda messages, **_: json.dumps(messages))
    return cast(list[dict[str, str]], json.loads(prompt))


# --- data and answers


def _records(data: str | None, split: str, hub: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    """Return places and records of a split."""
    instead = "a JSONL file or a directory with test.jsonl as data"
    if data is None:
        return [found for name, part in hub for found in hub_records(name, split, None, instead, part)]
    folder = Path(data)
    if folder.is_dir() or names_file(data):
        path = folder / f"{split}.jsonl" if folder.is_dir() else folder
        return [] if split == "dev" and (path == folder or not path.exists()) else list(json_lines(path))
    with hub_errors(data, split, instead):
        from datasets import get_dataset_config_names

        repository = hub_name(pinned(data, "dataset"))
        named = get_dataset_config_names(repository.name, **repository.options)
    parts: list[Any] = [part for _, part in hub if part in named] or [None]
    return [found for part in parts for found in hub_records(data, split, None, instead, part)]


def shuffled(rows: list[Row], seed: int) -> dict[str, Dataset]:
    """Return the questions in a random order, as the split `test`; raises InputError if there are none."""
    from datasets import Dataset

    if not rows:
        raise InputError("the data contains no question; give the benchmark's test split")
    random.Random(f"benchmark {seed}").shuffle(rows)
    return {"test": Dataset.from_list(rows)}


def text_of(record: Any, key: str, where: str) -> str:
    """Return a text of a record; raises InputError if it is missing or empty."""
    return cast(str, field_of(record, key, where, lambda value: isinstance(value, str) and bool(value.strip())))


def field_of(record: Any, key: str, where: str, fits: Callable[[Any], bool]) -> Any:
    """Return a value of a record; raises InputError if it is missing or doesn't fit."""
    if not isinstance(record, dict) or key not in record:
        raise InputError(f"{where}: no {key!r}; see the benchmark's format on the hub")
    if not fits(record[key]):
        raise InputError(f"{where}: {key!r} has a value of the wrong kind, {record[key]!r:.80}")
    return record[key]


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}`; None if there is none."""
    boxes = {box.end() - 1 for box in _BOX.finditer(text)}
    opened: list[int] = []
    last: tuple[int, int] | None = None  # the braces around the box that begins last
    for brace in _BRACE.finditer(text):
        place = brace.start()
        if brace[0] == "{":
            opened.append(place)
        elif opened and (start := opened.pop()) in boxes and (last is None or start > last[0]):
            last = (start, place)
    return None if last is None else text[last[0] + 1 : last[1]].strip()


def last_number(text: str) -> str | None:
    """Return the last number of a text, as plain digits, or None."""
    numbers = find_numbers(text)
    return f"{numbers[-1].value:f}" if numbers else None


def equivalent(gold: str, answer: str) -> bool:
    """Return whether two answers mean the same, as texts or as mathematics by math-verify. In the main thread
    math-verify's time is limited, by a signal."""
    if same_text(gold, answer):
        return True
    if max(len(gold), len(answer)) > LONGEST_ANSWER:
        return False
    bases = [match[1] for text in (gold, answer) if (match := _BASE.search(text))]
    if len(set(bases)) > 1:
        return False  # 506_7 is not 506_8: math-verify leaves the base out
    from math_verify import LatexExtractionConfig, parse, verify

    seconds: Any = 5 if threading.current_thread() is threading.main_thread() else None
    parsed = [
        # In a box of its own: without one, a right answer may be read as nothing.
        parse(f"\\boxed{{{text}}}", [LatexExtractionConfig(boxed_match_priority=0)], parsing_timeout=seconds)
        for text in (gold.removesuffix("."), answer.removesuffix("."))
    ]
    return all(parsed) and bool(verify(*parsed, timeout_seconds=seconds))


def same_text(gold: str, answer: str) -> bool:
    """Return whether two answers are the same text, but for blanks, styles and sizes."""
    return _plain(gold) == _plain(answer)


def _plain(answer: str) -> str:
    words = _WORDS.sub(r"\1", answer)
    return _NOT_SEEN.sub("", words).replace("dfrac", "frac").replace("tfrac", "frac").removesuffix(".")
