"""Tells whether a model is the one that an adapter was trained on, by its name and a sample of its weights."""

import math
import re
from typing import Annotated, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from ani.models import lasting_name

_ROWS, _SAMPLED = 4096, 16
"""Rows that are sampled, which every vocabulary of a real model has, however it was resized; and values of them."""
_PEFT = re.compile(r"\.(lora_\w+|modules_to_save|trainable_tokens_\w+)\.|^ani\.")
_WRAPPED = re.compile(r"\.(base_layer|original_module)(?=\.)")


class Base(BaseModel):
    """The key `base` of an adapter's `ani_config.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(max_length=4096)] | None
    """Directory, hub name, or `smollm2`; null: the model came from none of them."""
    sample: dict[str, list[float]] = {}
    """Parameter: values of it, from which another model of the same shape is told. Empty: nothing can be told."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """Describe a model, whatever PEFT and ANI have added; of one that is sharded every process must ask.

        The sample is of the embedding, which no quantization touches, and of the matrix in the middle of the model,
        where it isn't quantized: a fine-tune by LoRA leaves the embedding as it was.
        """
        own = {_WRAPPED.sub("", n): p for n, p in model.named_parameters() if p.ndim == 2 and not _PEFT.search(n)}
        names = list(own)
        sampled = dict.fromkeys([*names[:1], *names[len(names) // 2 :][:1]])
        sample = {name: values for name in sampled if (values := _values(own[name]))}
        return cls(name=lasting_name(model.name_or_path), sample=sample)

    def differs(self, model: PreTrainedModel) -> bool:
        """Whether a model's weights are others than these. Not so for the same ones in bfloat16, float16 or float32."""
        found = Base.of(model).sample
        return not all(
            math.isclose(one, other, rel_tol=0.01, abs_tol=1e-6)
            for name in self.sample.keys() & found.keys()
            for one, other in zip(self.sample[name], found[name], strict=False)
        )


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or all of one that is sharded over processes, on the CPU; then every process must ask."""
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def _values(matrix: nn.Parameter) -> list[float]:
    """Values from rows all over the first ones; none where the weights are quantized, or aren't there (offloaded)."""
    if matrix.dtype not in (torch.float32, torch.bfloat16, torch.float16) or matrix.is_meta:
        return []
    rows = full_tensor(matrix.detach())[:_ROWS]
    values = rows[:: max(1, len(rows) // _SAMPLED)].diagonal()[:_SAMPLED].float().nan_to_num()
    return [float(f"{value:.4g}") for value in values.tolist()]
