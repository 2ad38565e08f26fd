"""However an engine cuts requests into steps, the numbers are those of the whole rows."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ani import AniConfig
from ani.calculator.reader import pending
from ani.injection.locate import NumberLocator
from ani.serving.scheduling import Scheduled, StepLocator
from tests import tokenizers
from tests.properties import examples

POLICIES = ["terminal", "digitwise", "running", "after"]
CONFIGS: dict[str, dict[str, Any]] = {
    **{policy: {"policy": policy} for policy in POLICIES},
    "both": {"values": "both", "policy": "after"},
    "pending": {"values": "pending"},
}
PROMPTS = [
    "Room 505 holds 10 of 1,234,567 people; -7.25e3",
    "3.14159 and 2.0.1",
    "no number here, but after it:",
    "12",
    "So 1,200 + 34 =",
    "What is 12 * 7? And 9 - 4?",
]
ANSWERS = [" 12 34", "265 = 98765.4321", " 7 8 9", "34.5 of 6", " 1234, 2 * 3 = 6", " It is 84, then 5. So = 7?"]


@cache
def locators(config: str) -> tuple[NumberLocator, Any]:
    tokenizer = tokenizers.llama3()  # up to three digits a token
    return NumberLocator(tokenizer, AniConfig(layer=0, **CONFIGS[config])), tokenizer


def whole(locator: NumberLocator, ids: Sequence[int]) -> dict[int, list[float]]:
    """The features at each token of a row, read at once."""
    numbers = locator.batch([ids])
    return dict(zip(numbers.positions.tolist(), numbers.features.tolist(), strict=True))


def found(steps: StepLocator, step: Sequence[Scheduled]) -> list[dict[int, list[float]]]:
    """The features at each token of a step's requests."""
    places, features = steps.find(step)
    assert len(places) == len({*places.tolist()}) == len(features)
    at = dict(zip(places.tolist(), features.tolist(), strict=True))
    return [
        {token: at.pop(place) for place, token in enumerate(range(each.start, each.stop), each.offset) if place in at}
        for each in step
    ]


def scheduled(steps: StepLocator, step: Sequence[Scheduled]) -> set[str]:
    token_ids = np.zeros((len(step), 100), dtype=np.int32)
    for row, request in enumerate(step):
        token_ids[row, : request.stop] = request.token_ids[: request.stop]
    names = [each.request_id for each in step]
    prompts, starts = np.array([(each.prompt_length, each.start) for each in step], dtype=int).reshape(-1, 2).T
    offsets = np.cumsum([0, *(each.stop - each.start for each in step)])
    told = steps.scheduled(names, token_ids, np.arange(len(step)), prompts, starts, offsets)
    assert all(each.stop == step[names.index(each.request_id)].stop for each in told)
    return {each.request_id for each in told}


def read_ahead(steps: StepLocator, step: Sequence[Scheduled]) -> None:
    told = scheduled(steps, step)
    starts = np.array([each.start for each in step], dtype=int)
    steps.read_ahead([each.request_id for each in step], starts, [each for each in step if each.request_id in told])


def test_prose_is_not_read() -> None:
    locator, tokenizer = locators("after")
    ids = tokenizer("No, said E. Fox, it isn't... 1, 2", add_special_tokens=False)["input_ids"]
    step = [Scheduled(str(i), ids, 1, i, i + 1, i) for i in range(len(ids))]
    expected = {str(i) for i in range(len(ids)) if "1" in tokenizer.decode(ids[: i + 1])}
    assert scheduled(StepLocator(locator), step) - expected <= {"0", "1"}


def test_prose_behind_which_nothing_is_pending_is_not_read() -> None:
    locator, tokenizer = locators("pending")
    steps = StepLocator(locator)
    ids = tokenizer("Tell me a tale. Once upon a time 7 dwarfs had 3 + 4 =", add_special_tokens=False)["input_ids"]
    steps.find([Scheduled("a", ids, 5, 0, 5, 0)])
    read = [i for i in range(5, len(ids)) if scheduled(steps, [Scheduled("a", ids, 5, i, i + 1, 0)])]
    assert read == [len(ids) - 1]
    assert found(steps, [Scheduled("a", ids, 5, read[0], len(ids), 0)]) == [whole(locator, ids)] != [{}]


def test_prose_that_changes_nothing_of_what_is_pending_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "MEMORY", 16)
    locator, tokenizer = locators("pending")
    steps, read = StepLocator(locator), []
    carriers = NumberLocator.carriers
    prompt = tokenizer("What is 12 * 7?", add_special_tokens=False)["input_ids"]
    answer = " Well, I think that it is, if I may say so, of all the numbers there are, 8"
    ids = prompt + tokenizer(answer, add_special_tokens=False)["input_ids"]
    expected = whole(locator, ids)

    def counted(self: NumberLocator, token_ids: Sequence[int], **given: Any) -> Any:
        read.append(len(token_ids))
        return carriers(self, token_ids, **given)

    monkeypatch.setattr(NumberLocator, "carriers", counted)
    steps.find([Scheduled("a", ids, len(prompt), 0, len(prompt), 0)])
    for i in range(len(prompt), len(ids)):
        (at,) = found(steps, [Scheduled("a", ids, len(prompt), i, i + 1, 7)])
        assert at == {token: features for token, features in expected.items() if token == i}
    forgotten = max(expected) + 1
    assert len(prompt) < forgotten < len(ids)
    assert read == [len(prompt), *range(forgotten + 1, len(ids) + 1)]


@pytest.mark.parametrize("config", CONFIGS)
@examples(25)
@given(seed=st.integers(0, 10**6))
def test_steps_find_what_whole_rows_hold(config: str, seed: int) -> None:
    draw = random.Random(seed)
    locator, tokenizer = locators(config)
    steps = StepLocator(locator)
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROMPTS]
    rows = [
        prompt + tokenizer(text, add_special_tokens=False)["input_ids"]
        for prompt, text in zip(prompts, ANSWERS, strict=True)
    ]
    read = rows if locator.causal else prompts
    expected = [whole(locator, row) for row in read]
    seen: list[dict[int, list[float]]] = [{} for _ in rows]
    done = [0] * len(rows)
    while any(at < len(row) for at, row in zip(done, rows, strict=True)):
        order = draw.sample(range(len(rows)), draw.randint(1, len(rows)))
        step, offset = [], 0
        for i in order:
            if draw.random() < 0.05:  # preempted: it starts again; or drafted tokens were refused
                done[i] = draw.choice([0, max(0, done[i] - 3)])
                seen[i] = {token: features for token, features in seen[i].items() if token < done[i]}
            in_prompt = done[i] < len(prompts[i])
            room = len(prompts[i]) - done[i] if in_prompt else min(1, len(rows[i]) - done[i])
            size = draw.randint(1, room) if room else 0
            known = rows[i][: max(done[i] + size, len(prompts[i]))]
            step.append(Scheduled(f"request {i}", known, len(prompts[i]), done[i], done[i] + size, offset))
            done[i] += size
            offset += size
        may = scheduled(steps, [request for request in step if request.stop > request.start])
        asked = [row for row, request in enumerate(step) if request.request_id in may]
        for row, at in zip(asked, found(steps, [step[row] for row in asked]), strict=True):
            seen[order[row]] |= at
            named = set(steps.texts(step[row]))
            assert named <= set(at) if config == "digitwise" else named == set(at)
        if locator.causal and draw.random() < 0.5:  # of some requests, be they in the next step or not
            generating = [i for i, row in enumerate(rows) if len(prompts[i]) <= done[i] < len(row)]
            read_ahead(
                steps,
                [
                    Scheduled(f"request {i}", rows[i][: done[i] + 1], len(prompts[i]), done[i], done[i] + 1, at)
                    for at, i in enumerate(draw.sample(generating, draw.randint(0, len(generating))))
                ],
            )
    assert seen == expected


def test_what_is_read_ahead_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    locator, tokenizer = locators("pending")
    steps = StepLocator(locator)
    prompt = tokenizer("What is 12 * 7?", add_special_tokens=False)["input_ids"]
    tale = tokenizer("Tell me a tale.", add_special_tokens=False)["input_ids"]
    ids, told = prompt + tokenizer("84", add_special_tokens=False)["input_ids"], [*tale, *tale]
    steps.find([Scheduled("a", ids, len(prompt), 0, len(prompt), 0)])
    steps.find([Scheduled("b", told, len(tale), 0, len(tale), 0)])
    asked = Scheduled("a", ids, len(prompt), len(prompt), len(prompt) + 1, 0)
    step = [asked, Scheduled("b", told, len(tale), len(tale), len(tale) + 1, 1)]
    expected = {len(prompt): whole(locator, ids)[len(prompt)]}
    read_ahead(steps, step)
    monkeypatch.delattr(NumberLocator, "carriers")
    assert scheduled(steps, step[::-1]) == {"a"}
    assert found(steps, [asked]) == [expected]


def test_what_tokens_carry_is_named() -> None:
    for config, expected in [
        ("terminal", ["505", "1,200", "34"]),
        ("after", ["505", "1,200", "34"]),
        ("pending", ["1,200 + 34"]),
    ]:
        locator, tokenizer = locators(config)
        ids = tokenizer("Room 505: 1,200 + 34 =", add_special_tokens=False)["input_ids"]
        request = Scheduled("a", ids, len(ids), 1, len(ids), 0)
        steps = StepLocator(locator)
        steps.find([request])
        assert list(steps.texts(request).values()) == expected


def test_another_request_under_the_same_id_has_its_own_numbers() -> None:
    locator, tokenizer = locators("terminal")
    steps = StepLocator(locator)
    for text in ("Room 505 and 17 of it", "Bus 12 and 3 of it"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        (at,) = found(steps, [Scheduled("the same", ids, len(ids), 0, 4, 0)])  # and then it is aborted
        assert at == {k: v for k, v in whole(locator, ids).items() if k < 4}


def test_a_step_without_requests_has_no_numbers() -> None:
    for config in CONFIGS:
        locator = locators(config)[0]
        with torch.device("meta"):  # vLLM makes models on their device
            steps = StepLocator(locator)
        places, features = steps.find([])
        assert len(places) == len(features) == 0 and places.dtype == np.int64 and features.dtype == np.float32
