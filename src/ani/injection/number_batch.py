"""Token rows, and the numbers of a batch of them as tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import torch

PADDING = -1
"""Token id of a position without text: no number is there, and none extends across it."""


@dataclass(frozen=True)
class NumberBatch:
    """N numbers of a batch of token rows, text after text; the model's forward accepts one as `numbers`."""

    rows: torch.Tensor
    """Batch row of each number, int64 (N,)."""
    positions: torch.Tensor
    """Index of the token that carries it, int64 (N,)."""
    features: torch.Tensor
    """φ of its value, float32 (N, the encoder's width)."""
    roles: torch.Tensor
    """Known roles (`ani.roles.Role`), int64 (N,)."""
    masked: torch.Tensor
    """Number of its tokens right before `positions` that `combine="substitute"` hides, int64 (N,); else 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str, **kwargs: Any) -> Self:
        return type(self)(*(getattr(self, field.name).to(device, **kwargs) for field in fields(self)))

    def pin_memory(self) -> Self:
        """Pin the tensors, for asynchronous copies to a GPU; torch's DataLoader calls it."""
        return type(self)(*(getattr(self, field.name).pin_memory() for field in fields(self)))

    def at(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and positions on a device: the index of the numbers in a tensor of shape (B, T, …)."""
        return self.rows.to(device), self.positions.to(device)

    def between(self, start: int, stop: int) -> Self:
        """The numbers at positions in [start, stop), counted from `start`."""
        keep = (self.positions >= start) & (self.positions < stop)
        kept = type(self)(*(getattr(self, field.name)[keep] for field in fields(self)))
        return replace(kept, positions=kept.positions - start)

    @classmethod
    def concatenated(cls, batches: Sequence[Self]) -> Self:
        """All numbers of at least one batch, in order."""
        return cls(*(torch.cat([getattr(batch, field.name) for batch in batches]) for field in fields(cls)))

    def repeated(self, repeats: int) -> Self:
        """The numbers after each row is repeated (`repeat_interleave`), as beam search does."""
        if repeats == 1 or not len(self):
            return self
        rows = (self.rows.unsqueeze(1) * repeats + torch.arange(repeats, device=self.rows.device)).flatten()
        others = (getattr(self, field.name).repeat_interleave(repeats, dim=0) for field in fields(self)[1:])
        return type(self)(rows, *others)


@torch.compiler.disable
def text_starts(input_ids: torch.Tensor, given: Mapping[str, Any]) -> list[list[int]]:
    """The index of each text's first token, per row of (B, T). The arguments of a forward pass show where a packed row
    has another text: `position_ids` that don't count on, another number in `seq_idx`, or `cu_seq_lens_q`."""
    starts = [{0} for _ in input_ids]
    for name, within in (("position_ids", 1), ("seq_idx", 0)):
        index = given.get(name)
        if isinstance(index, torch.Tensor) and index.ndim == 2:
            for row, token in (index.diff(dim=1) != within).expand(len(input_ids), -1).nonzero().tolist():
                starts[row].add(token + 1)
    if (ends := given.get("cu_seq_lens_q")) is not None:  # of all rows together
        for end in ends.tolist():
            if end < input_ids.numel():
                starts[end // input_ids.shape[1]].add(end % input_ids.shape[1])
    return [sorted(each) for each in starts]


@torch.compiler.disable
def text_ids(input_ids: torch.Tensor, attention_mask: Any) -> list[list[int]]:
    """The rows' token ids, with `PADDING` where a 2-D attention mask is 0."""
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
        mask = attention_mask[:, -input_ids.shape[1] :]
        input_ids = torch.where(mask.to(input_ids.device) == 0, PADDING, input_ids)
    return cast(list[list[int]], input_ids.tolist())
