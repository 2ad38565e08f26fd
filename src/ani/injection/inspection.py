"""Shows the gate's decisions for a text or a conversation, and forces them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ani.calculator.reader.pending import Pending
from ani.chat import rendered
from ani.errors import InputError
from ani.injection.attach import ani_module, base_model, is_attached, is_peft_model, last_decision, number_locator
from ani.injection.locate import PADDING
from ani.models import evaluating
from ani.results.decisions import NumberDecision, PendingDecision, gate_view
from ani.text_files import parse_json


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
    locator = number_locator(model)
    encoded = tokenizer(prompt, add_special_tokens=around is None, return_offsets_mapping=True)
    token_ids = locator.whole_text(encoded["input_ids"])
    numbers = locator.scanner.scan(token_ids) if locator.reads_literals else []
    if not numbers:
        return Decisions(text, gated)
    decided = _decided(model, token_ids)
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
        alpha, injected = decided.get(carrier.get(number.last_token, -1), (None, False))
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
    return found


def _decided(model: nn.Module, token_ids: list[int]) -> dict[int, tuple[float, bool]]:
    """α = σ(z) and the decision at each token of a prompt that carries something, from one forward pass."""
    base = base_model(model)
    with evaluating(base):
        base(input_ids=torch.tensor([token_ids], device=base.device), logits_to_keep=1)
    if (decision := last_decision(model)) is None:
        return {}
    alphas, injected = decision.injection.logits.float().sigmoid().tolist(), (decision.injection.alpha > 0).tolist()
    return dict(zip(decision.numbers.positions.tolist(), zip(alphas, injected, strict=True), strict=True))


# --- pending values ---------------------------------------------------------------------------------------------------

DUE = 12
"""Pending digits that are shown at most."""


@torch.inference_mode()
def inspect_pending(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = False
) -> list[PendingDecision]:
    """Run `text` through an attached model with `values="pending"` or `"both"`; the tokens at which a value is pending,
    in order.

    Args:
        model: Attached.
        tokenizer: The model's.
        text: A text, or a whole conversation as `ani.chat.rendered` writes it.
        special: Whether `text` has its special tokens already, as a rendered conversation does.
    """
    locator = number_locator(model)
    token_ids = tokenizer(text, add_special_tokens=not special)["input_ids"]
    found = locator.pending(token_ids)
    if not found:
        return []
    decided = _decided(model, token_ids)
    pieces, _ = locator.scanner.pieces(token_ids)
    starts = list(accumulate(map(len, pieces), initial=0))
    return [
        PendingDecision(token, pieces[token], starts[token], each.name, each.text.strip(), _due(each), *decided[token])
        for token, each in found.items()
    ]


def conversation_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """What the model reads of a chat: one user message, or messages as a JSON list; up to where an answer begins unless
    the last message is one. Raises InputError if they are no messages, or the template refuses them."""
    messages: Any = [{"role": "user", "content": text}]
    if text.lstrip().startswith("["):
        messages = parse_json(text, "the conversation")
        if not messages or not all(isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages):
            raise InputError("the conversation must be a list of messages, each with 'role' and 'content'")
    return rendered(tokenizer, messages, add_generation_prompt=messages[-1]["role"] != "assistant")


def _due(pending: Pending) -> str:
    digits = pending.next(DUE)
    more = "…" if len(digits) == DUE and digits[-1].character else ""
    return "".join(digit.character for digit in digits) + more


# --- overrides --------------------------------------------------------------------------------------------------------


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
        if is_peft_model(model):
            stack.enter_context(model.disable_adapter())
        elif (lora := vars(base).get("_ani_lora")) is not None:
            stack.enter_context(lora.disable_adapter())
        yield


@contextmanager
def forced_numbers(model: nn.Module, prompts: Mapping[tuple[int, ...], Mapping[int, bool]]) -> Iterator[None]:
    """Within the block, open or shut the gates of some numbers of prompts, in forward as in generation. All others
    decide as learnt. The model is shared, as by `forced_gates`.

    `prompts`: token ids that a text begins with, and which of its gates are open (True) or shut, by each token of their
    number (`NumberDecision.first_token` to `last_token`).
    """
    with _with(number_locator(model), "forced_of", _by_prompt(prompts)), _with(ani_module(model), "forced", "by role"):
        yield


def _by_prompt(prompts: Mapping[tuple[int, ...], Mapping[int, bool]]) -> Callable[[Sequence[int]], Mapping[int, bool]]:
    """What is said of a row's tokens, by the prompt that it begins with."""
    lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)

    def facts(token_ids: Sequence[int]) -> Mapping[int, bool]:
        padding = next((place for place, token in enumerate(token_ids) if token != PADDING), 0)
        starts = (tuple(token_ids[padding : padding + length]) for length in lengths)
        found = next((prompts[start] for start in starts if start in prompts), {})
        return {token + padding: fact for token, fact in found.items()}

    return facts
