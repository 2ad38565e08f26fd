"""However an engine cuts requests into steps, the numbers found are those of the whole rows."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ani import AniConfig
from ani.injection.locate import NumberLocator
from ani.serving.engine_step import EngineStep, StepLocator
from tests import tokenizers
from tests.properties import examples

POLICIES = ["terminal", "digitwise", "running", "after"]
PROMPTS = [
    "Room 505 holds 10 of 1,234,567 people; -7.25e3",
    "3.14159 and 2.0.1",
    "no number here, but after it:",
    "12",
    "So 1,200 + 34 =",
    "What is 12 * 7? And 9 - 4?",
]
ANSWERS = [" 12 34", "265 = 98765.4321", " 7 8 9", "34.5 of 6", " 1234, 2 * 3 = 6", " It is 84, then 5. So = 7?"]


class Part(NamedTuple):
    """The tokens of a request that a step schedules."""

    name: str
    ids: Sequence[int]
    prompt_length: int
    start: int
    stop: int


@cache
def locators(policy: Any) -> tuple[NumberLocator, Any]:
    tokenizer = tokenizers.llama3()  # up to three digits per token
    return NumberLocator(tokenizer, AniConfig(layer=0, policy=policy)), tokenizer


def whole(locator: NumberLocator, ids: Sequence[int]) -> dict[int, list[float]]:
    """The features at each token of a row that is read at once."""
    numbers = locator.batch([ids])
    return dict(zip(numbers.positions.tolist(), numbers.features.tolist(), strict=True))


def engine_step(
    locator: NumberLocator, parts: Sequence[Part], closed: Callable[[int], bool] = lambda i: False
) -> EngineStep:
    """A step whose table has a row for each request, in reverse order; tokens that are not known yet are -9."""
    token_ids = np.full((len(parts), 100), -9, dtype=np.int32)
    rows = np.arange(len(parts))[::-1]
    for row, part in zip(rows, parts, strict=True):
        known = max(part.stop, part.prompt_length)
        token_ids[row, :known] = part.ids[:known]
    sizes = [part.stop - part.start for part in parts]
    columns = np.array([(part.prompt_length, part.start) for part in parts], dtype=int).reshape(-1, 2).T
    brought = [locator.prompt(part.ids[: part.prompt_length])[1] for part in parts]
    offsets = np.cumsum([0, *sizes])
    return EngineStep([part.name for part in parts], token_ids, rows, *columns, offsets, closed, lambda i: brought[i])


def found(steps: StepLocator, parts: Sequence[Part]) -> list[dict[int, list[float]]]:
    """The features at each token of a step's requests."""
    places, features = steps.find(engine_step(steps.locator, parts))
    assert len(places) == len({*places.tolist()}) == len(features)
    at, offset, per_request = dict(zip(places.tolist(), features.tolist(), strict=True)), 0, []
    for part in parts:
        tokens = range(part.start, part.stop)
        per_request.append({t: at.pop(offset + i) for i, t in enumerate(tokens) if offset + i in at})
        offset += len(tokens)
    assert not at
    return per_request


@pytest.mark.parametrize("policy", POLICIES)
@examples(25)
@given(seed=st.integers(0, 10**6))
def test_steps_find_the_numbers_of_whole_rows(policy: str, seed: int) -> None:
    draw = random.Random(seed)
    locator, tokenizer = locators(policy)
    steps = StepLocator(locator)
    prompts, answers = (tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (PROMPTS, ANSWERS))
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    expected = [whole(locator, row) for row in (rows if locator.causal else prompts)]
    seen: list[dict[int, list[float]]] = [{} for _ in rows]
    done = [0] * len(rows)
    while any(at < len(row) for at, row in zip(done, rows, strict=True)):
        order, step = draw.sample(range(len(rows)), draw.randint(1, len(rows))), []
        for i in order:
            if draw.random() < 0.05:  # preempted: it starts again; or drafted tokens were rejected
                done[i] = draw.choice([0, max(0, done[i] - 3)])
                seen[i] = {token: features for token, features in seen[i].items() if token < done[i]}
            in_prompt = done[i] < len(prompts[i])
            room = len(prompts[i]) - done[i] if in_prompt else min(1, len(rows[i]) - done[i])
            size = draw.randint(1, room) if room else 0
            step.append(Part(f"request {i}", rows[i], len(prompts[i]), done[i], done[i] + size))
            done[i] += size
        step = [part for part in step if part.stop > part.start]
        for part, at in zip(step, found(steps, step), strict=True):
            seen[int(part.name.removeprefix("request "))] |= at
    assert seen == expected


@pytest.mark.parametrize("policy", ["terminal", "after"])
def test_closed_requests_get_nothing(policy: str) -> None:
    locator, tokenizer = locators(policy)
    ids = tokenizer("Room 505 holds 10 people", add_special_tokens=False)["input_ids"]
    parts = [Part(name, ids, len(ids), 0, len(ids)) for name in ("closed", "open")]
    places, _ = StepLocator(locator).find(engine_step(locator, parts, closed=lambda i: i == 0))
    assert places.tolist() == [len(ids) + token for token in whole(locator, ids)]


def test_a_step_without_requests_has_no_numbers() -> None:
    for policy in POLICIES:
        with torch.device("meta"):  # vLLM makes models on their device
            steps = StepLocator(locators(policy)[0])
        for step in (None, engine_step(steps.locator, [])):
            places, features = steps.find(step)
            assert len(places) == len(features) == 0 and places.dtype == np.int64 and features.dtype == np.float32
