"""Invariants 1 to 5 and 8: what injection may change, and that every way of running the model agrees.

The strategies write texts full of numbers; generation is confined to digits and punctuation, so that numbers are
also generated.

Each test has every family once and every policy, and together the tests have every pair of the two; `make stress` has
every pair in each test.
"""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from ani import AniConfig, NumberBatch, attach, detach, load_adapter, save_adapter
from ani.data.collator import NumberCollator, tokenize
from ani.data.records import Example
from ani.injection.model_parts import ani_module, last_decision, number_locator
from ani.injection.number_batch import PADDING
from tests.properties import deep, examples
from tests.tiny import FAMILIES, MIXED_TEXT, attached, encode, first_smollm2, logits_of, pair, randomise, tokenizer_of

TOLERANCE = 1e-5
"""Of logits, which generation gives in float32; the models compute in float64."""
CLEAR = 2e-5
"""What is nearer to its threshold, a gate or a choice between two tokens, may fall either way by rounding."""
NEW_TOKENS = 10
POLICIES = ["terminal", "digitwise", "running", "after"]
CAUSAL = {"running", "after"}
PROMPTS = ["Room 505 holds 12 people; 3.5 kg cost $1,234,567 and", "7 +", "From 1999 to 2024 -42% of 48210.75, so 31"]


REAL = ("smollm2",) if deep() else ()
"""A real model, in tests that have another one beside them for every mistake that it would show."""
_tests = itertools.count()


def pairs(*families: str, policies: Sequence[str] = POLICIES) -> Any:
    """Parametrize `family` and `policy`: each family with the policy that is its turn in this test, or with all."""
    test = next(_tests)
    turns = [(family, policies[(place + test) % len(policies)]) for place, family in enumerate(families)]
    return pytest.mark.parametrize(("family", "policy"), itertools.product(families, policies) if deep() else turns)


_words = st.sampled_from(
    ["Room", "bus", "sold", "the", "each", "of", "costs", "COVID", "v3", "7th", "apples", "then", "(x)", "if", "3D"]
)
_digits = st.text("0123456789", min_size=1, max_size=14)
_numbers = st.one_of(
    _digits,
    st.builds("{}.{}".format, _digits, _digits),
    st.builds("{:,}".format, st.integers(0, 10**11)),
    st.builds("-{}".format, _digits),
    st.builds("{}e{}".format, st.integers(1, 99), st.integers(-9, 9)),
    st.builds("${}.50".format, st.integers(0, 9999)),
    st.sampled_from([".5", "0", "000", "10%", "2.0.1", "192.168.1.1", "2020-11-03", "3-5", "8:15", "1,23", "1,234,"]),
)
_separators = st.sampled_from([" ", " ", " ", ", ", ". ", "-", " = ", "\n", "/", ""])
texts = st.lists(st.tuples(st.one_of(_words, _numbers, _numbers), _separators), min_size=2, max_size=10).map(
    lambda parts: "".join(text + separator for text, separator in parts).strip() + " 7"
)
plain_texts = st.lists(_words.filter(lambda word: not any(map(str.isdigit, word))), min_size=2, max_size=12).map(
    " ".join
)


@cache
def loaded(family: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    model, tokenizer = first_smollm2() if family == "smollm2" else pair(family, tokenizer_of(family, 12_000))
    if family == "smollm2":  # its norms round to float32 whatever the weights are, and the model makes 1e-5 of that
        for name, norm in [each for each in model.named_modules() if isinstance(each[1], LlamaRMSNorm)]:
            exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
            exact.weight = norm.weight
            model.set_submodule(name, exact)
    return model.double(), tokenizer


def base(family: str) -> PreTrainedModel:
    return loaded(family)[0]


def twin(model: PreTrainedModel, whole: PreTrainedModel) -> PreTrainedModel:
    """A copy with the weights of `whole`: a gigabyte of SmolLM2's is enough."""
    return copy.deepcopy(model, {id(weight): weight for weight in whole.parameters()})


@cache
def model_of(family: str, policy: str = "terminal") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """With a randomised module of its own."""
    whole, tokenizer = loaded(family)
    model = twin(whole, whole)
    read = {"gate_layers": (1,), "gate_context": (0, 1)}
    attach(model, tokenizer, AniConfig(layer=2, policy=policy, gate_hidden_size=16, **read))
    randomise(model, tokenizer)
    return model.to(whole.dtype), tokenizer


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.shape == expected.shape
    assert ((actual - expected).abs() <= TOLERANCE).all()


def assume_clear_gates(model: PreTrainedModel) -> None:
    decision = last_decision(model)
    if decision is None:
        assert number_locator(model).policy == "after"  # the text's only number ends it
    else:
        assume(bool((decision.injection.logits.abs() > CLEAR).all()))


def numbers_of(model: PreTrainedModel) -> int:
    decision = last_decision(model)
    return 0 if decision is None else len(decision.numbers)


def assert_same_numbers(actual: NumberBatch, expected: NumberBatch) -> None:
    assert torch.equal(actual.rows, expected.rows)
    assert torch.equal(actual.positions, expected.positions)
    assert torch.equal(actual.features, expected.features)


# --- 1: what injection leaves alone -----------------------------------------------------------------------------------


@cache
def closed(family: str, policy: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model whose gates are all closed over a large W_P."""
    model, tokenizer = model_of(family, policy)
    model = twin(model, base(family))
    with torch.no_grad():
        ani_module(model).projection.weight.mul_(100)
        ani_module(model).gate.outer.weight.zero_()
        ani_module(model).gate.outer.bias.fill_(-50)
    return model, tokenizer


@pairs(*FAMILIES, "smollm2")
@examples(4)
@given(text=texts)
def test_closed_gates_change_no_bit(family: str, policy: str, text: str) -> None:
    model, tokenizer = closed(family, policy)
    ids = encode(tokenizer, text)
    assert torch.equal(logits_of(model, ids), logits_of(base(family), ids))
    count = numbers_of(model)
    assert count == len(number_locator(model).batch(ids.tolist()))
    assert count > 0 or policy == "after"  # the text's only number ends it


@pairs(*FAMILIES, *REAL)
@examples(4)
@given(text=plain_texts)
def test_text_without_numbers_changes_no_bit(family: str, policy: str, text: str) -> None:
    model, tokenizer = model_of(family, policy)
    ids = encode(tokenizer, text)
    assert torch.equal(logits_of(model, ids), logits_of(base(family), ids))


@pairs(*FAMILIES, *REAL)
def test_nothing_changes_before_the_first_injection(family: str, policy: str) -> None:
    model, tokenizer = model_of(family, policy)
    changed = 0

    @examples(4)
    @given(texts)
    @example(MIXED_TEXT)  # of which `randomise` opens some gates, whatever else is drawn
    def check(text: str) -> None:
        nonlocal changed
        ids = encode(tokenizer, text)
        actual, expected = logits_of(model, ids), logits_of(base(family), ids)
        decision = last_decision(model)
        injected = () if decision is None else decision.numbers.positions[decision.injection.alpha > 0]
        first = int(min(injected)) if len(injected) else ids.shape[1]
        assert torch.equal(actual[:, :first], expected[:, :first])
        if first < ids.shape[1]:
            assert not torch.equal(actual[:, first], expected[:, first])
            changed += 1

    check()
    assert changed  # else the property was never put to the test


@pytest.mark.parametrize("family", FAMILIES)
def test_detach_gives_the_base_model_back(family: str) -> None:
    model, tokenizer = pair(family)
    ids = encode(tokenizer, MIXED_TEXT)
    classes = [type(module) for module in model.modules()]
    attributes = set(vars(model))
    before = logits_of(model, ids)
    attach(model, tokenizer, AniConfig(layer=2, gate_layers=(0,), gate_context=(1,)))
    randomise(model, tokenizer)
    with torch.no_grad():
        model(input_ids=ids, output_hidden_states=True)
        model.generate(ids, max_new_tokens=2)
    assert not torch.equal(logits_of(model, ids), before)
    assert detach(model) is model
    assert [type(module) for module in model.modules()] == classes
    assert set(vars(model)) == attributes
    assert torch.equal(logits_of(model, ids), before)
    assert attach(model, tokenizer, AniConfig(layer=1)) is model  # and it can be attached again
    assert torch.equal(logits_of(model, ids), before)


# --- 2: no lookahead --------------------------------------------------------------------------------------------------


@pairs(*FAMILIES)
@examples(4)
@given(text=texts, other=texts, data=st.data())
def test_no_lookahead(family: str, policy: str, text: str, other: str, data: st.DataObject) -> None:
    model, tokenizer = model_of(family, policy)
    scanner = number_locator(model).scanner
    ids = encode(tokenizer, text)
    t = data.draw(st.integers(0, ids.shape[1] - 2), label="t")
    tail = ids.shape[1] - t - 1
    variant = ids.clone()
    variant[:, t + 1 :] = encode(tokenizer, other * tail)[:, -tail:]
    kept = t + 1
    if policy not in CAUSAL:
        # What follows tells whether the number at or right before t has ended: "2.0" and "2.0.1", "1," and "1,234".
        open_numbers = [
            number
            for row in (ids[0], variant[0])
            for number in scanner.scan(row.tolist())
            if number.first_token <= t and number.last_token >= t - 1
        ]
        kept = min([kept, *(number.first_token for number in open_numbers)])
    actual, count = logits_of(model, variant)[:, :kept], numbers_of(model)
    expected = logits_of(model, ids)[:, :kept]
    if numbers_of(model) == count:
        assert torch.equal(actual, expected)
    else:  # a product with the features of another count of numbers rounds otherwise
        assume_clear_gates(model)
        assert_close(actual, expected)


# --- 3: decoding equals one full forward ------------------------------------------------------------------------------


ANSWERS = "0 1 2 3 4 5 6 7 8 9 10 25 130 0123456789 . , - 3.5 1,234 ( and = 5"


class OnlyNumbers(LogitsProcessor):
    """Confines generation to the tokens of a text about numbers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, text: str = ANSWERS) -> None:
        self.allowed = sorted(set(tokenizer(text, add_special_tokens=False)["input_ids"]))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        confined = torch.full_like(scores, float("-inf"))
        confined[..., self.allowed] = scores[..., self.allowed]
        return confined


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor, **kwargs: Any) -> Any:
    kwargs = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": NEW_TOKENS,
        "output_logits": True,
        "return_dict_in_generate": True,
        "logits_processor": [OnlyNumbers(tokenizer)],
        **kwargs,
    }
    return model.generate(ids, **kwargs)


def full_forward(
    model: PreTrainedModel, sequences: torch.Tensor, mask: torch.Tensor, numbers: NumberBatch | None
) -> torch.Tensor:
    """Logits of one forward over prompt and answer; `mask` is the prompt's."""
    answer = torch.ones(len(sequences), sequences.shape[1] - mask.shape[1], dtype=mask.dtype)
    mask = torch.cat([mask, answer], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    given = {} if numbers is None else {"numbers": numbers}
    return logits_of(model, sequences, attention_mask=mask, position_ids=positions, **given)


def prompt_numbers(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> NumberBatch | None:
    """The numbers that the full forward needs under `terminal`: the answer's numbers get nothing."""
    locator = number_locator(model)
    if locator.causal:
        return None
    return locator.batch(ids.masked_fill(mask == 0, PADDING).tolist())


def assert_parity(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor, output: Any) -> None:
    """The logits that generation saw are those of one full forward over what it wrote."""
    full = full_forward(model, output.sequences, mask, prompt_numbers(model, ids, mask))
    assume_clear_gates(model)
    assert_close(torch.stack(output.logits, dim=1), full[:, ids.shape[1] - 1 : -1])


def assert_same_answer(tokenizer: PreTrainedTokenizerBase, actual: Any, expected: Any) -> None:
    """Greedy answers are the same, token by token, unless two tokens were as good as each other."""
    best = OnlyNumbers(tokenizer)(actual.sequences, torch.stack(actual.logits, dim=1)).topk(2, dim=-1).values
    assume(bool((best[..., 0] - best[..., 1] > CLEAR).all()))
    assert torch.equal(actual.sequences[:, -NEW_TOKENS:], expected.sequences[:, -NEW_TOKENS:])


def prompt_batch(tokenizer: PreTrainedTokenizerBase, rows: list[str] = PROMPTS) -> tuple[torch.Tensor, torch.Tensor]:
    batch = tokenizer(rows, return_tensors="pt", padding=True, padding_side="left")
    assert rows is not PROMPTS or (batch["attention_mask"] == 0).any()
    return batch["input_ids"], batch["attention_mask"]


@pairs(*FAMILIES, "smollm2")
@examples(4)
@given(text=texts)
def test_greedy_equals_full_forward(family: str, policy: str, text: str) -> None:
    model, tokenizer = model_of(family, policy)
    ids = encode(tokenizer, text)
    assert_parity(model, ids, torch.ones_like(ids), generate(model, tokenizer, ids))


@pairs(*FAMILIES, *REAL)
@examples(4)
@given(rows=st.lists(texts, min_size=2, max_size=3))
@example(rows=PROMPTS)
def test_left_padded_batch_equals_full_forward(family: str, policy: str, rows: list[str]) -> None:
    model, tokenizer = model_of(family, policy)
    ids, mask = prompt_batch(tokenizer, rows)
    output = generate(model, tokenizer, ids, attention_mask=mask)
    assert_parity(model, ids, mask, output)
    answers = [generate(model, tokenizer, ids[[row]][:, mask[row].bool()]) for row in range(len(rows))]
    written = torch.cat([answer.sequences[:, -NEW_TOKENS:] for answer in answers])
    assert_same_answer(tokenizer, output, SimpleNamespace(sequences=written))


@pairs(*FAMILIES)
def test_sampling_equals_full_forward(family: str, policy: str) -> None:
    model, tokenizer = model_of(family, policy)
    ids, mask = prompt_batch(tokenizer)
    torch.manual_seed(3)
    output = generate(
        model, tokenizer, ids, attention_mask=mask, do_sample=True, top_k=0, temperature=2.0, num_return_sequences=2
    )
    ids, mask = ids.repeat_interleave(2, dim=0), mask.repeat_interleave(2, dim=0)
    assert_parity(model, ids, mask, output)
    generated = [len(number_locator(model).scanner.scan(row[ids.shape[1] :].tolist())) for row in output.sequences]
    assert sum(generated) > 0  # else the policies were not distinguished


@pairs(*FAMILIES, *REAL)
def test_beam_scores_are_log_probabilities(family: str, policy: str) -> None:
    model, tokenizer = model_of(family, policy)
    ids, mask = prompt_batch(tokenizer)
    beams = 3
    # The processor hides, it does not renormalise, so a beam's score is a sum of the model's own log-probabilities.
    output = generate(
        model,
        tokenizer,
        ids,
        attention_mask=mask,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=0.0,
        output_scores=True,
        logits_processor=[OnlyNumbers(tokenizer, "0123456789")],  # so that beams part within a number
    )
    ids, mask = ids.repeat_interleave(beams, dim=0), mask.repeat_interleave(beams, dim=0)
    full = full_forward(model, output.sequences, mask, prompt_numbers(model, ids, mask)).float().log_softmax(dim=-1)
    answer = output.sequences[:, ids.shape[1] :, None]
    scores = full[:, ids.shape[1] - 1 : -1].gather(2, answer).squeeze(2).sum(dim=1)
    assert (scores - output.sequences_scores).abs().max() <= NEW_TOKENS * TOLERANCE


def carried_numbers(model: PreTrainedModel, before: torch.Tensor, now: torch.Tensor, held: int) -> NumberBatch:
    """A carried cache stays as it is: the numbers that `before` has in it, then those of `now`."""
    locator = number_locator(model)
    cached, new = locator.batch(before.tolist()).between(0, held), locator.batch(now.tolist(), start=held)
    return NumberBatch.concatenated([cached, replace(new, positions=new.positions + held)])


@pytest.mark.parametrize("only_new_ids", [False, True], ids=["full ids again", "only new ids"])
@pairs(*FAMILIES)
@examples(4)
@given(prompt=texts, reply=texts)
@example(prompt=PROMPTS[2], reply="5 more, and 8.25 less?")
def test_cache_carried_over_two_turns(family: str, policy: str, only_new_ids: bool, prompt: str, reply: str) -> None:
    model, tokenizer = model_of(family, policy)
    first = encode(tokenizer, prompt)
    cache = DynamicCache(config=model.config)
    answer = generate(model, tokenizer, first, past_key_values=cache).sequences
    turn = tokenizer(reply, add_special_tokens=False, return_tensors="pt")["input_ids"]
    second = torch.cat([answer, turn], dim=1)
    held = int(cache.get_seq_length())
    assert held == answer.shape[1] - 1
    passed = second[:, held:] if only_new_ids else second
    output = generate(model, tokenizer, passed, past_key_values=cache, attention_mask=torch.ones_like(second))
    numbers = None if policy in CAUSAL else carried_numbers(model, first, second, held)
    sequences = torch.cat([second, output.sequences[:, -NEW_TOKENS:]], dim=1)
    full = full_forward(model, sequences, torch.ones_like(second), numbers)
    assume_clear_gates(model)
    assert_close(torch.stack(output.logits, dim=1), full[:, second.shape[1] - 1 : -1])


@pairs(*FAMILIES)
@examples(4)
@given(text=texts, size=st.integers(1, 7))
@example(text=PROMPTS[0], size=1)
@example(text=PROMPTS[0], size=2)
def test_chunked_prefill_cuts_numbers_in_half(family: str, policy: str, text: str, size: int) -> None:
    model, tokenizer = model_of(family, policy)
    ids = encode(tokenizer, text)
    chunked = generate(model, tokenizer, ids, prefill_chunk_size=size)
    assert_parity(model, ids, torch.ones_like(ids), chunked)
    assert_same_answer(tokenizer, chunked, generate(model, tokenizer, ids))


@pairs(*FAMILIES)
@examples(4)
@given(text=texts, size=st.integers(1, 5))
def test_manual_loop_over_chunks(family: str, policy: str, text: str, size: int) -> None:
    model, tokenizer = model_of(family, policy)
    ids = encode(tokenizer, text)
    numbers = number_locator(model).batch(ids.tolist())
    cache = DynamicCache(config=model.config)
    chunks = []
    for start in range(0, ids.shape[1], size):
        # Outside `generate`, only the caller knows what follows: `terminal` needs the numbers told.
        given = {"numbers": numbers.between(start, start + size)} if policy not in CAUSAL else {}
        chunks.append(logits_of(model, ids[:, start : start + size], past_key_values=cache, **given))
    whole = logits_of(model, ids)
    assume_clear_gates(model)
    assert_close(torch.cat(chunks, dim=1), whole)


@pairs("qwen3", "llama", "mistral")  # a sliding cache can't be cropped
@examples(4)
@given(text=texts, other=st.builds("{}{}".format, _digits, texts), data=st.data())
def test_crop(family: str, policy: str, text: str, other: str, data: st.DataObject) -> None:
    """After a cache is cropped, even inside a number, other text goes on with the logits of a pass without a cache."""
    model, tokenizer = model_of(family, policy)
    ids = encode(tokenizer, text)
    numbers = number_locator(model).scanner.scan(ids[0].tolist())
    inside = [t for number in numbers for t in range(number.first_token + 1, number.last_token + 1)]
    cut = data.draw(st.sampled_from([*inside, *range(1, ids.shape[1])]), label="cut")
    cache = DynamicCache(config=model.config)
    logits_of(model, ids, past_key_values=cache)
    cache.crop(cut)
    tail = tokenizer(other, add_special_tokens=False, return_tensors="pt")["input_ids"]
    longer = torch.cat([ids[:, :cut], tail], dim=1)
    full = logits_of(model, longer, numbers=carried_numbers(model, ids, longer, cut))[:, cut:]
    assume_clear_gates(model)
    assert_close(logits_of(model, tail, past_key_values=cache), full)


@pairs("qwen3", "llama", "mistral")  # candidates need a cache that can be cropped
def test_speculative_decoding(family: str, policy: str) -> None:
    model, tokenizer = model_of(family, policy)
    ids = encode(tokenizer, PROMPTS[0] + " 505 505 505")
    greedy = generate(model, tokenizer, ids)
    lookup = generate(model, tokenizer, ids, prompt_lookup_num_tokens=3)
    assert torch.equal(lookup.sequences, greedy.sequences)
    assert_parity(model, ids, torch.ones_like(ids), lookup)
    assisted = generate(model, tokenizer, ids, assistant_model=base(family))
    assert torch.equal(assisted.sequences, greedy.sequences)
    assert_parity(model, ids, torch.ones_like(ids), assisted)


@pairs(*FAMILIES)
@examples(4)
@given(rows=st.lists(texts, min_size=1, max_size=3))
@example(rows=PROMPTS)
def test_static_cache(family: str, policy: str, rows: list[str]) -> None:
    model, tokenizer = model_of(family, policy)
    ids, mask = prompt_batch(tokenizer, rows)
    static = {"cache_implementation": "static", "disable_compile": True}
    assert_parity(model, ids, mask, generate(model, tokenizer, ids, attention_mask=mask, **static))


# --- 4: a row alone and in a batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pairs(*FAMILIES, *REAL)
@examples(4)
@given(rows=st.lists(texts, min_size=2, max_size=3))
def test_padding_changes_nothing(family: str, policy: str, side: str, rows: list[str]) -> None:
    model, tokenizer = model_of(family, policy)
    batch = tokenizer(rows, return_tensors="pt", padding=True, padding_side=side)
    mask = batch["attention_mask"]
    together = full_forward(model, batch["input_ids"], mask, None)
    assume_clear_gates(model)
    decision = last_decision(model)
    for row, text in enumerate(rows):
        ids = encode(tokenizer, text)
        real = mask[row].bool()
        assert_close(together[row, real], logits_of(model, ids)[0])
        alone = last_decision(model)
        if decision is None or alone is None:
            assert policy == "after" and alone is None  # the text's only number ends it
            continue
        mine = decision.numbers.rows == row
        offset = int(real.int().argmax())
        assert torch.equal(decision.numbers.positions[mine] - offset, alone.numbers.positions)
        assert torch.equal(decision.numbers.features[mine], alone.numbers.features)


# --- 5: save and load -------------------------------------------------------------------------------------------------


@pairs(*FAMILIES)
def test_save_and_load_change_no_bit(family: str, policy: str, tmp_path: Path) -> None:
    model, tokenizer = pair(family)
    ids = encode(tokenizer, PROMPTS[0])
    torch.manual_seed(5)
    lora = LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    trained = get_peft_model(model, lora).eval()
    attach(trained, tokenizer, AniConfig(layer=1, policy=policy, gate_hidden_size=16))
    randomise(trained, tokenizer)
    expected = logits_of(trained, ids)
    save_adapter(trained, tmp_path / "first")
    loaded = load_adapter(pair(family)[0], tokenizer, tmp_path / "first")
    assert torch.equal(logits_of(loaded, ids), expected)
    assert ani_module(loaded).config == ani_module(trained).config
    save_adapter(loaded, tmp_path / "second")  # PEFT inside the model rather than around it
    again = load_adapter(pair(family)[0], tokenizer, tmp_path / "second")
    assert torch.equal(logits_of(again, ids), expected)


# --- 8: the collator, the forward and generation find the same numbers ------------------------------------------------


@pairs(*FAMILIES, policies=["terminal", "running", "after", "terminal, scope all"])
def test_collator_forward_and_generate_agree(family: str, policy: str) -> None:
    policy, _, scope = policy.partition(", scope ")
    model, tokenizer = (
        attached(family, policy=policy, scope=scope) if scope else copy.deepcopy(model_of(family, policy))
    )
    locator = number_locator(model)
    collate = NumberCollator(tokenizer, locator)

    @examples(4)
    @given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
    def check(pairs: list[tuple[str, str]]) -> None:
        tokenized = [
            tokenize(Example(prompt, " " + completion), tokenizer, locator, 400) for prompt, completion in pairs
        ]
        batch = collate(tokenized)
        numbers = batch.pop("numbers")
        with torch.no_grad():
            model.train()(**batch)
        model.eval()
        decision = last_decision(model)
        assert decision is not None
        assert_same_numbers(decision.numbers, numbers)
        for row, one in enumerate(tokenized):
            with torch.no_grad():
                model.generate(torch.tensor([one.input_ids[: one.prompt_length]]), max_new_tokens=1)
            decision = last_decision(model)
            mine = (numbers.rows == row) & (numbers.positions < one.prompt_length)
            if decision is None:
                assert policy == "after" and not mine.any()  # the prompt's only number ends it
                continue
            assert torch.equal(numbers.positions[mine], decision.numbers.positions)
            assert torch.equal(numbers.features[mine], decision.numbers.features)
        if policy == "terminal" and not scope:
            lengths = torch.tensor([one.prompt_length for one in tokenized])
            assert (numbers.positions < lengths[numbers.rows]).all()
        else:
            assert any((numbers.positions >= tokenized[0].prompt_length).tolist())

    check()
