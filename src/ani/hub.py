"""Writes model cards of adapters and pushes adapters to the Hugging Face hub."""

import os
from pathlib import Path
from typing import cast

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from ani.errors import InputError, one_line
from ani.injection.adapter_files import CARD_FILE, FILES
from ani.injection.config import AniConfig
from ani.models import EMBEDDED

_RESULTS = "\n## Results\n"


def adapter_card(method: str, config: AniConfig | None, base: str | None) -> str:
    """The model card of an adapter; `config` is None without a module, `base` None without a name of the base model."""
    hub_name = "HuggingFaceTB/SmolLM2-135M-Instruct" if base == EMBEDDED else base
    if hub_name is not None and os.path.isabs(hub_name):
        hub_name = None  # a directory of this machine
    head = ModelCardData(base_model=hub_name, library_name="ani", tags=["ani", "numeracy"]).to_yaml()
    what = "LoRA weights, in PEFT's own files"
    if config is not None:
        what = (
            f"a module for a `{config.model_type}` model with {config.num_hidden_layers} layers of width "
            f"{config.hidden_size}: layer {config.layer}, policy `{config.policy}`, {config.integer_digits} integer "
            f"and {config.fraction_digits} fraction digits, encoders `{', '.join(config.encoders)}`"
        )
    load = "Load it with `ani.load_adapter(model, tokenizer, path)`."
    return f"---\n{head}\n---\n\n# ANI adapter\n\nMethod `{method}`, {what}. {load}\n"


def push_adapter(directory: Path, name: str, *, results: str | None = None, licence: str | None = None) -> str:
    """Push a directory that `save_adapter` wrote to the Hugging Face hub, and return the repository's address; raises
    InputError if the hub refuses it.

    `name` is `me/my-adapter`, or `my-adapter` for the user who is logged in; an existing repository is updated.
    `results`, Markdown, replaces the section "Results" of the model card; `licence` is an identifier of the hub.
    """
    card = ModelCard.load(directory / CARD_FILE)
    if results is not None:
        card.text = f"{card.text.partition(_RESULTS)[0].rstrip()}\n{_RESULTS}\n{results}"
    if licence is not None:
        cast(ModelCardData, card.data).license = licence
    card.save(directory / CARD_FILE)
    try:
        place = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(repo_id=place.repo_id, folder_path=directory, allow_patterns=[*FILES, CARD_FILE])
    except (HfHubHTTPError, HFValidationError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{directory} was not put on the Hugging Face hub as {one_line(name)}: {one_line(error)}. Log in with `hf "
            "auth login`, as a user who may write there, and be online without HF_HUB_OFFLINE"
        ) from error
    return str(place)
