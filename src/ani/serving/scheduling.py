"""Finds the numbers among the tokens that a serving engine schedules in one step; `ani.serving.vllm` calls it.

A serving engine's forward sees the scheduled tokens alone: one a request in decode, a slice in chunked prefill, nothing
of a cached prefix. What stands before them comes from the engine's own table of token ids.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ani.injection.locate import PADDING, Carrier, NumberBatch, NumberLocator, RowReader

Ids = np.ndarray[Any, np.dtype[np.integer[Any]]]
Features = np.ndarray[Any, np.dtype[np.float32]]


_REMEMBERED = 4096
"""Requests of which it is remembered what is pending."""


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


class _Read(NamedTuple):
    """What was read of a request."""

    reader: RowReader
    carriers: list[Carrier]
    """Of the tokens that were read last."""
    features: Features | None
    """φ of what is pending at each token from here to `until`, unless it may change at one of them."""
    until: int


class StepLocator:
    """Finds the numbers of engine steps, as `NumberLocator` does those of a batch of rows.

    Unless the policy is causal, a prompt is read once, however many steps it takes; what is generated gets nothing.
    """

    def __init__(self, locator: NumberLocator) -> None:
        self._locator = locator
        self._prompts: dict[str, NumberBatch] = {}
        self._read: dict[str, _Read] = {}
        self._ahead: dict[tuple[str, int], Features | None] = {}
        """By request and token: φ of what a token carries that was read before its step; None: it carries nothing."""
        self._none = np.zeros((0, locator.encoder.width), dtype=np.float32)

    @property
    def prefill_only(self) -> bool:
        """Whether requests past their prompt can be left out of a step."""
        return not self._locator.causal

    def scheduled(
        self, names: Sequence[str], token_ids: Ids, rows: Ids, prompt_lengths: Ids, starts: Ids, offsets: Ids
    ) -> list[Scheduled]:
        """The requests of a step that may have a number at a scheduled token, told by tables or `read_ahead`: most have
        none, so that nobody has to read them.

        Args:
            names: Of R requests.
            token_ids: The engine's table, a row a request.
            rows: Of the R requests in `token_ids`.
            prompt_lengths: As in `Scheduled`; 0: its gates are shut.
            starts: As in `Scheduled`.
            offsets: As in `Scheduled`, and the length of the step's flat row.
        """
        sizes = offsets[1:] - offsets[:-1]
        may = starts < prompt_lengths  # what was read under this name may be of an earlier request
        if not self.prefill_only:
            may |= sizes > 1
            places = [*zip(names, starts.tolist(), strict=True)]
            if all(place in self._ahead for place in places):
                may |= np.array([self._ahead[place] is not None for place in places], dtype=bool)
            else:
                may |= self._may_carry(names, token_ids, rows, starts)
        step = []
        for i in may.nonzero()[0].tolist():
            prompt_length, start = int(prompt_lengths[i]), int(starts[i])
            if prompt_length:
                part = prompt_length, start, start + int(sizes[i]), int(offsets[i])
                step.append(Scheduled(names[i], token_ids[rows[i]], *part))
        return step

    def _may_carry(self, names: Sequence[str], token_ids: Ids, rows: Ids, starts: Ids) -> Any:
        """Whether the R tokens at `starts` may carry something, bool (R,)."""
        may: Any = False
        if self._locator.reads_pending:
            read = zip(map(self._read.get, names), starts.tolist(), strict=True)
            known = [each is None or each.reader.tokens > start or not each.reader.idle for each, start in read]
            may = np.array(known, dtype=bool) | self._locator.may_learn(token_ids[rows, starts])
        if self._locator.reads_literals:
            places = starts[:, None] + np.arange(-2, 1)
            may |= self._locator.may_end(np.where(places >= 0, token_ids[rows[:, None], places], PADDING))
        return may

    def find(self, step: Sequence[Scheduled]) -> tuple[Ids, Features]:
        """The tokens that carry something, as indices into the step's flat row, int64 (N,), and its φ, float32 (N, the
        encoder's width)."""
        if self.prefill_only:
            return self._of_prompts(step)
        locator, places, carriers = self._locator, [], []
        same: dict[int, Features] = {}  # by their places
        ahead, self._ahead = self._ahead, {}
        read_on: list[tuple[str, RowReader, list[Carrier]]] = []
        for name, token_ids, prompt_length, start, stop, offset in step:
            if prompt_length <= start == stop - 1 and (name, start) in ahead:
                if (known := ahead[name, start]) is not None:
                    same[offset] = known
                continue
            # A prompt may have an earlier request's name; behind one, drafted tokens may have been refused.
            read = self._read.get(name) if start >= prompt_length else None
            read = read if read and read.reader.tokens <= start else None
            if (
                read
                and read.features is not None
                and stop == start + 1 <= read.until
                and not locator.may_change(token_ids[start])
            ):
                same[offset] = read.features
                continue
            reader = read.reader if read else None
            found = locator.carriers(token_ids[:stop], start=start, reader=reader)
            places += [each.token - start + offset for each in found]
            carriers += found
            if locator.reads_pending:
                read_on.append((name, reader or locator.reader(token_ids[:stop]), found))
        features = locator.encode(carriers).numpy() if carriers else self._none
        row = 0
        for name, reader, found in read_on:
            row += len(found)
            lasts = 0 if locator.reads_literals else reader.lasts
            self._read[name] = _Read(reader, found, features[row - 1] if lasts else None, reader.tokens + lasts)
        while len(self._read) > _REMEMBERED:
            del self._read[next(iter(self._read))]
        if same:
            features = np.concatenate([features, [*same.values()]])
        return np.array([*places, *same], dtype=np.int64), features

    def read_ahead(self, names: Sequence[str], starts: Ids, step: Sequence[Scheduled]) -> None:
        """Find what the newest token of each generating request carries, so that the next step has nothing to read.

        Args:
            names: Of R requests.
            starts: Indices of their newest tokens, each in its request.
            step: What `scheduled` gives for these tokens: the flat row has R.
        """
        positions, features = self.find(step)
        found = dict(zip(positions.tolist(), features, strict=True))
        newest = zip(names, starts.tolist(), strict=True)
        self._ahead = {place: found.get(row) for row, place in enumerate(newest)}

    def texts(self, request: Scheduled) -> dict[int, str]:
        """What the tokens carry of a request of the latest step, as it is written: the number, or what makes a value
        pending. Of a number that several tokens carry only the last one is named."""
        _, ids, prompt_length, start, stop, _ = request
        numbers = self._locator.find(ids[: prompt_length if self.prefill_only else stop], start=start)
        found = {token: number.text for number, token in numbers}
        if read := self._read.get(request.request_id):
            found |= {max(token, start): pending.text for token, _, pending in read.carriers if pending}
        return {token: text for token, text in sorted(found.items()) if token < stop}

    def _of_prompts(self, step: Sequence[Scheduled]) -> tuple[Ids, Features]:
        positions, features = [], []
        unfinished = {}
        for request in step:
            if request.start >= request.prompt_length:
                continue
            # One that starts may be another under the same id, or the same after a preemption.
            numbers = self._prompts.get(request.request_id) if request.start else None
            if numbers is None:
                numbers = self._locator.batch([request.token_ids[: request.prompt_length]])
            if request.stop < request.prompt_length:
                unfinished[request.request_id] = numbers
            part = numbers.between(request.start, request.stop)
            positions.append(part.positions.numpy() + request.offset)
            features.append(part.features.numpy())
        self._prompts = unfinished
        return np.concatenate([[], *positions]).astype(np.int64), np.concatenate([self._none, *features])
