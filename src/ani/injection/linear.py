"""The linear layer of the module."""

from typing import Any, cast

import torch
from torch import nn


class Linear(nn.Module):
    """`nn.Linear`, but no subclass of it, because PEFT's `all-linear` and quantizers replace each of those; it computes
    in the dtype of its input, because FSDP 2 and DeepSpeed cast weights to bfloat16."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias: Any = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    reset_parameters = cast(Any, nn.Linear).reset_parameters

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(inputs.dtype)
        return nn.functional.linear(inputs, self.weight.to(inputs.dtype), bias)
