"""Finds the numbers among the tokens that a serving engine schedules in one step.

An engine's forward pass sees only the scheduled tokens: one per request in decode, a slice of the prompt in chunked
prefill, nothing of a cached prefix. The tokens before them come from the engine's own table of token ids.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ani.injection.locate import NumberLocator
from ani.injection.number_batch import PADDING, NumberBatch
from ani.roles import Role

Ids = np.ndarray[Any, np.dtype[np.integer[Any]]]
Features = np.ndarray[Any, np.dtype[np.float32]]


class EngineStep(NamedTuple):
    """The R requests of a step, whose scheduled tokens form one flat row."""

    names: list[str]
    """Request ids."""
    token_ids: Ids
    """The engine's table, (rows, longest text): each request's tokens, up to the last scheduled one at least."""
    rows: Ids
    """Row of each request in `token_ids`, (R,)."""
    prompt_lengths: Ids
    """Tokens of each prompt, (R,)."""
    starts: Ids
    """Index of each request's first scheduled token in its text, (R,)."""
    offsets: Ids
    """Index of the same token in the step's flat row, and at the end the row's length, (R + 1,)."""
    closed: Callable[[int], bool] = lambda request: False
    """Returns True if a request, by its index, asks for closed gates."""
    numbers: Callable[[int], Sequence[tuple[int, str]]] = lambda request: ()
    """Returns the numbers that a request, by its index, brings with its prompt (`NumberLocator.prompt`)."""

    @property
    def stops(self) -> Ids:
        """Index after each request's last scheduled token in its text, (R,)."""
        stops: Ids = self.starts + np.diff(self.offsets)
        return stops

    def text(self, request: int) -> Ids:
        """Token ids of a request, by its index, from its first token to the last scheduled one."""
        text: Ids = self.token_ids[self.rows[request], : self.stops[request]]
        return text


class StepLocator:
    """Finds the numbers of engine steps, as `NumberLocator` finds those of a batch of rows.

    Under a policy that is not causal, each request brings its prompt's numbers, and generated numbers get nothing.
    """

    def __init__(self, locator: NumberLocator) -> None:
        self.locator = locator
        self._nothing = np.zeros(0, dtype=np.int64), np.zeros((0, locator.encoder.width), dtype=np.float32)
        self.reads_answers = locator.causal
        """True if numbers are also found among generated tokens."""

    def find(self, step: EngineStep | None) -> tuple[Ids, Features]:
        """Return the tokens that carry a number, as indices into the step's flat row, int64 (N,), and φ of the
        numbers, float32 (N, the encoder's width). None is a step without requests."""
        if step is None:
            return self._nothing
        requests = [i for i in self._candidates(step).nonzero()[0].tolist() if not step.closed(i)]
        if not requests:
            return self._nothing
        if self.reads_answers:
            texts = cast(Any, [step.text(i) for i in requests])
            numbers = self.locator.batch(texts, start=step.starts[requests].tolist())
        else:
            numbers = self._of_prompts(step, requests)
        firsts = step.offsets[requests][numbers.rows.numpy()]
        return numbers.positions.numpy() + firsts, numbers.features.numpy()

    def _candidates(self, step: EngineStep) -> Any:
        """False for requests whose scheduled tokens certainly carry no number, bool (R,). Cheap tables decide."""
        may = step.starts < step.prompt_lengths
        if not self.reads_answers:
            return may
        places = step.starts[:, None] + np.arange(-2, 1)
        tokens = np.where(places >= 0, step.token_ids[step.rows[:, None], places], PADDING)
        digits, closed, marks = (table.take(tokens + 1, mode="clip") for table in self.locator.scanner.tables)
        may |= (np.diff(step.offsets) > 1) | digits[:, 2]
        if self.locator.policy == "after":
            may |= ~(closed[:, 1] | marks[:, 1] & closed[:, 0])
        return may

    def _of_prompts(self, step: EngineStep, requests: list[int]) -> NumberBatch:
        found = [
            (row, token - int(step.starts[i]), text)
            for row, i in enumerate(requests)
            for token, text in step.numbers(i)
            if step.starts[i] <= token < step.stops[i]
        ]
        rows, positions = torch.tensor([each[:2] for each in found], dtype=torch.long).reshape(len(found), 2).T
        features = self.locator.encoder.encode([text for *_, text in found])
        return NumberBatch(rows, positions, features, torch.full_like(rows, Role.UNKNOWN), torch.zeros_like(rows))
