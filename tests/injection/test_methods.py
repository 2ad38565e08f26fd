"""The methods of the paper's tables: what they fix, substitution's shorter sequence, and that generation is right."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from ani import AniConfig, InputError, attach, inspect, load_adapter, save_adapter
from ani.data.collator import IGNORED, NumberCollator, tokenize
from ani.data.sources import Example
from ani.encoders import FourierNumberEncoder, MagnitudeNumberEncoder
from ani.injection.adapter import adapter_method
from ani.injection.attach import ani_module, base_model, number_locator
from ani.injection.locate import NumberLocator
from ani.injection.methods import METHODS, MethodName
from tests.tiny import FAMILIES, MIXED_TEXT, attached, pair, tiny

SUBSTITUTIONS: list[MethodName] = ["xval", "fone"]
families = pytest.mark.parametrize("family", FAMILIES)
substitutions = pytest.mark.parametrize("name", SUBSTITUTIONS)
PROMPT = "Room 505 holds 12 people; 3.5 kg cost $1,234,567 and"
TEXTS = [MIXED_TEXT, "no number here", "7 of 1999", "1999"]


def method(family: str, name: MethodName, **settings: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return attached(family, **{**(METHODS[name].settings or {}), **settings})


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0, equal_nan=True)


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> torch.Tensor:
    return torch.as_tensor(tokenizer(text, return_tensors="pt")["input_ids"])


def reference(
    family: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: list[int], prompt_length: int
) -> tuple[list[int], torch.Tensor]:
    """The kept positions and their logits, from the bare model and embeddings put together by hand."""
    module, locator = ani_module(model), number_locator(model)
    base, _ = pair(family)
    embeddings = base.get_input_embeddings()(torch.tensor(ids)).detach()
    kept = list(range(len(ids)))
    for number in locator.scanner.scan(ids[:prompt_length]):
        if locator.scanner.text(ids[number.first_token : number.last_token + 1]).strip() != number.text:
            continue
        features = locator.encoder.encode([number.value])
        embeddings[number.last_token] = module.scale * (module.projection.weight.detach() @ features[0])
        kept = [i for i in kept if not number.first_token <= i < number.last_token]
    with torch.no_grad():
        return kept, base(inputs_embeds=embeddings[kept].unsqueeze(0)).logits[0]


@families
@substitutions
def test_substitution_is_one_embedding_in_place_of_a_number(family: str, name: MethodName) -> None:
    model, tokenizer = method(family, name)
    ids = encode(tokenizer, MIXED_TEXT)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0]
    kept, expected = reference(family, model, tokenizer, ids[0].tolist(), ids.shape[1])
    assert len(kept) < len(logits) == ids.shape[1]
    assert (logits[kept] - expected).abs().max() <= 1e-4
    gone = sorted(set(range(ids.shape[1])) - set(kept))
    assert bool(logits[gone].isnan().all())  # nobody shall take them for likelihoods


@families
@substitutions
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_equals_one_row_at_a_time(family: str, name: MethodName, side: str) -> None:
    model, tokenizer = method(family, name)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side=side)
    with torch.no_grad():
        together = model(**batch).logits
        for row, text in enumerate(TEXTS):
            alone = model(input_ids=encode(tokenizer, text)).logits[0]
            same(together[row, batch["attention_mask"][row] == 1], alone)


@families
@substitutions
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
        kept, expected = reference(family, model, tokenizer, [*prompt, *answer], len(prompt))
        assert (together[row] - expected[len(kept) - len(answer) - 1 : -1]).abs().max() <= 1e-4
        assert answer == expected.argmax(-1)[len(kept) - len(answer) - 1 : -1].tolist()


@substitutions
def test_beams_return_the_whole_prompt(name: MethodName) -> None:
    model, tokenizer = method("qwen3", name)
    ids = encode(tokenizer, PROMPT)
    sequences = model.generate(ids, max_new_tokens=4, num_beams=3, num_return_sequences=2, do_sample=False)
    assert sequences.shape[0] == 2
    assert sequences[:, : ids.shape[1]].tolist() == ids.tolist() * 2
    length = ids.shape[1] + 3
    assert model.generate(ids, max_length=length, do_sample=False, eos_token_id=None).shape[1] == length
    config = GenerationConfig(max_length=length, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    assert model.generate(ids, generation_config=config).shape[1] == length
    assert config.max_length == length


def test_padding_without_a_mask_is_recognized() -> None:
    model, tokenizer = method("qwen3", "fone")
    batch = tokenizer([PROMPT, "They were 12345"], return_tensors="pt", padding=True, padding_side="left")
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    pad = tokenizer.pad_token_id
    assert torch.equal(
        model.generate(batch["input_ids"], pad_token_id=pad, **settings),
        model.generate(**batch, pad_token_id=pad, **settings),
    )


def test_criteria_and_processors_see_the_prompt_as_it_was() -> None:
    model, tokenizer = method("qwen3", "fone")
    ids = encode(tokenizer, PROMPT)
    seen: list[torch.Tensor] = []

    def stop(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        seen.append(input_ids)
        return torch.tensor([input_ids.shape[1] == ids.shape[1] + 2])

    def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids)
        return scores

    output = model.generate(
        ids,
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=None,
        stopping_criteria=StoppingCriteriaList([stop]),
        logits_processor=LogitsProcessorList([process]),
    )
    assert output.shape[1] == ids.shape[1] + 2
    assert len(seen) == 4 and all(torch.equal(rows[:, : ids.shape[1]], ids) for rows in seen)


@families
@substitutions
def test_training_batches_are_the_shortened_rows(family: str, name: MethodName) -> None:
    model, tokenizer = method(family, name)
    locator = number_locator(model)
    examples = [Example(PROMPT, " 17 of 18 and 1999"), Example("It was 12345", " 6789 then"), Example("some", " 7")]
    rows = [tokenize(example, tokenizer, locator, 200) for example in examples]
    batch = NumberCollator(tokenizer, locator)(rows)
    with torch.no_grad():
        outputs = model(**batch)
        total, labelled = 0.0, 0
        for row in rows:
            kept, logits = reference(family, model, tokenizer, row.input_ids, row.prompt_length)
            targets = torch.tensor(row.input_ids[row.prompt_length :])
            answer = logits[len(kept) - len(targets) - 1 : -1]
            total += float(torch.nn.functional.cross_entropy(answer, targets, reduction="sum"))
            labelled += len(targets)
    assert int((batch["labels"] != IGNORED).sum()) == labelled
    assert float(outputs.loss) == pytest.approx(total / labelled, abs=1e-4)
    # The same loss from ids and labels as any other trainer gives them.
    plain = NumberCollator(tokenizer, None)(rows)
    with torch.no_grad():
        assert float(model(**plain).loss) == pytest.approx(total / labelled, abs=1e-4)


def test_a_token_with_other_text_is_left_as_it_is() -> None:
    for family in ("qwen3", "llama", "mistral"):
        model, tokenizer = method(family, "fone")
        locator = number_locator(model)
        ids = encode(tokenizer, "so f(-57) is 1999")[0].tolist()
        inner, outer = locator.scanner.scan(ids)
        assert (inner.text, outer.text) == ("-57", "1999")
        assert "(" in locator.scanner.text(ids[inner.first_token : inner.last_token + 1])
        gone = set(range(outer.first_token, outer.last_token))
        assert locator.kept([ids]) == [[i for i in range(len(ids)) if i not in gone]]
        assert locator.batch([ids]).positions.tolist() == [outer.last_token]


def test_what_would_be_wrong_is_refused() -> None:
    model, tokenizer = method("qwen3", "fone")
    ids = encode(tokenizer, PROMPT)
    cache = DynamicCache(config=model.config)
    base = base_model(pair("qwen3")[0])
    base(input_ids=ids, past_key_values=cache)
    with pytest.raises(InputError, match="KV cache can't be carried"):
        model(input_ids=ids[:, -1:], past_key_values=cache)
    with pytest.raises(InputError, match="KV cache can't be carried"):
        model(input_ids=ids, past_key_values=DynamicCache(config=model.config))  # it would stay empty
    with pytest.raises(InputError, match="KV cache can't be carried"):
        model(input_ids=ids, use_cache=True)
    with pytest.raises(InputError, match="KV cache can't be carried"):
        model.generate(ids, past_key_values=cache, max_new_tokens=2)
    mask = torch.ones(1, 1, ids.shape[1], ids.shape[1])
    with pytest.raises(InputError, match=r"mask must be one of tokens.*\(1, 1"):
        model(input_ids=ids, attention_mask=mask)
    with pytest.raises(InputError, match="position_ids"):
        model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=torch.arange(ids.shape[1])[None] // 2)
    with pytest.raises(InputError, match="position_ids"):
        model(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None] % 7)  # as packed rows have them
    model.train()
    with pytest.raises(InputError, match="can't tell prompt from response"):
        model(input_ids=ids)
    with pytest.warns(UserWarning, match="these labels leave no prompt"):
        model(input_ids=ids, labels=ids)


@pytest.mark.parametrize(
    "wrong",
    [{"layer": 1}, {"policy": "digitwise"}, {"gate": "learned"}, {"scope": "all"}],
    ids=lambda wrong: str(wrong),
)
def test_substitution_has_one_shape(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="combine='substitute'"):
        AniConfig(**{**(METHODS["fone"].settings or {}), **wrong})


def test_bits_can_be_substituted_too() -> None:
    model, tokenizer = method("llama", "fone", encoders=["bits", "magnitude"], bits_reciprocal=True)
    kept, expected = reference("llama", model, tokenizer, encode(tokenizer, PROMPT)[0].tolist(), 10**6)
    with torch.no_grad():
        logits = model(input_ids=encode(tokenizer, PROMPT)).logits[0]
    assert (logits[kept] - expected).abs().max() <= 1e-4


def test_logits_to_keep_and_tuples() -> None:
    model, tokenizer = method("mistral", "fone")
    ids = encode(tokenizer, PROMPT)
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        same(model(input_ids=ids, logits_to_keep=1).logits, whole[:, -1:])
        same(model(input_ids=ids, logits_to_keep=torch.tensor([0, 3])).logits, whole[:, [0, 3]])
        same(model(input_ids=ids, return_dict=False)[0], whole)


def test_inspection_shows_substituted_numbers_at_their_places() -> None:
    model, tokenizer = method("qwen3", "fone")
    decisions = inspect(model, tokenizer, PROMPT)
    assert [(PROMPT[d.start : d.end], d.injected) for d in decisions] == [
        ("505", True), ("12", True), ("3.5", True), ("1,234,567", True)
    ]  # fmt: skip


def test_the_features_of_fone_and_xval_are_the_published_ones() -> None:
    fone, _ = method("qwen3", "fone", integer_digits=4, fraction_digits=2)
    xval, _ = method("qwen3", "xval", integer_digits=4)
    linear, _ = method("qwen3", "xval", integer_digits=4, magnitude_scaling="linear")
    encoders = [number_locator(model).encoder for model in (fone, xval, linear)]
    assert isinstance(encoders[0], FourierNumberEncoder)
    assert isinstance(encoders[1], MagnitudeNumberEncoder)
    x = Decimal("987.65")
    closed = [f(2 * math.pi * float(x) / 10.0**i) for i in range(-1, 5) for f in (math.cos, math.sin)]
    assert encoders[0].encode([x])[0].tolist() == pytest.approx(closed, abs=1e-6)
    assert float(encoders[1].encode([x])) == pytest.approx(5 * math.log1p(987.65) / math.log1p(10**4))
    assert float(encoders[2].encode([x])) == pytest.approx(5 * 987.65 / 10**4)


@pytest.mark.parametrize("name", ["sft", "numerologic"])
def test_adapters_without_a_module(name: MethodName, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base, tokenizer = pair("llama")
    ids = encode(tokenizer, PROMPT)
    model = get_peft_model(base, LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    save_adapter(model, tmp_path / "adapter", method=name)
    other, _ = pair("llama")
    load_adapter(other, tokenizer, tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(other(input_ids=ids).logits, expected)
    assert adapter_method(tmp_path / "adapter") is METHODS[name]
    with pytest.raises(InputError, match="no ANI module"):
        inspect(other, tokenizer, PROMPT)


def test_a_module_is_not_lost_by_a_wrong_method(tmp_path: Path) -> None:
    model, _ = method("llama", "static")
    for name, message in (("sft", "has no module, but one is attached"), ("telepathy", "no method 'telepathy'")):
        with pytest.raises(InputError, match=message):
            save_adapter(model, tmp_path / "adapter", method=name)  # type: ignore[arg-type]
    assert not (tmp_path / "adapter").exists()


def test_an_unknown_method_of_an_adapter_is_named(tmp_path: Path) -> None:
    model, tokenizer = method("llama", "static")
    save_adapter(model, tmp_path / "adapter", method="static")
    file = tmp_path / "adapter" / "ani_config.json"
    assert adapter_method(tmp_path / "adapter") is METHODS["static"]
    file.write_text(file.read_text().replace('"static"', '"telepathy"'))
    with pytest.raises(InputError, match="no method 'telepathy'; known are ani, sft"):
        load_adapter(tiny("llama"), tokenizer, tmp_path / "adapter")


def test_attaching_keeps_the_text_around_numbers() -> None:
    model, tokenizer = pair("qwen3")
    attach(model, tokenizer, AniConfig(**(METHODS["xval"].settings or {})))
    ids = encode(tokenizer, "no number at all")
    base, _ = pair("qwen3")
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, base(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("text", "policy", "carried"),
    [
        ("x = 12345 now", "placewise", ["1.2345", "12.345", "123.45", "1234.5", "12345"]),
        ("x = 1,234.5 now", "placewise", ["1.2345", "12.345", "123.45", "1234.5", "12345"]),
        ("x = -.25 now", "placewise", ["-2.5", "-25"]),
        ("x = 1.5e10 now", "placewise", ["1.5", "15", "15", "15"]),
        ("x = 12345 now", "digitwise", ["12345"] * 5),
    ],
)
def test_what_the_tokens_of_a_number_carry(text: str, policy: Any, carried: list[str]) -> None:
    _, tokenizer = pair("qwen3")
    locator = NumberLocator(tokenizer, AniConfig(layer=0, policy=policy))
    assert torch.equal(locator.batch([tokenizer(text)["input_ids"]]).features, locator.encoder.encode(carried))


def test_places_out_of_range_can_be_skipped() -> None:
    _, tokenizer = pair("qwen3")
    ids = tokenizer("x = 123.4567 now")["input_ids"]
    sizes = [
        len(
            NumberLocator(tokenizer, AniConfig(layer=0, policy="placewise", integer_digits=4, overflow=rule)).batch(
                [ids]
            )
        )
        for rule in ("wrap", "skip")
    ]
    assert sizes == [7, 4]


@pytest.mark.parametrize("policy", ["running", "after", "digitwise", "placewise"])
def test_the_response_is_injected_under_terminal_alone(policy: Any) -> None:
    with pytest.raises(ValueError, match="scope='all' is for policy='terminal'"):
        AniConfig(layer=1, policy=policy, scope="all")
