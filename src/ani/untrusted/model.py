"""Checks an untrusted model directory before it is loaded: size, file names, code, missing weights.

Of whatever family it is, it is built from its config.json on no device, under a bound that its own files set.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from torch import nn
from torch.nn.modules import module as modules
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from ani.errors import InputError
from ani.untrusted.folder import refuse_pickles
from ani.untrusted.text import one_line, parse_json, read_text

_LARGEST_INTEGER = 2**26
"""In a config.json: larger than any size. A rotary base is none; and configs have loops over their layers."""
_LARGEST_INDEX = 2**26
_FEW = (3_000, 2**26)
"""Modules and tensors, and numbers in these, that any file may ask for: some 100 MB, and less than a second."""
_MOST = (2**17, 2**44)
"""The same where there are no files to go by: no model has so many."""


def check_model(name: str, source: str, *, fetch: bool = False) -> int:
    """Judge a model by its config.json, and by its other files where these are at hand; returns how many weights it
    has.

    With `fetch` the files of a model on the hub are fetched, as for loading it. Raises InputError for sizes that no
    model has, or more weights than its files hold; names out of its folder; weights as pickles; an adapter among its
    files; code that would have to come with it.
    """
    raw, _ = PreTrainedConfig.get_config_dict(source)
    if "auto_map" in raw and raw.get("model_type") not in CONFIG_MAPPING:
        raise InputError(
            f"{name} brings code of its own, which ANI never runs; name a model of transformers' own families"
        )
    if "transformers_weights" in raw:  # may be a pickle
        raise InputError(f"{name}: config.json names a file of weights; call it model.safetensors, and leave that out")
    folder = Path(source)
    if fetch and not folder.is_dir():
        wanted = ["*.safetensors", SAFE_WEIGHTS_INDEX_NAME, ADAPTER_CONFIG_NAME]
        folder = Path(snapshot_download(source, allow_patterns=wanted, ignore_patterns=["*/*", "consolidated*"]))
    _check_names(name, folder)
    files = [*folder.glob("*.safetensors")]
    if fetch and not files:
        raise InputError(f"{name} has no weights in safetensors files, and ANI loads no others; name another model")
    size, tensors = sum(file.stat().st_size for file in files), 0
    for file in files:
        with safe_open(file, "pt") as opened:
            tensors += len(opened.keys())
    # A weight takes a bit at least, however it is quantized; and layers are more parts in memory than in a file.
    parts, weights = (_FEW[0] + 16 * tensors, max(_FEW[1], 8 * size)) if files else _MOST
    for key, value in _integers(raw):
        if abs(value) > (parts if "layer" in key else _LARGEST_INTEGER) and "theta" not in key:
            stated = f"{one_line(key, 80)}={one_line(value, 40)}"
            raise InputError(f"{name}: config.json has {stated}, no model's; get the model anew")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    held = f"than its files hold ({size:,} bytes), so one of them is damaged" if files else "than any model has"
    told = f"no model {name!r}: config.json asks for more weights {held}; get the model anew"
    with _bounded(parts, weights, told), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(parameter.numel() for parameter in model.parameters())


def load_whole(load: Callable[..., Any], source: Any, *args: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """What `load`, transformers' `from_pretrained`, gives with `output_loading_info`; raises as `refuse_partial`.

    It tells what is harmless: what a family doesn't keep (`_keys_to_ignore_on_load_*`), tied weights, rotary tables.
    """
    model, info = load(source, *args, **{**options, "output_loading_info": True, "ignore_mismatched_sizes": True})
    refuse_partial(source, info["missing_keys"], info["unexpected_keys"], info["mismatched_keys"])
    return model, info


def refuse_partial(name: object, missing: set[str], unexpected: set[str], shapes: Collection[Any] = ()) -> None:
    """Raises InputError if weights of the model `name` are missing, unexpected, or of other shapes (name, found,
    wanted)."""
    others = [f"{key} {[*found]} instead of {[*wanted]}" for key, found, wanted in shapes]
    wrong = {"missing": missing, "of another shape": others, "unexpected": unexpected}
    told = [f"{len(keys)} {how} ({one_line(', '.join(sorted(keys)))})" for how, keys in wrong.items() if keys]
    if told:
        raise InputError(f"{name}: its files don't hold its weights: {'; '.join(told)}; get the model anew")


def _check_names(name: str, folder: Path) -> None:
    if (folder / ADAPTER_CONFIG_NAME).exists():  # transformers would load it, whatever it tells PEFT to do
        raise InputError(
            f"{name} has an adapter among its files ({ADAPTER_CONFIG_NAME}); move it to a folder of its own"
        )
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file():
        shards = parse_json(read_text(index, _LARGEST_INDEX), f"{index} is damaged")
        shards = shards.get("weight_map") if isinstance(shards, dict) else None
        if not isinstance(shards, dict) or not all(
            isinstance(shard, str) and shard == Path(shard).name for shard in shards.values()
        ):
            raise InputError(f"{index} must name files of its own folder under weight_map; get the model anew")
    refuse_pickles(folder)


@contextmanager
def _bounded(parts: int, weights: int, told: str) -> Iterator[None]:
    """Raises InputError as soon as the block has made more modules and tensors of modules, or numbers in these."""
    left, thread = [parts, weights], threading.get_ident()

    def count(_: nn.Module, name: str, made: object) -> None:
        if threading.get_ident() == thread:
            left[0] -= 1
            left[1] -= made.numel() if isinstance(made, torch.Tensor) else 0
            if min(left) < 0:
                raise InputError(told)

    with (
        modules.register_module_module_registration_hook(cast(Any, count)),
        modules.register_module_parameter_registration_hook(cast(Any, count)),
        modules.register_module_buffer_registration_hook(cast(Any, count)),
    ):
        yield


def _integers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """With the key that each stands under, at any depth."""
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else zip(repeat(key), value):
            yield from _integers(part, name)
    elif isinstance(value, int):
        yield key, value
