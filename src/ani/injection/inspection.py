"""What the gate decides about the numbers of a text, or is made to."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase

from ani.injection.attach import ani_module, base_model, is_attached, last_decision, number_locator
from ani.injection.locate import PADDING
from ani.models import evaluating
from ani.results.decisions import NumberDecision, gate_view


class Decisions(list[NumberDecision]):
    """The decisions about the numbers of a text, in their order; a notebook shows them in the text, coloured."""

    def __init__(self, text: str, gated: bool, numbers: Iterable[NumberDecision] = ()) -> None:
        super().__init__(numbers)
        self.text = text
        self.gated = gated
        """Whether there is a gate to decide."""

    def _repr_html_(self) -> str:
        return gate_view(self.text, self, self.gated)


@torch.inference_mode()
def inspect(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, *, around: tuple[str, str] | None = None
) -> Decisions:
    """Run `text` through an attached model as a prompt and return the decision about each of its numbers.

    Under `digitwise` and `running` a number is decided anew at each of its tokens; the last decision is
    returned; under `after` a number at the very end is decided as if the text ended there
    (`NumberLocator.whole_text`).

    `around` is what stands before and after the text in the prompt, special tokens included, such as
    `ani.chat.around_message(tokenizer)`: numbers there are left out, and places are those in `text`, but tokens those
    of the prompt. None: nothing but the special tokens that the tokenizer adds.
    """
    before, after = around or ("", "")
    prompt = before + text + after
    gated = ani_module(model).gate is not None
    base = base_model(model)
    locator = number_locator(model)
    encoded = tokenizer(prompt, add_special_tokens=around is None, return_offsets_mapping=True)
    token_ids = locator.whole_text(encoded["input_ids"])
    numbers = locator.scanner.scan(token_ids) if locator.reads_literals else []
    if not numbers:
        return Decisions(text, gated)
    with evaluating(base):
        base(input_ids=torch.tensor([token_ids], device=base.device), logits_to_keep=1)
    decision = last_decision(model)
    decided: dict[int, tuple[float, float]] = {}
    if decision is not None:  # None: no number got anything
        learnt, applied = decision.injection.logits.float().sigmoid(), decision.injection.alpha
        positions = decision.numbers.positions.tolist()
        decided = dict(zip(positions, zip(learnt.tolist(), applied.tolist(), strict=True), strict=True))
    carrier = {number.last_token: token for number, token in locator.find(token_ids)}
    # Numbers' offsets count the characters of the decoded ids, which may begin with special tokens that the prompt
    # lacks, and which are another text if the tokenizer normalizes it, as Qwen's composes accents.
    shift = locator.scanner.text(token_ids).find(prompt)

    def place(written: str, start: int, first_token: int, last_token: int) -> tuple[str, int, int]:
        """What stands for it in `prompt`, and where."""
        if shift >= 0:
            return written, start - shift, start - shift + len(written)
        offsets = encoded["offset_mapping"]
        first, end = offsets[first_token][0], offsets[last_token][1]
        at = prompt.find(written, first, end)
        return (written, at, at + len(written)) if at >= 0 else (prompt[first:end], first, end)

    found = Decisions(text, gated)
    for number in numbers:
        written, start, end = place(number.text, number.start, number.first_token, number.last_token)
        alpha, applied_alpha = decided.get(carrier.get(number.last_token, -1), (math.nan, 0.0))
        if len(before) <= start and end <= len(before) + len(text):
            found.append(
                NumberDecision(
                    text=written,
                    value=number.value,
                    start=start - len(before),
                    end=end - len(before),
                    first_token=number.first_token,
                    last_token=number.last_token,
                    alpha=None if math.isnan(alpha) else alpha,
                    injected=applied_alpha > 0,
                )
            )
    return found


@contextmanager
def _with(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def forced_gates(model: nn.Module, opened: bool | None) -> AbstractContextManager[None]:
    """Within the block, open or shut every gate of an attached model, in forward as in generation; None: as learnt.

    Shut is the model without injection, bit for bit (its LoRA weights stay on), for methods without a gate too;
    open is α = 1. The model is shared: threads that use it meanwhile are forced too.
    """
    return _with(ani_module(model), "forced", opened)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Within the block, leave out the module and LoRA, in forward as in generation: the base model, bit for bit. The
    model is shared, as by `forced_gates`."""
    base = base_model(model)
    with ExitStack() as stack:
        if is_attached(model):
            stack.enter_context(forced_gates(model, False))
        if isinstance(model, PeftModel):
            stack.enter_context(model.disable_adapter())
        elif getattr(base, "_hf_peft_config_loaded", False):
            base.disable_adapters()
            stack.callback(base.enable_adapters)
        yield


@contextmanager
def forced_numbers(model: nn.Module, prompts: Mapping[tuple[int, ...], Mapping[int, bool]]) -> Iterator[None]:
    """Within the block, open or shut the gates of some numbers of prompts, in forward as in generation.

    All others decide as learnt. The model is shared, as by `forced_gates`.

    Args:
        model: Attached.
        prompts: Token ids that a text begins with, and which of its gates are open (True) or shut, by each token of
            their number (`NumberDecision.first_token` to `last_token`).
    """
    with (
        _with(number_locator(model), "forced_of", _by_prompt(prompts)),
        _with(ani_module(model), "forced", "by role"),
    ):
        yield


def _by_prompt(
    prompts: Mapping[tuple[int, ...], Mapping[int, bool]],
) -> Callable[[Sequence[int]], Mapping[int, bool]]:
    """What is said of a row's tokens, by the prompt that it begins with."""
    lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)

    def facts(token_ids: Sequence[int]) -> Mapping[int, bool]:
        padding = next((place for place, token in enumerate(token_ids) if token != PADDING), 0)
        starts = (tuple(token_ids[padding : padding + length]) for length in lengths)
        found = next((prompts[start] for start in starts if start in prompts), {})
        return {token + padding: fact for token, fact in found.items()}

    return facts
