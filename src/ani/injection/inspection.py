"""Shows the gate's decisions for a text, and overrides what is injected."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from ani.injection.decisions import NumberDecision, gate_view
from ani.injection.model_parts import (
    ani_module,
    base_model,
    check_tokenizer,
    is_attached,
    is_peft_model,
    last_decision,
    number_locator,
)
from ani.injection.number_batch import PADDING
from ani.models import evaluating
from ani.numbers import Number


class Decisions(list[NumberDecision]):
    """The decisions about the numbers of a text, in their order; a notebook shows them in the text, coloured."""

    def __init__(self, text: str, gated: bool, numbers: Iterable[NumberDecision] = ()) -> None:
        super().__init__(numbers)
        self.text = text
        self.gated = gated
        """True if the module has a gate."""

    def _repr_html_(self) -> str:
        return gate_view(self.text, self, self.gated)


def inspect(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, *, around: tuple[str, str] | None = None
) -> Decisions:
    """Run a text through an attached model as a prompt and return the decision about each of its numbers.

    Under `digitwise` and `running` a number is decided anew at each of its tokens, and the last decision is returned.
    Under `after` a number at the very end is decided as if the text ended there (`NumberLocator.whole_text`).

    Args:
        model: Attached.
        tokenizer: The model's.
        text: The text to inspect.
        around: Text before and after it in the prompt, special tokens included, such as
            `ani.chat.around_message(tokenizer)`. Its numbers are left out; characters are counted in `text`, tokens in
            the prompt. None: only the special tokens that the tokenizer adds.
    """
    return inspect_batch(model, tokenizer, [text], around=around)[0]


@torch.inference_mode()
def inspect_batch(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, around: tuple[str, str] | None = None
) -> list[Decisions]:
    """Inspect each of several texts as `inspect` does, in one forward pass."""
    check_tokenizer(tokenizer)
    locator, gated = number_locator(model), ani_module(model).gate is not None
    before, after = around or ("", "")
    prompts = [before + text + after for text in texts]
    encoded = [tokenizer(prompt, add_special_tokens=around is None, return_offsets_mapping=True) for prompt in prompts]
    rows = [locator.whole_text(each["input_ids"]) for each in encoded]
    numbers = [locator.scanner.scan(row) for row in rows]
    read = [index for index, found in enumerate(numbers) if found]
    decided = dict(zip(read, _decided(model, [rows[index] for index in read]), strict=True))
    result = []
    for index, text in enumerate(texts):
        found = Decisions(text, gated)
        carrier = {number.last_token: token for token, number in locator.find(rows[index]).items()}
        # Numbers' offsets count the characters of the decoded ids, which may begin with special tokens that the prompt
        # lacks, and which are another text if the tokenizer normalizes it, as Qwen's composes accents.
        shift = locator.scanner.text(rows[index]).find(prompts[index])
        for number in numbers[index]:
            written, start, end = _place(number, prompts[index], shift, encoded[index]["offset_mapping"])
            alpha, injected = decided[index].get(carrier.get(number.last_token, -1), (None, False))
            if len(before) <= start and end <= len(before) + len(text):
                found.append(
                    NumberDecision(
                        text=written,
                        value=number.value,
                        start=start - len(before),
                        end=end - len(before),
                        first_token=number.first_token,
                        last_token=number.last_token,
                        alpha=alpha,
                        injected=injected,
                    )
                )
        result.append(found)
    return result


def _place(number: Number, prompt: str, shift: int, offsets: Sequence[tuple[int, int]]) -> tuple[str, int, int]:
    """The number's text in `prompt`, its start and its end."""
    if shift >= 0:
        return number.text, number.start - shift, number.end - shift
    first, end = offsets[number.first_token][0], offsets[number.last_token][1]
    at = prompt.find(number.text, first, end)
    return (number.text, at, at + len(number.text)) if at >= 0 else (prompt[first:end], first, end)


def _decided(model: nn.Module, rows: Sequence[list[int]]) -> list[dict[int, tuple[float, bool]]]:
    """α = σ(z) and the decision at each token of several prompts that carries a number, from one forward pass."""
    decided: list[dict[int, tuple[float, bool]]] = [{} for _ in rows]
    if not rows:
        return decided
    base = base_model(model)
    # Padded on the right, where no token reads it; not by the tokenizer, as many have no padding token.
    texts = [torch.tensor(row) for row in rows]
    given = {"input_ids": pad_sequence(texts, batch_first=True).to(base.device)}
    if len({*map(len, rows)}) > 1:
        given["attention_mask"] = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True).to(
            base.device
        )
    with evaluating(base):
        base(**given, logits_to_keep=1)
    if (decision := last_decision(model)) is not None:
        alphas, injected = decision.injection.logits.float().sigmoid().tolist(), (decision.injection.alpha > 0).tolist()
        places = zip(decision.numbers.rows.tolist(), decision.numbers.positions.tolist(), strict=True)
        for (row, position), *found in zip(places, alphas, injected, strict=True):
            decided[row][position] = (found[0], found[1])
    return decided


@contextmanager
def _with(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def forced_gates(model: nn.Module, opened: bool | None) -> AbstractContextManager[None]:
    """Within the block, open (True) or close (False) every gate of an attached model; None: the gate decides.

    Closed gates give the model without injection, bit for bit (its LoRA weights stay on), also for methods without a
    gate; open gates are α = 1. The model is one object: the block changes it for other threads too.
    """
    return _with(ani_module(model), "forced", opened)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Within the block, leave out the module and LoRA: the base model, bit for bit. The block changes the model for
    other threads too."""
    with ExitStack() as stack:
        lora = model if is_peft_model(model) else vars(base_model(model)).get("_ani_lora")
        if lora is not None:
            stack.enter_context(lora.disable_adapter())
        if is_attached(model):  # the module without PEFT's adapters may be another one
            stack.enter_context(forced_gates(model, False))
        yield


@contextmanager
def injected_as(model: nn.Module, others: Mapping[tuple[int, ...], Sequence[int]]) -> Iterator[None]:
    """Within the block, inject the numbers of another text of the same length in place of a prompt's own.

    Args:
        model: Attached; the block changes it for other threads too.
        others: For the token ids of each prompt, as many ids of its text with other numbers.
    """
    locator = number_locator(model)
    find = locator.find

    def find_others(token_ids: Sequence[int], start: int = 0) -> dict[int, Number]:
        padding = next((i for i, token in enumerate(token_ids) if token != PADDING), 0)
        for prompt, other in others.items():
            if tuple(token_ids[padding : padding + len(prompt)]) == prompt:
                token_ids = [*token_ids[:padding], *other, *token_ids[padding + len(prompt) :]]
                break
        return find(token_ids, start)

    with _with(locator, "find", find_others):
        yield
