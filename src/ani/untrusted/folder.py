"""Checks the files of an untrusted folder: links, pickles, digests, safetensors."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ani.errors import InputError
from ani.untrusted.text import one_line

_FLOATS = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})


def own_file(folder: Path, name: str) -> Path:
    """A file of the folder; raises InputError if it isn't there, or is a link to somewhere else."""
    file = folder / name
    if not file.is_file():
        refuse_pickles(folder, file.stem)
        raise InputError(f"{folder} has no {name}; it is incomplete")
    home, real = folder.resolve(), file.resolve()
    # In its cache, the hub's own client links a snapshot's files to blobs beside the snapshots.
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not real.is_relative_to(home) and not real.is_relative_to(blobs):
        raise InputError(f"{file} is a link to a file outside of its folder; copy that file in its place")
    return file


def unchanged_file(folder: Path, name: str, sha256: str, told_by: str) -> Path:
    """`own_file`; raises InputError unless its digest is the one that the file `told_by` names."""
    file = own_file(folder, name)
    try:
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{file} can't be read: {error.strerror}") from error
    if found != sha256:
        raise InputError(f"{file} is not the file that {told_by} describes (truncated or changed); fetch it again")
    return file


def refuse_pickles(folder: Path, stem: str = "*") -> None:
    """Raises InputError if a folder has weights of that name as a pickle, and none as safetensors."""
    pickles = [file.name for file in folder.glob(f"{stem}.*") if file.suffix in (".bin", ".pt", ".pth", ".ckpt")]
    if pickles and not any(folder.glob(f"{stem}.safetensors")):
        raise InputError(
            f"{folder} has its weights in {min(pickles)}, a pickle, which can run any code when it is opened; convert "
            "it to safetensors, as ANI loads safetensors only"
        )


def read_weights(
    file: Path, wanted: Mapping[str, torch.Tensor], told_by: str, *, prefix: str = "", apart: str | None = None
) -> dict[str, torch.Tensor]:
    """The file's tensors by name, mapped into memory; names and shapes are judged by the header alone. The format,
    safetensors, has no room for code.

    Raises InputError if it is damaged, or holds other names and shapes than `wanted` (tensors, such as those of a
    module on the meta device), other types, NaN or infinity; errors name what asked for these shapes, `told_by`.
    `prefix` is left out of the file's names before they are compared; names that begin with `apart` may be there too.
    """
    shapes = {name: list(tensor.shape) for name, tensor in wanted.items()}
    weights: dict[str, torch.Tensor] = {}
    try:
        with safe_open(file, "pt") as opened:
            keys = list(opened.keys())
            held = {key.removeprefix(prefix): opened.get_slice(key).get_shape() for key in keys}
            held = {name: shape for name, shape in held.items() if apart is None or not name.startswith(apart)}
            for name in {**shapes, **held}:
                if held.get(name) != shapes.get(name):
                    raise InputError(
                        f"{file} doesn't fit its {told_by}: {one_line(name)} has the shape "
                        f"{held.get(name, 'nothing')}, not {shapes.get(name, 'nothing')}; fetch it again, or make it "
                        "anew if another version of ani wrote it"
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
