import io
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch.nn.functional import scaled_dot_product_attention
from transformers import BioGptConfig, BioGptForCausalLM, MambaConfig, MambaForCausalLM, TrainerCallback
from transformers import modeling_flash_attention_utils as flash

from ani.data.collator import NumberCollator, TokenizedExample
from ani.injection.model_parts import base_model, is_attached, number_locator
from ani.roles import Role
from ani.training import run as run_module
from ani.training.examples import Examples, load_examples, tokenized_examples
from ani.training.packing import PASSES, Packing, StepCollator, first_fit, packing_of, why_not_packed
from ani.training.recipe import Recipe, TrainingSettings, load_recipe
from ani.training.run import train, training_arguments, with_adapter
from ani.training.trainer import AniTrainer
from tests.properties import cover, deep
from tests.tiny import FAMILIES, attached, pair, randomise, tiny
from tests.tokenizers import gemma_like

Write = Callable[..., Path]


class Gradients(TrainerCallback):
    """Keeps the gradients of the first step."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.found[name] = parameter.grad.clone()


def varlen(
    q: Any,
    k: Any,
    v: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    softmax_scale: Any,
    causal: bool,
    window_size: Any = (),
) -> Any:
    """`flash_attn_varlen_func` in plain torch: each text of (tokens, heads, width) by itself."""
    assert causal and torch.equal(cu_seqlens_q, cu_seqlens_k)
    attended = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (distance >= 0) & (distance <= min((end, *window_size)))
        text = (each[start:end].transpose(0, 1) for each in (q, k, v))
        attended.append(scaled_dot_product_attention(*text, seen, scale=softmax_scale, enable_gqa=True).transpose(0, 1))
    return torch.cat(attended)


def with_flash_attention(model: Any, monkeypatch: pytest.MonkeyPatch, attend: Callable[..., Any] = varlen) -> None:
    """Send a model's attention through transformers' code for flash attention, whose kernels need a GPU."""

    def attend_rows(q: Any, k: Any, v: Any, **settings: Any) -> Any:
        ends = torch.arange(0, q.shape[0] * q.shape[1] + 1, q.shape[1])
        flat = (each.flatten(0, 1) for each in (q, k, v))
        return attend(*flat, cu_seqlens_q=ends, cu_seqlens_k=ends, **settings).view_as(q)

    of_padding = flash._pad_input, flash._unpad_input
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: (attend_rows, attend, None, *of_padding))
    base_model(model).config._attn_implementation_internal = "flash_attention_2"


def step(
    family: str, method: dict[str, Any], folder: Path, packing: Packing | None, patch: pytest.MonkeyPatch | None = None
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Log line and gradients of a step of 12 examples, two a pass; with `patch` through flash attention."""
    sources = [{"kind": "arithmetic", "count": 5, "digits": [2, 3]}, {"kind": "diagnostic", "count": 7}]
    training = {"batch_size": 2, "gradient_accumulation": 6, "max_length": 96, "steps": 1, "log_every": 1}
    settings = {"data": sources, **method, "training": {**training, "max_gradient_norm": torch.inf}}
    recipe = Recipe.model_validate({"output": str(folder), "quantization": "none", "lora": {"r": 4}, **settings})
    base, tokenizer = pair(family)
    model = with_adapter(base, tokenizer, recipe)
    locator = None
    if is_attached(model):
        randomise(model, tokenizer)
        locator = number_locator(model)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.1, generator=generator)
    if patch is not None:
        with_flash_attention(model, patch)
    assert why_not_packed(model) is None
    passes = []

    class Counted(AniTrainer):
        def _count(self, inputs: dict[str, Any]) -> None:
            passes.append(inputs)
            super()._count(inputs)

    arguments, gradients = training_arguments(recipe), Gradients()
    arguments.save_strategy = "no"
    collator = NumberCollator(tokenizer, locator)
    trainer = Counted(
        settings=recipe.training,
        packing=packing,
        model=model,
        args=arguments,
        train_dataset=Examples(tokenized_examples(load_examples(recipe), tokenizer, locator, 96), collator.pad_id),
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[gradients],
    )
    trainer.train()
    assert len(passes) < 6 if packing else len(passes) == 6
    assert any("position_ids" in each for each in passes) is bool(packing)
    return next(line for line in trainer.state.log_history if "loss" in line), gradients.found


WITH_MODULE = {"layer": 2, "gate_hidden_size": 16, "gate_dropout": 0.0, "role_weight": 0.5}


METHODS: dict[str, dict[str, Any]] = {name: {"ani": {**WITH_MODULE, "policy": name}} for name in ("after", "terminal")}
METHODS |= {"sft": {"method": "sft"}} if deep() else {}


@cover(family=FAMILIES, method=list(METHODS), attention=["sdpa", "flash"])
def test_packed_rows_have_the_loss_and_gradients_of_a_row_per_example(
    family: str, method: str, attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed rows give the loss and gradients of one row per example, with LoRA, gradient checkpointing, penalty and
    roles."""
    packing, patch = (Packing(96, 2), None) if attention == "sdpa" else (Packing(192, 1), monkeypatch)
    expected, others = step(family, METHODS[method], tmp_path / "plain", None, patch)
    line, gradients = step(family, METHODS[method], tmp_path / "packed", packing, patch)
    assert line.keys() == expected.keys()
    for key in line.keys() - {"tokens_per_second"}:
        assert line[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-5), key
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        assert others[name].abs().max() > 0, name
        torch.testing.assert_close(gradient, others[name], rtol=0, atol=1e-5 * expected["grad_norm"], msg=name)


@given(st.lists(st.integers(1, 9), min_size=1), st.integers(9, 30))
def test_first_fit_places_each_example_once_and_leaves_no_two_rows_that_fit_into_one(
    lengths: list[int], capacity: int
) -> None:
    rows = first_fit(lengths, capacity)
    assert sorted(index for row in rows for index in row) == [*range(len(lengths))]
    loads = [sum(lengths[index] for index in row) for row in rows]
    assert max(loads) <= capacity
    assert len(rows) == 1 or sum(sorted(loads)[:2]) > capacity


def test_a_packed_pass_is_no_larger_than_another() -> None:
    settings = TrainingSettings(batch_size=3, max_length=40)
    for device, attention, largest in (
        ("cpu", "sdpa", (32, 3)),  # as wide as the model
        ("meta", "sdpa", (40, 3)),
        ("meta", "flash_attention_2", (120, 1)),
    ):
        model = tiny("llama").to(device)
        model.config._attn_implementation_internal = attention
        assert packing_of(model, settings) == largest


def of_length(length: int) -> TokenizedExample:
    return TokenizedExample([*range(length)], 1, [Role.UNKNOWN] * length)


@pytest.mark.parametrize(
    ("lengths", "packing", "rows"),
    [
        ([5, 4, 3, 2, 2], None, [2, 2, 1]),
        ([5, 4, 3, 2, 2], Packing(8, 2), [2]),  # 5 + 3 and 4 + 2 + 2
        ([5, 4, 3, 2, 2], Packing(16, 1), [1]),
        ([9, 4, 3, 2, 2], Packing(8, 1), [2, 2, 1]),  # packed, 9 and 4 + 3 + 2 and 2 are as many passes
        ([5, 4], Packing(9, 2), [2]),  # a pass as before
    ],
)
def test_a_step_is_packed_if_it_takes_fewer_passes(
    lengths: list[int], packing: Packing | None, rows: list[int]
) -> None:
    passes = StepCollator(NumberCollator(gemma_like(), None), 2, packing)([of_length(each) for each in lengths])[PASSES]
    assert [len(each["input_ids"]) for each in passes] == rows
    assert sum(each["tokens"] for each in passes) == sum(lengths)


def test_what_fills_up_a_step_is_left_out_where_there_are_examples() -> None:
    collate, nothing = StepCollator(NumberCollator(gemma_like(), None), 2, None), TokenizedExample([0], 1, [-1])
    assert [len(each["input_ids"]) for each in collate([of_length(3), nothing, nothing])[PASSES]] == [1]
    assert [each["input_ids"].tolist() for each in collate([nothing] * 3)[PASSES]] == [[[0]]]


SMALL = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2}
BIOGPT = BioGptConfig(**SMALL, num_attention_heads=2, intermediate_size=32, max_position_embeddings=128)


def test_flash_attention_across_texts_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(*states: Any, cu_seqlens_q: Any, **settings: Any) -> Any:
        ends = cu_seqlens_q[[0, -1]]
        return varlen(*states, **{**settings, "cu_seqlens_q": ends, "cu_seqlens_k": ends})

    for attend, reason in ((varlen, None), (mixed, "flash_attention_2 does not mask the texts")):
        model = tiny("llama")
        with_flash_attention(model, monkeypatch, attend)
        found = why_not_packed(model)
        assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (lambda: MambaForCausalLM(MambaConfig(**SMALL)), "MambaForCausalLM takes no position_ids"),
        (lambda: BioGptForCausalLM(BIOGPT), "BioGptForCausalLM with attention"),
        (lambda: attached("llama", layer=0, combine="substitute", gate="open")[0], "substitute"),
    ],
)
def test_models_that_cannot_mask_texts(model: Callable[[], Any], named: str) -> None:
    reason = why_not_packed(model())
    assert reason is not None and named in reason


def test_a_model_that_cannot_mask_texts_trains_unpacked_and_says_why(
    tiny_recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = gemma_like()
    config = BioGptConfig(**{**BIOGPT.to_dict(), "vocab_size": len(tokenizer)})
    BioGptForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    packed, said = [], io.StringIO()

    def trainer(*, packing: Packing | None, **kwargs: Any) -> AniTrainer:
        packed.append(packing)
        return AniTrainer(packing=packing, **kwargs)

    monkeypatch.setattr(run_module, "AniTrainer", trainer)
    for model in ([f"model={tmp_path / 'model'}", "method=sft"], []):
        recipe = load_recipe(tiny_recipe(output=str(tmp_path / f"run{len(model)}")), ["training.steps=1", *model])
        train(recipe, console=Console(file=said, width=200))
    assert packed[0] is None and packed[1] is not None
    line, _ = said.getvalue().splitlines()  # the second counts the numbers of the other run
    assert "BioGptForCausalLM" in line
