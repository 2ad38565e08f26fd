"""The files of an adapter: where they are, and the checks of what may come from anybody."""

from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open

from ani.errors import InputError, one_line
from ani.revisions import hub_name

CONFIG_FILE = "ani_config.json"
WEIGHTS_FILE = "ani.safetensors"
CARD_FILE = "README.md"
PEFT_CONFIG_FILE = "adapter_config.json"
PEFT_WEIGHTS_FILE = "adapter_model.safetensors"
FILES = [CONFIG_FILE, WEIGHTS_FILE, PEFT_CONFIG_FILE, PEFT_WEIGHTS_FILE]
ASSETS = Path(__file__).parents[1] / "assets"
SHIPPED = ("smollm2-adapter",)
"""Names of the adapters for the embedded model that come with the package."""


def adapter_directory(name: str | Path, revision: str | None) -> Path:
    """The directory of an adapter, downloaded if the name is one on the hub; raises InputError if there is none."""
    directory = Path(name)
    if str(name) in SHIPPED and not directory.exists():
        return ASSETS / name
    try:
        if not directory.exists():
            repository, named = hub_name(str(name))
            return Path(snapshot_download(repository, revision=revision or named, allow_patterns=FILES))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise InputError(
            f"no adapter at {one_line(name)}: there is no such directory, and the Hugging Face hub gave none "
            f"({one_line(error)})"
        ) from error
    if not directory.is_dir():
        raise InputError(f"{name} is a file; an adapter is a directory with {CONFIG_FILE} and {WEIGHTS_FILE}")
    return directory


def own_file(folder: Path, name: str) -> Path:
    """A file of the folder; raises InputError if it isn't there, or is a link out of the folder."""
    file = folder / name
    if not file.is_file():
        raise InputError(f"{folder} has no {name}; it is incomplete (weights are read from safetensors only)")
    home, real = folder.resolve(), file.resolve()
    # In its cache, the hub's own client links a snapshot's files to blobs beside the snapshots.
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not real.is_relative_to(home) and not real.is_relative_to(blobs):
        raise InputError(f"{file} is a link to a file outside its folder; copy that file in its place")
    return file


def read_weights(file: Path, wanted: Mapping[str, torch.Tensor], apart: str = "\0") -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, by name; those whose names begin with `apart` are left out.

    Raises InputError if the file is damaged, or its tensors are of other names or shapes than `wanted`, or not finite.
    """
    try:
        with safe_open(file, "pt") as opened:
            names = {name for name in opened.keys() if not name.startswith(apart)}  # noqa: SIM118 (no mapping)
            for name in sorted(names | wanted.keys()):
                found = opened.get_slice(name).get_shape() if name in names else "nothing"
                shape = list(wanted[name].shape) if name in wanted else "nothing"
                if found != shape:
                    raise InputError(f"{file}: {one_line(name)} has the shape {found}, not {shape}; fetch it again")
            weights = {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} is damaged: {one_line(error)}") from error
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise InputError(f"{file}: {one_line(name)} is not finite floating-point numbers; fetch it again")
    return weights
