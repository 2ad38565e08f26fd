"""What a model directory of others may ask for, judged before anything is built by it; knows nothing about loading."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from ani.errors import InputError
from ani.untrusted.folder import refuse_pickles
from ani.untrusted.text import one_line, parse_json, read_text

_MOST = {
    "num_hidden_layers": 10_000,
    "vocab_size": 10**8,
    "hidden_size": 2**20,
    "intermediate_size": 10**8,
    "num_attention_heads": 2**16,
    "num_key_value_heads": 2**16,
    "head_dim": 2**16,
    "num_experts": 2**16,
    "num_local_experts": 2**16,
    "max_position_embeddings": 10**9,
}
"""What a config.json may ask for, before it is asked whether its weights are as many."""
_NEEDED = (
    ("vocab_size",),
    ("num_hidden_layers", "intermediate_size"),
    ("num_attention_heads", "head_dim"),
    ("gate_hidden_size",),
)
"""Times the width, weights that a model has at least; of a merged checkpoint's section `ani`, too."""
_LARGEST_INDEX = 2**26


def check_model(name: str, source: str) -> None:
    """Judge a model by its config.json, and one in a directory by its other files, too.

    Raises:
        InputError: Sizes that no model has, or more weights than its files hold; names out of its folder; weights as
            pickles; code that would have to come with it. The model is called `name`.
    """
    config, _ = PreTrainedConfig.get_config_dict(source)
    for key, most in _MOST.items():
        for value in _sizes(config, key):
            if not 0 <= value <= most:
                raise InputError(f"{name}: config.json has {key}={one_line(value, 40)}, no model's; get the model anew")
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise InputError(
            f"{name} brings code of its own, which ANI never runs; name a model of a family that transformers has"
        )
    folder = Path(source)
    if not folder.is_dir():
        return
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = parse_json(read_text(index, _LARGEST_INDEX), f"{index} is damaged")
        shards = shards.get("weight_map") if isinstance(shards, dict) else None
        if not isinstance(shards, dict) or not all(
            isinstance(shard, str) and shard == Path(shard).name for shard in shards.values()
        ):
            raise InputError(f"{index} must name files of its own folder under weight_map; get the model anew")
    refuse_pickles(folder)
    bits = 8 * sum(file.stat().st_size for file in folder.glob("*.safetensors"))  # no weight takes less than one
    for section in (config, *(part for part in config.values() if isinstance(part, dict))):
        width = section.get("hidden_size", config.get("hidden_size", 1))
        for sizes in _NEEDED:
            values = [section.get(key, 1) for key in sizes]
            if not bits or not all(type(value) is int for value in (width, *values)):
                continue
            if (needed := width * math.prod(values)) > bits:
                raise InputError(
                    f"no model {name!r}: config.json tells of {' × '.join(('hidden_size', *sizes))} = {needed:,} "
                    "weights, more than its files hold, so one of them is damaged; get the model anew"
                )


def _sizes(value: Any, key: str) -> Iterator[int]:
    """The integers under a key, at any depth."""
    if isinstance(value, dict):
        if isinstance(value.get(key), int | float):
            yield value[key]
        for part in value.values():
            yield from _sizes(part, key)
