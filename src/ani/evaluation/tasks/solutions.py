"""Task `solutions`: loss a token in written solutions, of results and of other tokens, beside the base model's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np
from pydantic import Field, FiniteFloat

from ani.data.sources import ANNOTATION, text_of
from ani.errors import InputError
from ani.evaluation.engines import Engine
from ani.evaluation.task import Answers, Task
from ani.results.records import Integer
from ani.results.scores import ONE_MODEL, TaskRecord, by_seed, grouped
from ani.results.statistics import Estimate, area_under_roc, grouped_share, resampled, share_facts
from ani.results.tables import Cell, Table, percent
from ani.roles import Role

if TYPE_CHECKING:
    from ani.injection.locate import NumberLocator

LONGEST = 512
"""Tokens of a text; the rest is cut off."""

TokenKind = Literal["result", "behind", "instead", "other"]
_KINDS: dict[TokenKind, str] = {
    "result": "writes a pending value",
    "behind": "ends one",
    "instead": "writes something else while one is pending",
    "other": "all others",
}


class SolutionLoss(TaskRecord):
    """The loss on the tokens of one kind in one solution, a line of `solutions.jsonl`."""

    known_by = "solution", "kind"

    solution: Integer
    """Place in the data, from 0."""
    kind: TokenKind
    tokens: Integer = Field(ge=1)
    """How many are of this kind."""
    loss: FiniteFloat
    """Their negative log-likelihood in nats, summed."""
    base_loss: FiniteFloat
    """The same of the model without adapter."""
    end: float | None = None
    """Of `behind`: how probable it is that the text ends there, summed."""
    base_end: float | None = None
    """The same of the model without adapter."""
    gates: list[FiniteFloat] = Field(default=[])
    """The gate's logits at the tokens before these, where a value is pending; empty for a model without such a gate."""


class Solution(NamedTuple):
    """A solved problem, and its place in the data."""

    place: int
    text: str


class Loss(NamedTuple):
    """Mean loss a token, in nats."""

    tokens: int
    base: float
    change: Estimate
    """The model's minus the base model's, over resampled solutions."""


class Solutions(Task):
    """Nats a token in solutions that nobody wrote for us, by what the token writes."""

    name = "solutions"
    title = "Solutions"
    note = (
        "The loss on written solutions. A token writes a pending value, ends one, writes something else while one is "
        "pending, or is any other. A gate should be open before the first two, and shut before the third. 95% "
        "bootstrap intervals over solutions."
    )
    unit = "solutions"
    record = SolutionLoss
    together = 16

    data: str | None = None
    """JSON lines with `question` and `answer`, or `problem` and `solution`; null: GSM8K's test set, on the hub."""
    count: int = Field(default=100, ge=1)
    """Solutions, drawn at random."""

    def questions(self, seed: int) -> list[Solution]:
        """Solved problems as `Q: …\\nA: …`, without GSM8K's annotations."""
        from ani.evaluation.benchmarks.data import GSM8K, records

        found = []
        for place, (where, record) in enumerate(records(self.data, "test", GSM8K)):
            asked = isinstance(record, dict) and "question" in record
            names = ("question", "answer") if asked else ("problem", "solution")
            if not isinstance(record, dict) or not {*names} <= record.keys():
                raise InputError(f"{where}: expected 'question' and 'answer', or 'problem' and 'solution'")
            problem, solution = (text_of(record, name, where) for name in names)
            found.append(Solution(place, f"Q: {problem}\nA: {ANNOTATION.sub('', solution)}"))
        random.Random(f"solutions {seed}").shuffle(found)
        return found[: self.count]

    def answer(self, engine: Engine, questions: Sequence[Solution]) -> Answers:
        """Score every token, with the adapter and without."""
        import torch

        from ani.injection.attach import last_decision
        from ani.injection.config import AniConfig
        from ani.injection.locate import NumberLocator

        model = cast(Any, engine).model
        locator = NumberLocator(engine.tokenizer, AniConfig(layer=0, values="pending"))
        for index, question in enumerate(questions):
            row = engine.ids(question.text)[:LONGEST]
            kinds = token_kinds(locator, row)
            ids = torch.tensor([row], device=model.device)
            with torch.inference_mode():
                losses, ends, gates = [], [], dict[int, float]()
                for without in (False, True):
                    with engine.base() if without else torch.inference_mode():
                        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
                    losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist())
                    ends.append(logits.softmax(-1)[:, engine.tokenizer.eos_token_id].tolist())
                    if not without and engine.gated == "pending" and (decision := last_decision(model)):
                        numbers, injection = decision
                        gates = dict(zip(numbers.positions.tolist(), injection.logits.tolist(), strict=True))
            rows = []
            for kind in get_args(TokenKind):
                if at := [token for token, of in enumerate(kinds[1:]) if of == kind]:
                    loss, base_loss = (sum(each[token] for token in at) for each in losses)
                    facts: dict[str, Any] = {"solution": question.place, "kind": kind, "tokens": len(at)}
                    read = [] if kind == "other" else [gates[token] for token in at if token in gates]
                    if kind == "behind":
                        facts["end"], facts["base_end"] = (sum(each[token] for token in at) for each in ends)
                    rows.append(SolutionLoss(**facts, loss=loss, base_loss=base_loss, gates=read))
            yield index, rows

    @classmethod
    def losses(cls, records: Sequence[SolutionLoss]) -> dict[str, Loss]:
        """Of one run: of all tokens, and by kind."""
        found: dict[str, Loss] = {}
        seeds = len(by_seed(records[0].run, records))
        for kind in ("all", *get_args(TokenKind)):
            sums: dict[int, np.ndarray] = {}
            for record in records:
                if kind in ("all", record.kind):
                    sums.setdefault(record.solution, np.zeros(3))[:] += record.loss, record.base_loss, record.tokens
            if sums:
                rows = np.array([*sums.values()])
                _, base, tokens = rows.sum(axis=0)
                change = resampled(rows, lambda means: (means[:, 0] - means[:, 1]) / means[:, 2], seeds=seeds)
                found[kind] = Loss(round(tokens / seeds), float(base / tokens), change)
        return found

    @classmethod
    def ends(cls, records: Sequence[SolutionLoss]) -> tuple[float, float] | None:
        """Of one run: the mean probability, without adapter and with it, that the text ends behind a value."""
        behind = [record for record in records if record.end is not None]
        tokens = sum(record.tokens for record in behind)
        base, ours = (sum(getattr(record, name) for record in behind) for name in ("base_end", "end"))
        return (base / tokens, ours / tokens) if tokens else None

    @classmethod
    def gates(cls, records: Sequence[SolutionLoss]) -> tuple[Estimate, Estimate, float] | None:
        """Of one run: the share of gates open where the value follows, the share shut where something else does, and
        the area under the ROC curve. None without gates of both kinds."""
        gates = [(r.solution, r.kind != "instead", z) for r in records for z in r.gates]
        opened = grouped_share((place, z > 0) for place, follows, z in gates if follows)
        shut = grouped_share((place, z <= 0) for place, follows, z in gates if not follows)
        if opened is None or shut is None:
            return None
        return opened, shut, area_under_roc(*([z for _, follows, z in gates if follows is of] for of in (True, False)))

    @classmethod
    def summary(cls, records: Sequence[SolutionLoss]) -> dict[str, Any]:
        found: dict[str, Any] = {
            kind: {"tokens": loss.tokens, "base": loss.base, **loss.change._asdict()}
            for kind, loss in cls.losses(records).items()
        }
        found["end"] = cls.ends(records)
        if gates := cls.gates(records):
            opened, shut, auc = gates
            found["gates"] = {"open": share_facts(opened), "shut": share_facts(shut), "auc": auc}
        return found

    @classmethod
    def tables(cls, records: Sequence[SolutionLoss], baseline: str | None = None) -> list[Table]:
        tables = []
        for run, of_run in grouped(records, lambda record: record.run).items():
            rows = []
            for kind, (tokens, base, change) in cls.losses(of_run).items():
                label = "all" if kind == "all" else _KINDS[cast(TokenKind, kind)]
                with_it = Cell(f"{base + change.value:.3f}")
                shown = Cell(f"{change.value:+.3f}", (f"{change.low:+.3f}…{change.high:+.3f}",))
                rows.append((Cell(label), Cell(f"{tokens:,}"), Cell(f"{base:.3f}"), with_it, shown))
            of = "" if run == ONE_MODEL else f" of {run}"
            caption = f"Nats a token{of}: of the base model, and with the adapter; 95% intervals of the change"
            tables.append(Table(caption, ("Tokens", "n", "Base model", "With", "Change"), tuple(rows), label_columns=1))
            if ends := cls.ends(of_run):
                caption = f"How probable it is that the text ends behind a value{of}"
                tables.append(
                    Table(caption, ("Base model", "With"), (tuple(Cell(f"{p:.2%}") for p in ends),), label_columns=0)
                )
            if gates := cls.gates(of_run):
                opened, shut, auc = gates
                caption = f"Gates where a value is pending{of}: 95% intervals"
                header = ("Open where it follows", "Shut where something else follows", "AUC")
                tables.append(
                    Table(caption, header, ((percent(opened), percent(shut), Cell(f"{auc:.3f}")),), label_columns=0)
                )
        return tables


def token_kinds(locator: NumberLocator, row: list[int]) -> list[TokenKind]:
    """What each token of a text writes; `locator` is one of pending values. The token behind a value ends it, and so
    does the next one behind a full stop or comma, as the number might go on there."""

    kinds: list[TokenKind] = ["other"] * len(row)
    numbers = locator.batch([row], roles=[[Role.UNKNOWN] * len(row)])
    for pending, token, role in zip(
        locator.pending(row).values(), numbers.positions.tolist(), numbers.roles.tolist(), strict=True
    ):
        if token + 1 < len(row):
            written: TokenKind = "result" if pending.next(1)[0].character else "behind"
            kinds[token + 1] = written if role == Role.QUANTITATIVE else "instead"
            full_stop = kinds[token + 1] == "behind" and locator.scanner.text(row[token + 1 : token + 2]) == "."
            if full_stop and token + 2 < len(row):
                kinds[token + 2] = "behind"
    return kinds
