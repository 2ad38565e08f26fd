"""vLLM's model classes for merged checkpoints, and what tells them before each step which tokens carry a number.

Compiled graphs and CUDA graphs replay fixed tensors, so the layer reads which tokens carry a number, and their
features, from buffers that are as long as a step can be. They are filled before every step, where vLLM still has the
whole text of each request: in the V1 runner before its model arguments are made (there is no official place: one
method is wrapped), in the V2 runner in the model state's `prepare_inputs`.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.v1.executor.multiproc_executor import WorkerProc
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ani.injection.classes import swap_class
from ani.injection.config import AniConfig
from ani.injection.locate import NumberLocator
from ani.injection.module import AniModule
from ani.models import refuse_partial
from ani.serving.checkpoint import merged_settings
from ani.serving.scheduling import Features, Ids, Scheduled, StepLocator
from ani.serving.vllm_plugin import after, before, decisions_file, gates_shut


class _GateLayer(nn.Module):
    """Mixed into the class of an earlier decoder layer: keeps its hidden states for the gate."""

    ani_read: torch.Tensor
    """In the model's dtype (tokens of a step, d_model)."""

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """vLLM's states come in two parts, not yet added."""
        self.ani_read[: len(hidden_states)] = hidden_states if residual is None else hidden_states + residual
        return super().forward(positions, hidden_states, residual, *args, **kwargs)


class _ContextAttention(nn.Module):
    """Mixed into the class of a layer's attention: keeps the mean of each value head's values for the gate.

    Attention gives this mean for a query of zeros, so each value head has one query head more, whose query is zero.
    """

    ani_read: torch.Tensor
    """In the model's dtype (tokens of a step, value_size)."""
    head_size: int
    num_kv_heads: int

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        queries = query.view(len(query), self.num_kv_heads, -1)  # of each value head side by side
        queries = nn.functional.pad(queries, (0, self.head_size)).flatten(1)
        given = super().forward(queries, key, value, *args, **kwargs).view(len(query), self.num_kv_heads, -1)
        given, mean = given[..., : -self.head_size].flatten(1), given[..., -self.head_size :].flatten(1)
        if get_tensor_model_parallel_world_size() > 1:
            mean = tensor_model_parallel_all_gather(mean.contiguous())
            copies = mean.shape[1] // self.ani_read.shape[1]  # where there are more ranks than value heads
            mean = mean.view(len(mean), -1, copies, self.head_size)[:, :, 0].flatten(1)
        self.ani_read[: len(mean)] = mean
        return given


class StepBuffers:
    """The buffers from which layer l reads which tokens of a step carry a number, and their features.

    Args:
        numbers: Which do, bool (tokens of a step, 1).
        features: φ, float32 (tokens of a step, d_fourier).
    """

    def __init__(self, numbers: torch.Tensor, features: torch.Tensor) -> None:
        self._numbers, self._features = numbers, features
        # On the CPU numpy writes them, in a fraction of the time that torch's operations take.
        self._arrays = (numbers.numpy(), features.numpy()) if numbers.is_cpu else None
        self.used = False
        """Whether any token does in the latest step."""

    def write(self, positions: Ids, features: Features) -> None:
        """Write those of the coming step: indices of the tokens that carry a number, int64 (N,), and φ, float32
        (N, d_fourier)."""
        if self._arrays is not None:
            numbers, buffer = self._arrays
            numbers.fill(False)
            numbers[positions], buffer[positions] = True, features
        elif self.used:
            self._numbers.zero_()
        self.used = len(positions) > 0
        if self.used and self._arrays is None:
            # In one copy, from pinned memory: nobody waits for it.
            packed = torch.from_numpy(np.concatenate([positions.view(np.uint8), features.reshape(-1).view(np.uint8)]))
            packed = packed.pin_memory() if self._numbers.is_cuda else packed
            sent = packed.to(self._numbers.device, non_blocking=True)
            at = sent[: positions.nbytes].view(torch.int64)
            self._numbers.index_fill_(0, at, True)
            self._features.index_copy_(0, at, sent[positions.nbytes :].view(torch.float32).view(features.shape))


class _InjectionLayer(nn.Module):
    """Mixed into the class of decoder layer l: edits what comes in, as the attached model does."""

    ani: AniModule
    ani_features: torch.Tensor
    """φ, float32 (tokens of a step, d_fourier)."""
    ani_numbers: torch.Tensor
    """Which tokens carry a number, bool (tokens of a step, 1)."""
    ani_logits: torch.Tensor | None
    """The gate's z, float32 (tokens of a step,), if decisions are to be written."""
    ani_earlier: list[torch.Tensor]
    """What the earlier layers keep, in the gate's order."""
    ani_buffers: StepBuffers
    ani_eager: bool
    """Whether this forward runs as written; a compiled one can't look at `ani_buffers.used`."""

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """vLLM's states come in two parts, not yet added; a token that isn't injected keeps both as they are."""
        if self.ani_eager and not self.ani_buffers.used:
            return super().forward(positions, hidden_states, residual, *args, **kwargs)
        count = hidden_states.shape[0]
        states = hidden_states if residual is None else hidden_states + residual
        earlier = [states[:count] for states in self.ani_earlier]
        injection = self.ani(states, self.ani_features[:count], earlier=earlier)
        if self.ani_logits is not None:
            self.ani_logits[:count] = injection.logits
        injected = (injection.alpha.unsqueeze(-1) > 0) & self.ani_numbers[:count]
        hidden_states = torch.where(injected, injection.hidden_states, hidden_states)
        if residual is not None:
            residual = torch.where(injected, torch.zeros_like(residual), residual)
        return super().forward(positions, hidden_states, residual, *args, **kwargs)


class AniForCausalLM(nn.Module):
    """Mixed into a family's vLLM class."""

    config: Any
    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        model_config = vllm_config.model_config
        settings = merged_settings(model_config.hf_config)
        assert settings is not None
        self.ani_config: AniConfig = settings
        tokenizer = AutoTokenizer.from_pretrained(
            model_config.tokenizer, revision=model_config.tokenizer_revision, trust_remote_code=False
        )
        locator = NumberLocator(tokenizer, settings)
        self.ani_steps = StepLocator(locator)
        layer = self.model.layers[settings.layer]
        swap_class(layer, _InjectionLayer)
        layer.ani = AniModule(settings, locator.encoder.width).float().fold_norms_()
        size = vllm_config.scheduler_config.max_num_batched_tokens
        device = layer.ani.projection.weight.device
        features = torch.zeros(size, locator.encoder.width, dtype=torch.float32, device=device)
        layer.register_buffer("ani_features", features, persistent=False)
        layer.register_buffer("ani_numbers", torch.zeros(size, 1, dtype=torch.bool, device=device), persistent=False)
        file = decisions_file(vllm_config) if get_tensor_model_parallel_rank() == 0 else None
        self.ani_decisions = None if file is None else Path(file)
        if self.ani_decisions is not None:
            self.ani_decisions.open("a").close()  # what can't be written is said at the start
        self.ani_step: list[Scheduled] = []
        layer.register_buffer(
            "ani_logits", None if file is None else torch.zeros(size, device=device), persistent=False
        )
        layer.ani_earlier = []
        for index, what, width in settings.gate_reads:
            read = self.model.layers[index] if what == "states" else self.model.layers[index].self_attn.attn
            swap_class(read, _GateLayer if what == "states" else _ContextAttention)
            if what == "values":  # vLLM groups layers by their number of query heads
                read.num_heads = read.impl.num_heads = read.num_heads + read.num_kv_heads
                read.impl.num_queries_per_kv = read.num_heads // read.num_kv_heads
            kept = torch.zeros(size, width, dtype=model_config.dtype, device=device)
            read.register_buffer("ani_read", kept, persistent=False)
            layer.ani_earlier.append(kept)
        layer.ani_buffers = self.ani_buffers = StepBuffers(layer.ani_numbers, layer.ani_features)
        layer.ani_eager = model_config.enforce_eager

    @staticmethod
    def get_model_state_cls() -> type["AniModelState"]:
        """What the V2 runner asks for."""
        return AniModelState

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """The module's, which layer l has here, and the family's; raises InputError unless they are all there.

        vLLM itself doesn't ask whether linear layers got theirs, and joins some of them.
        """
        module: dict[str, torch.Tensor] = {}
        names = set()

        def of_the_family() -> Iterator[tuple[str, torch.Tensor]]:  # one by one, as vLLM reads them from a file
            for name, weight in weights:
                names.add(name)
                if name.startswith("ani."):
                    module[name.removeprefix("ani.")] = weight
                else:
                    yield name, weight

        loaded: set[str] = super().load_weights(of_the_family())  # type: ignore[misc]
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(self.config)
        wanted = {*whole.state_dict()}
        refuse_partial(whole.name_or_path, wanted - names - {*whole.all_tied_weights_keys}, names - wanted)
        ani = self.model.layers[self.ani_config.layer].ani
        whole = AniModule(self.ani_config, ani.projection.in_features)
        whole.load_state_dict(module)
        ani.load_state_dict(whole.fold_norms_().state_dict())
        return loaded | {f"model.layers.{self.ani_config.layer}.ani.{name}" for name in module}

    def ani_prepare(self, step: list[Scheduled]) -> None:
        """Tell layer l which tokens of the coming step carry numbers; an empty list: none."""
        self.ani_buffers.write(*self.ani_steps.find(step))
        self.ani_step = step if self.ani_buffers.used and self.ani_decisions is not None else []

    def compute_logits(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's; it comes after each forward, outside of graphs, so that the gates' decisions can be read here."""
        if self.ani_step:
            self._write_decisions()
        return super().compute_logits(*args, **kwargs)  # type: ignore[misc]

    def _write_decisions(self) -> None:
        assert self.ani_decisions is not None
        step, self.ani_step = self.ani_step, []
        logits = self.model.layers[self.ani_config.layer].ani_logits.cpu()
        alphas, injected = logits.sigmoid().tolist(), (logits > 0).tolist()
        lines = []
        for request in step:
            decisions = [
                {"token": token, "text": text, "alpha": alphas[at], "injected": injected[at]}
                for token, text in self.ani_steps.texts(request).items()
                for at in [token - request.start + request.offset]
            ]
            if decisions:
                lines.append(json.dumps({"request": request.request_id, "decisions": decisions}) + "\n")
        with self.ani_decisions.open("a") as file:
            file.write("".join(lines))


# vLLM is left out of type checking (pyproject.toml), so that its classes are Any: hence each `misc` in this file.


class AniLlamaForCausalLM(AniForCausalLM, LlamaForCausalLM):  # type: ignore[misc]
    """Llama with ANI."""


class AniMistralForCausalLM(AniForCausalLM, MistralForCausalLM):  # type: ignore[misc]
    """Mistral with ANI."""


class AniQwen3ForCausalLM(AniForCausalLM, Qwen3ForCausalLM):  # type: ignore[misc]
    """Qwen3 with ANI."""


# --- the V1 runner ----------------------------------------------------------------------------------------------------


def _prepare_v1(runner: Any, num_reqs: int | None = None) -> None:
    model = runner.get_model()
    if not isinstance(model, AniForCausalLM):
        return
    batch = runner.input_batch
    count = batch.num_reqs if num_reqs is None else num_reqs  # 0: a dummy run
    prompts, starts = batch.num_prompt_tokens[:count], batch.num_computed_tokens_cpu[:count]
    model.ani_prepare(_step_v1(runner, prompts, starts, runner.query_start_loc.np[: count + 1]))


def _step_v1(runner: Any, prompts: Ids, starts: Ids, offsets: Ids) -> list[Scheduled]:
    batch, steps = runner.input_batch, runner.get_model().ani_steps
    rows = np.arange(len(starts))
    step = steps.scheduled(batch.req_ids[: len(starts)], batch.token_ids_cpu, rows, prompts, starts, offsets)
    return [each for each in step if not gates_shut(runner.requests[each.request_id].sampling_params)]


def _read_ahead_v1(process: Any, request: Any) -> None:
    """Called when a worker in a process of its own has sent the sampled tokens to the scheduler: while that plans the
    next step, the worker reads what the tokens carry."""
    runner = getattr(process.worker, "model_runner", None)
    if request[0] != "sample_tokens" or not isinstance(runner, GPUModelRunner) or runner.speculative_config:
        return
    model, batch = runner.get_model(), runner.input_batch
    if not isinstance(model, AniForCausalLM) or model.ani_steps.prefill_only:
        return
    count = batch.num_reqs
    lengths, prompts = batch.num_tokens_no_spec[:count], batch.num_prompt_tokens[:count]
    if (lengths > prompts).all():  # all have begun to generate
        step = _step_v1(runner, prompts, lengths - 1, np.arange(count + 1))
        model.ani_steps.read_ahead(batch.req_ids[:count], lengths - 1, step)


# The CPU's runner inherits it.
GPUModelRunner._init_model_kwargs = before(GPUModelRunner._init_model_kwargs, _prepare_v1)
WorkerProc._execute_worker_rpc = after(WorkerProc._execute_worker_rpc, _read_ahead_v1)


# --- the V2 runner ----------------------------------------------------------------------------------------------------


class AniModelState(DefaultModelState):  # type: ignore[misc]
    """Keeps each request's text, which the V2 runner holds on the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keep_texts()

    def _keep_texts(self) -> None:
        self._token_ids = np.zeros((self.max_num_reqs, self.max_model_len), dtype=np.int32)
        """By the runner's index of a request."""
        self._prompt_lengths = np.zeros(self.max_num_reqs, dtype=np.int64)
        """0: its gates are shut."""

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Take up a request, or one that goes on after a preemption."""
        super().add_request(req_index, new_req_data)
        shut = gates_shut(new_req_data.sampling_params)
        self._prompt_lengths[req_index] = 0 if shut else len(new_req_data.prompt_token_ids)
        self._token_ids[req_index, : len(new_req_data.prefill_token_ids)] = new_req_data.prefill_token_ids

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> Any:
        """Before every step. A causal policy waits for the tokens that the device has just sampled; others don't.

        What it waits for is what the forward reads: drafted tokens too, and the places of all, of which the host, which
        plans a step before the last one's drafts are judged, has upper bounds only.
        """
        steps, count = self.model.ani_steps, len(input_batch.req_ids)
        rows = input_batch.idx_mapping_np[:count]
        prompts = self._prompt_lengths[rows]
        starts, offsets = input_batch.num_computed_tokens_np, input_batch.query_start_loc_np
        if not steps.prefill_only and prompts.any():
            parts = input_batch.query_start_loc, input_batch.positions, input_batch.input_ids
            together = torch.cat(parts).cpu().split([len(part) for part in parts])  # one copy, and one wait
            offsets, places, ids = (part.numpy() for part in together)
            starts, total = places[offsets[:count]], offsets[count]
            self._token_ids[np.repeat(rows, np.diff(offsets[: count + 1])), places[:total]] = ids[:total]
        places = prompts, starts[:count], offsets[: count + 1]
        step = steps.scheduled(input_batch.req_ids, self._token_ids, rows, *places)
        self.model.ani_prepare(step)
        return super().prepare_inputs(input_batch, req_states)

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """For profiling and capturing graphs."""
        self.model.ani_prepare([])
        inputs: dict[str, Any] = super().prepare_dummy_inputs(num_reqs, num_tokens)
        return inputs
