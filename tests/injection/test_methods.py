"""The methods of the paper's tables: what they fix, and that substitution, which hides tokens by masks, computes what
the bare model computes for rows without them."""

import copy
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, Lfm2Config, Lfm2ForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ani import AniConfig, attach, save_adapter
from ani.data.collator import NumberCollator, tokenize
from ani.data.records import Example
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS, MethodName
from ani.injection.model_parts import ani_module, base_model, number_locator
from ani.injection.module import AniModule
from ani.numbers import Number
from tests.properties import cover, deep
from tests.refusals import refused
from tests.tiny import FAMILIES, MIXED_TEXT, attached, encode, logits_of, pair

SUBSTITUTIONS: list[MethodName] = ["xval", "fone"]
families = pytest.mark.parametrize("family", FAMILIES)
in_turn = pytest.mark.parametrize(
    ("family", "name"),
    [*product(FAMILIES, SUBSTITUTIONS)] if deep() else [*zip(FAMILIES, cycle(SUBSTITUTIONS), strict=False)],
)
PROMPT = "Room 505 holds 12 people; 3.5 kg cost $1,234,567 and"


def method(family: str, name: MethodName, **settings: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return attached(family, **{**METHODS[name].settings, **settings})


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0, equal_nan=True)


def substituted(model: PreTrainedModel, ids: list[int], start: int = 0, stop: int | None = None) -> list[Number]:
    """Numbers up to `stop` that end at `start` or later and are all of their tokens."""
    scanner = number_locator(model).scanner
    return [
        number
        for number in scanner.scan(ids[:stop])
        if number.last_token >= start
        and scanner.text(ids[number.first_token : number.last_token + 1]).strip() == number.text
    ]


def shortened_forward(
    base: PreTrainedModel, module: AniModule, locator: NumberLocator, ids: list[int], numbers: list[Number]
) -> tuple[list[int], torch.Tensor]:
    """The positions of the tokens that are left, and the bare model's logits for embeddings put together by hand.

    The row really is shorter. A sliding window alone counts the tokens that were taken out.
    """
    embeddings = list(base.get_input_embeddings()(torch.tensor(ids)))
    kept = list(range(len(ids)))
    for number in numbers:
        features = locator.encoder.encode([number.value])
        embeddings[number.last_token] = module.scale * (module.projection.weight @ features[0])
        kept = [i for i in kept if not number.first_token <= i < number.last_token]
    at = torch.tensor(kept)
    distance = at[:, None] - at[None]
    masks = {"full_attention": distance >= 0}
    if base.config.model_type.startswith("gemma"):
        masks["sliding_attention"] = masks["full_attention"] & (distance < base.config.sliding_window)
    masks = {kind: mask[None, None] for kind, mask in masks.items()}
    mask = masks if len(masks) > 1 else masks["full_attention"]
    base.set_attn_implementation("sdpa")  # whose masks are of booleans
    rows = torch.stack([embeddings[i] for i in kept]).unsqueeze(0)
    return kept, base(inputs_embeds=rows, attention_mask=mask, use_cache=False).logits[0]


@torch.no_grad()
def reference(
    family: str, model: PreTrainedModel, ids: list[int], numbers: list[Number]
) -> tuple[list[int], torch.Tensor]:
    return shortened_forward(pair(family)[0], ani_module(model), number_locator(model), ids, numbers)


def prompt_reference(
    family: str, model: PreTrainedModel, ids: list[int], prompt_length: int | None = None
) -> tuple[list[int], torch.Tensor]:
    return reference(family, model, ids, substituted(model, ids, stop=prompt_length))


@in_turn
def test_substitution_is_one_embedding_in_place_of_a_number(family: str, name: MethodName) -> None:
    model, tokenizer = method(family, name)
    ids = encode(tokenizer, MIXED_TEXT)
    logits = logits_of(model, ids)[0]
    kept, expected = prompt_reference(family, model, ids[0].tolist())
    assert len(kept) < len(logits) == ids.shape[1]
    assert (logits[kept] - expected).abs().max() <= 1e-4
    gone = sorted(set(range(ids.shape[1])) - set(kept))
    assert bool(logits[gone].isnan().all())  # nobody shall take them for likelihoods


@in_turn
def test_generating_in_a_batch_equals_full_forwards(family: str, name: MethodName) -> None:
    model, tokenizer = method(family, name)
    prompts = [PROMPT, "They were 12345", "seven of"]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    output = model.generate(
        **batch, max_new_tokens=8, do_sample=False, output_logits=True, return_dict_in_generate=True, eos_token_id=None
    )
    width = batch["input_ids"].shape[1]
    assert torch.equal(output.sequences[:, :width], batch["input_ids"])
    together = torch.stack(output.logits, dim=1)
    for row, text in enumerate(prompts):
        prompt = encode(tokenizer, text)[0].tolist()
        answer = output.sequences[row, width:].tolist()
        kept, expected = prompt_reference(family, model, [*prompt, *answer], len(prompt))
        assert (together[row] - expected[len(kept) - len(answer) - 1 : -1]).abs().max() <= 1e-4
        assert answer == expected.argmax(-1)[len(kept) - len(answer) - 1 : -1].tolist()


def test_padding_without_a_mask_is_recognized() -> None:
    model, tokenizer = method("qwen3", "fone")
    batch = tokenizer([PROMPT, "They were 12345"], return_tensors="pt", padding=True, padding_side="left")
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    pad = tokenizer.pad_token_id
    assert torch.equal(
        model.generate(batch["input_ids"], pad_token_id=pad, **settings),
        model.generate(**batch, pad_token_id=pad, **settings),
    )


def test_a_token_with_other_text_is_left_as_it_is() -> None:
    for family in ("qwen3", "llama", "mistral"):
        model, tokenizer = method(family, "fone")
        locator = number_locator(model)
        ids = encode(tokenizer, "so f(-57) is 1999")[0].tolist()
        inner, outer = locator.scanner.scan(ids)
        assert (inner.text, outer.text) == ("-57", "1999")
        assert "(" in locator.scanner.text(ids[inner.first_token : inner.last_token + 1])
        numbers = locator.batch([ids])
        assert numbers.positions.tolist() == [outer.last_token]
        assert numbers.masked.tolist() == [outer.last_token - outer.first_token]


def test_what_would_be_wrong_is_refused() -> None:
    model, tokenizer = method("qwen3", "fone")
    ids = encode(tokenizer, PROMPT)
    cache = DynamicCache(config=model.config)
    base = base_model(pair("qwen3")[0])
    base(input_ids=ids, past_key_values=cache)
    generate = partial(model.generate, ids, past_key_values=cache, max_new_tokens=2)
    refused(generate, "cache")
    numbers = number_locator(model).batch(ids.tolist())
    embeddings = base.get_input_embeddings()(ids)
    refused(lambda: model(inputs_embeds=embeddings, numbers=numbers), "input_ids")
    mask, places = torch.ones(1, 1, ids.shape[1], ids.shape[1]), torch.arange(ids.shape[1])[None]
    refused(lambda: model(ids, attention_mask=mask), "mask must be one of tokens, (1, 28), not of shape (1, 1")
    refused(lambda: model(ids, attention_mask=torch.ones_like(ids), position_ids=places // 2), "position_ids")
    refused(lambda: model(ids, position_ids=places % 7), "position_ids")  # as packed rows have them
    model.train()
    refused(lambda: model(input_ids=ids), "can't tell prompt from response")
    with pytest.warns(UserWarning, match="these labels leave no prompt"):
        model(input_ids=ids, labels=ids)


@cover(family=FAMILIES, implementation=["eager", "sdpa"], checkpointing=[False, True])
def test_loss_and_gradients_are_those_of_shortened_rows(family: str, implementation: str, checkpointing: bool) -> None:
    model, tokenizer = method(family, "fone")
    base, module = pair(family)[0], copy.deepcopy(ani_module(model))
    model.set_attn_implementation(implementation)
    if checkpointing:
        model.gradient_checkpointing_enable()
    # One row begins with a number, whose hidden tokens have nothing to attend to; the batch is padded.
    examples = [Example("90417 and 12 then 1,234.5 of", " 17 and 1999"), Example("It was 3.5", " 6789")]
    rows = [tokenize(example, tokenizer, number_locator(model), 200) for example in examples]
    loss = model.train()(**NumberCollator(tokenizer, number_locator(model))(rows)).loss
    # The same loss from ids and labels, as any other trainer gives them.
    assert model(**NumberCollator(tokenizer, None)(rows)).loss.item() == pytest.approx(loss.item(), abs=1e-5)
    loss.backward()
    total, labelled = torch.tensor(0.0), 0
    for row in rows:
        numbers = substituted(model, row.input_ids, stop=row.prompt_length)
        _, logits = shortened_forward(base.train(), module, number_locator(model), row.input_ids, numbers)
        targets = torch.tensor(row.input_ids[row.prompt_length :])
        total = total + cross_entropy(logits[-len(targets) - 1 : -1], targets, reduction="sum")
        labelled += len(targets)
    torch.testing.assert_close(loss, total / labelled, atol=1e-4, rtol=0)
    (total / labelled).backward()
    expected = {name: p.grad for name, p in base.named_parameters()}
    expected["ani.projection.weight"] = module.projection.weight.grad
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-3, msg=lambda m, n=name: n + m)


@families
@pytest.mark.parametrize("settings", [{"prefill_chunk_size": 3}, {"cache_implementation": "static"}], ids=str)
def test_every_way_of_generating_is_greedy(family: str, settings: dict[str, Any]) -> None:
    model, tokenizer = method(family, "fone")
    ids = encode(tokenizer, PROMPT)
    common: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "disable_compile": True}
    answer = model.generate(ids, **common, **settings)[0].tolist()
    kept, expected = prompt_reference(family, model, answer, ids.shape[1])
    assert answer[-8:] == expected.argmax(-1)[-9:-1].tolist() and len(kept) < len(answer)


@cover(family=FAMILIES, name=SUBSTITUTIONS, only_new_ids=[False, True], cut=[False, True])
def test_a_cache_carried_over_two_turns(family: str, name: MethodName, only_new_ids: bool, cut: bool) -> None:
    model, tokenizer = method(family, name)
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 4}
    cache = DynamicCache(config=model.config)
    if cut:
        second = encode(tokenizer, "Room 505 seats 12345678 then 18")
        first = second[:, : number_locator(model).scanner.scan(second[0].tolist())[1].last_token]
        model(input_ids=first, past_key_values=cache)
    else:
        first = encode(tokenizer, "Room 505 seats 12345")
        written = model.generate(first, past_key_values=cache, **settings)
        turn = tokenizer("5 more, and 1,234.25 less?", add_special_tokens=False, return_tensors="pt")["input_ids"]
        second = torch.cat([written, turn], dim=1)
    held = int(cache.get_seq_length())
    output = model.generate(
        second[:, held:] if only_new_ids else second,
        past_key_values=cache,
        attention_mask=torch.ones_like(second),
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )
    ids = [*second[0].tolist(), *output.sequences[0, -4:].tolist()]
    earlier = substituted(model, first[0].tolist())
    later = substituted(model, ids, start=held, stop=second.shape[1])
    assert earlier and later
    assert not cut or later[0].first_token == earlier[-1].first_token
    _, expected = reference(family, model, ids, [*earlier, *later])
    assert (torch.cat(output.logits) - expected[-5:-1]).abs().max() <= 1e-4


def test_layers_that_heed_no_mask_are_refused() -> None:
    _, tokenizer = pair("qwen3")
    sizes = {key: 16 for key in ("hidden_size", "intermediate_size")} | {"vocab_size": len(tokenizer)}
    counts = {key: 2 for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")}
    model = Lfm2ForCausalLM(Lfm2Config(**sizes, **counts, layer_types=["conv", "full_attention"], pad_token_id=0))
    fone = AniConfig(**METHODS["fone"].settings)
    refused(lambda: attach(model, tokenizer, fone), "Lfm2ForCausalLM")
    attach(model, tokenizer, AniConfig(layer=0))


def test_a_module_is_not_lost_by_a_wrong_method(tmp_path: Path) -> None:
    model, _ = method("llama", "static")
    save = partial(save_adapter, model, tmp_path / "adapter")
    refused(partial(save, method="sft"), "has no module, but one is attached")
    refused(partial(save, method="telepathy"), "no method 'telepathy'")
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("family", ["qwen3", "llama", "mistral"])  # candidates need a cache that can be cropped
def test_speculative_decoding_is_greedy(family: str) -> None:
    model, tokenizer = method(family, "fone")
    ids = encode(tokenizer, PROMPT + " 505 505 505")
    common: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **common)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **common), expected)
    assert torch.equal(model.generate(ids, assistant_model=pair(family)[0], **common), expected)


def test_logits_to_keep_and_tuples() -> None:
    model, tokenizer = method("mistral", "fone")
    ids = encode(tokenizer, PROMPT)
    whole = logits_of(model, ids)
    same(logits_of(model, ids, logits_to_keep=1), whole[:, -1:])
    same(logits_of(model, ids, logits_to_keep=torch.tensor([0, 3])), whole[:, [0, 3]])
    same(model(input_ids=ids, return_dict=False)[0], whole)
