"""`combine: substitute`: masks all sub-tokens of a number but the last, so that it is read from one position.

The module replaces the embedding of a substituted number's terminal token. The sub-tokens before it stay in the rows,
hidden: no token attends to them and no position counts them, so for all other tokens they are not there. Only windows
(sliding or chunked attention) are counted in tokens of the row, hidden or not. vLLM, which can't hide tokens, gets
prompts without them (`ani.serving.plugin`).
"""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from ani.errors import InputError
from ani.injection.history import Rows
from ani.injection.model_parts import ani_module
from ani.injection.number_batch import PADDING, NumberBatch


def is_on(model: PreTrainedModel) -> bool:
    """True if numbers are read from one position each; gates that are forced closed leave the text as it is."""
    module = ani_module(model)
    return module.config.combine == "substitute" and module.forced is not False


def hidden(token_id: int) -> int:
    """The mark of a hidden token in a row of ids, below `PADDING`; its own inverse."""
    return 2 * PADDING - token_id


def readable(rows: Rows) -> Rows:
    """The rows with all of their text."""
    return [[hidden(token) if token < PADDING else token for token in row] for row in rows]


@torch.compiler.disable
def hide(
    rows: Rows, numbers: NumberBatch, start: int, input_ids: torch.Tensor, given: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """Hide, in place, the sub-tokens before each number's token, and return the masks by which a forward pass hides
    all hidden tokens: `attention_mask`, int64 (B, S), and `position_ids`, int64 (B, T).

    Args:
        rows: All token ids, those of the KV cache first.
        numbers: Their positions count from `start`.
        start: Count of cached tokens.
        input_ids: The last ids of `rows`, shape (B, T).
        given: The arguments of the forward pass or of `generate`.

    Raises:
        InputError: If the given mask has another shape, or the given positions don't count the text.
    """
    at = (x.tolist() for x in (numbers.rows, numbers.positions, numbers.masked))
    for row, position, count in zip(*at, strict=True):
        last = start + position
        sub_tokens = slice(max(0, last - count), last)
        rows[row][sub_tokens] = [min(token, hidden(token)) for token in rows[row][sub_tokens]]
    ids, new = torch.tensor(rows, device=input_ids.device), slice(-input_ids.shape[1], None)
    text, mask, positions = ids != PADDING, given.get("attention_mask"), given.get("position_ids")
    if mask is not None:
        if mask.shape != ids.shape:
            raise InputError(
                f"combine='substitute' hides tokens, so attention_mask must be one of tokens, {tuple(ids.shape)}, not "
                f"of shape {tuple(mask.shape)}"
            )
        text &= mask != 0
    if positions is not None and not torch.equal(positions * text[:, new], (_counted(text) * text)[:, new]):
        raise InputError(
            "combine='substitute' hides tokens, so position_ids must count those of the text from 0; leave them out"
        )
    seen = text & (ids >= 0)
    return {"attention_mask": seen.long(), "position_ids": _counted(seen)[:, new]}


def _counted(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


@torch.compiler.disable
def without_predictions(outputs: Any, rows: Rows, input_ids: torch.Tensor, logits_to_keep: int | torch.Tensor) -> Any:
    """The outputs of a forward pass without labels, with NaN for the logits at hidden tokens.

    Nothing is predicted inside a number, and NaN shows this to a caller that asks for the likelihood of its digits.
    """
    logits = outputs[0] if isinstance(outputs, tuple) else outputs.logits
    at = (torch.tensor(rows, device=logits.device) < PADDING)[:, -input_ids.shape[1] :]
    at = at[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]
    logits = logits.masked_fill_(at.unsqueeze(-1), torch.nan)  # in place: they are large
    if isinstance(outputs, tuple):
        return (logits, *outputs[1:])
    outputs.logits = logits
    return outputs


def check_masks_hide(model: PreTrainedModel) -> None:
    """Raise InputError unless a hidden token is, to all others of this model, as if it were not there."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    attends = kinds <= {"full_attention", "sliding_attention", "chunked_attention"} and not model._is_stateful
    if not attends or "position_ids" not in inspect.signature(model.forward).parameters:
        raise InputError(
            f"combine='substitute' hides tokens by attention mask and position_ids, and {type(model).__name__} has "
            "layers that ignore masks, or takes no position_ids; use another method or model"
        )


def inferred_mask(model: PreTrainedModel, input_ids: torch.Tensor, given: dict[str, Any]) -> torch.Tensor | None:
    """The mask that transformers' `generate` would make for padding without a mask."""
    config = given.get("generation_config") or model.generation_config
    pad = given.get("pad_token_id", config.pad_token_id)
    ends = given.get("eos_token_id", config.eos_token_id)
    if pad is None or pad in (ends if isinstance(ends, list) else [ends]):
        return None
    return input_ids.ne(pad).long()
