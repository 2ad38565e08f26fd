"""Finds the numbers among the tokens that a serving engine schedules in one step; `ani.serving.vllm` calls it.

A serving engine's forward sees the scheduled tokens alone: one a request in decode, a slice in chunked prefill, nothing
of a cached prefix. What stands before them comes from the engine's own table of token ids.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ani.injection.locate import PADDING, NumberBatch, NumberLocator

Ids = np.ndarray[Any, np.dtype[np.integer[Any]]]


_REMEMBERED = 4096
"""Requests of which it is remembered that nothing is pending."""


class Scheduled(NamedTuple):
    """A request's part of a step: its tokens from `start` to `stop`."""

    request_id: str
    token_ids: Sequence[int]
    """The request's tokens from its first on, at least up to `stop`."""
    prompt_length: int
    start: int
    stop: int
    offset: int
    """Index of the token `start` in the step's flat row of tokens."""


class StepLocator:
    """Finds the numbers of engine steps, as `NumberLocator` does those of a batch of rows.

    Unless the policy is causal, a prompt is read once, however many steps it takes; what is generated gets nothing.
    """

    def __init__(self, locator: NumberLocator) -> None:
        self._locator = locator
        self._prompts: dict[str, NumberBatch] = {}
        self._idle: dict[str, int] = {}
        """Requests that were read up to this token, behind which nothing is pending."""

    @property
    def prefill_only(self) -> bool:
        """Whether requests past their prompt can be left out of a step."""
        return not self._locator.causal

    def may_have_numbers(
        self, names: Sequence[str], token_ids: Ids, rows: Ids, prompt_lengths: Ids, starts: Ids, stops: Ids
    ) -> Any:
        """Which requests of a step may have a number at a scheduled token, bool (R,), told by tables alone: most have
        none, so that nobody has to read them. `rows` are the requests' in `token_ids`; the others are as in
        `Scheduled`, each (R,)."""
        if self.prefill_only:
            return starts < prompt_lengths
        read = np.array([self._idle.get(name, sys.maxsize) for name in names], dtype=np.int64)
        places = starts[:, None] + np.arange(-2, 1)
        last = np.where(places >= 0, token_ids[rows[:, None], places], PADDING)
        begins = (stops - starts > 1) | (starts < prompt_lengths)  # a prompt may have an earlier request's name
        return begins | self._locator.may_carry(last, idle=read <= starts)

    def find(self, step: Sequence[Scheduled]) -> NumberBatch:
        """The numbers at the scheduled tokens; `positions` are indices into the step's flat row, `rows` into `step`."""
        if self.prefill_only:
            return self._of_prompts(step)
        rows = [request.token_ids[: request.stop] for request in step]
        # On from where a request was read: the tokens since then have nothing.
        starts = [request.start for request in step]
        for row, request in enumerate(step):
            read = self._idle.pop(request.request_id, request.start)
            if request.start >= request.prompt_length:
                starts[row] = min(request.start, read)
        found = self._locator.batch(rows, start=starts)
        if len(self._idle) >= _REMEMBERED:
            self._idle.clear()
        idle = [request for request, row in zip(step, rows, strict=True) if self._locator.idle(row)]
        self._idle |= {request.request_id: request.stop for request in idle}
        shifts = [request.offset - request.start + start for request, start in zip(step, starts, strict=True)]
        return replace(found, positions=found.positions + torch.tensor(shifts, dtype=torch.long)[found.rows])

    def texts(self, request: Scheduled) -> dict[int, str]:
        """What a request's scheduled tokens carry, as it is written: the number, or what makes a value pending.

        Of a number that several tokens carry only the last one is named.
        """
        ids = request.token_ids[: request.prompt_length if self.prefill_only else request.stop]
        found = {token: number.text for number, token in self._locator.find(ids, start=request.start)}
        found |= {token: each.text for token, each in self._locator.pending(ids, start=request.start).items()}
        return {token: text for token, text in sorted(found.items()) if token < request.stop}

    def _of_prompts(self, step: Sequence[Scheduled]) -> NumberBatch:
        parts = []
        unfinished = {}
        for row, request in enumerate(step):
            if request.start >= request.prompt_length:
                continue
            # One that starts may be another under the same id, or the same after a preemption.
            numbers = self._prompts.get(request.request_id) if request.start else None
            if numbers is None:
                numbers = self._locator.batch([request.token_ids[: request.prompt_length]])
            if request.stop < request.prompt_length:
                unfinished[request.request_id] = numbers
            part = numbers.between(request.start, request.stop)
            parts.append(replace(part, rows=part.rows + row, positions=part.positions + request.offset))
        self._prompts = unfinished
        return NumberBatch.concatenated(parts) if parts else self._locator.batch([])
