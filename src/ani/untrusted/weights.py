"""Safetensors of others: floating-point weights, finite, of the wanted shapes; knows nothing about what they are of."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ani.errors import InputError
from ani.untrusted.text import one_line

_FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


def read_weights(
    file: Path, wanted: Mapping[str, torch.Tensor], told_by: str, *, prefix: str = "", part: str = ""
) -> dict[str, torch.Tensor]:
    """The file's tensors by name, mapped into memory; names and shapes are judged by the header alone.

    Args:
        file: In the safetensors format, which has no room for code.
        wanted: Tensors of the right shapes, such as those of a module on the meta device.
        told_by: What asked for these shapes, for errors.
        prefix: Left out of the file's names before they are compared.
        part: Only names that hold it are compared; all tensors must be finite.

    Raises:
        InputError: It is damaged, or holds other names, shapes or types, NaN or infinity.
    """
    shapes = {name: list(tensor.shape) for name, tensor in wanted.items() if part in name}
    weights: dict[str, torch.Tensor] = {}
    try:
        with safe_open(file, "pt") as opened:
            keys = list(opened.keys())
            held = {key.removeprefix(prefix): opened.get_slice(key).get_shape() for key in keys if part in key}
            for name in {**shapes, **held}:
                if held.get(name) != shapes.get(name):
                    raise InputError(
                        f"{file} doesn't fit its {told_by}: {one_line(name)} has the shape "
                        f"{held.get(name, 'nothing')}, not {shapes.get(name, 'nothing')}; fetch it again"
                    )
            for key in keys:
                weights[key.removeprefix(prefix)] = tensor = opened.get_tensor(key)
                if tensor.dtype not in _FLOATS:
                    raise InputError(f"{file}: {one_line(key)} holds {tensor.dtype}, not floating-point weights")
                if not tensor.isfinite().all():
                    raise InputError(
                        f"{file}: {one_line(key)} holds NaN or infinity; train again, or take an earlier checkpoint"
                    )
    except InputError:
        raise
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is damaged: {one_line(error)}") from error
    return weights
