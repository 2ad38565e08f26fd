"""vLLM's model classes for merged checkpoints: before each step they learn which tokens carry a number.

The class `Ani<X>` is made on demand for any class `<X>` of transformers. It is vLLM's own class `<X>` if that says what
the hidden states between its layers are, as it must for the speculative decoding EAGLE-3 (the sum of the two parts that
a layer receives), or its layers receive one part. Elsewhere the parts may mean anything, so there it is transformers'
own model code in vLLM (the Transformers backend), whose layers receive `hidden_states[l]`. In any case each worker
compares its states with those that `ani merge` stored, before it serves.

Compiled graphs and CUDA graphs replay fixed tensors. Therefore layer l reads the numbers and their features from
buffers that are as long as a step can be. The buffers are filled before every step, where vLLM still has the whole text
of each request: the V2 runner calls the model state's `prepare_inputs`; the V1 runner has no official place, so one of
its methods is wrapped.
"""

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.interfaces import supports_eagle3, supports_multimodal
from vllm.model_executor.models.transformers import TransformersMoEForCausalLM
from vllm.model_executor.models.transformers.base import Base
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from ani.injection.classes import swap_class
from ani.injection.locate import NumberLocator
from ani.injection.module import AniModule
from ani.numbers.text import plain_text
from ani.serving.checkpoint import merged_calibration, merged_settings
from ani.serving.engine_step import EngineStep, Features, Ids, StepLocator
from ani.serving.plugin import NUMBERS, before, gates_closed, prompt_numbers, tokenizer_of
from ani.serving.worker_request import run_request

# vLLM is left out of type checking (pyproject.toml), so its classes are Any: hence each `misc` in this file.


class StepModel(nn.Module):
    """Mixed into a family's vLLM class: a model that reads each step's requests before the forward pass."""

    reads_answers: bool
    """True if the model reads generated tokens too, so that it has to wait for them."""

    def before_step(self, step: EngineStep | None) -> None:
        """Read the coming step; None: a step of no request, for profiling or capturing graphs."""
        raise NotImplementedError

    @staticmethod
    def get_model_state_cls() -> type["StepState"]:
        """Return the class of the model's state for the V2 runner."""
        return StepState


class _TransformersBackend(TransformersMoEForCausalLM):  # type: ignore[misc]
    """transformers' own model code in vLLM, with experts or without."""

    family: str
    """Name of transformers' class."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        config = vllm_config.model_config.hf_config
        config.__class__ = getattr(config, "_ani_family", type(config))  # by which transformers finds its model
        config.architectures = [self.family]
        super().__init__(vllm_config=vllm_config, prefix=prefix)

    def recursive_replace(self) -> None:
        """Replace transformers' layers by vLLM's."""
        super().recursive_replace() if self.model_config.is_moe else Base.recursive_replace(self)


def model_class(mixin: type[StepModel], name: str, prefix: str) -> type[StepModel]:
    """Return the class `name`: `mixin` and the class that serves the family whose name follows `prefix`. Raises
    AttributeError for a name without it."""
    if not name.startswith(prefix):
        raise AttributeError(name)
    family = name.removeprefix(prefix)
    served = ModelRegistry.models[family].load_model_cls() if family in ModelRegistry.models else Base
    if issubclass(served, Base) or not (supports_eagle3(served) or _has_one_part(served)):
        served = _TransformersBackend
    return type(name, (mixin, served), {"__module__": mixin.__module__, "family": family})


def _has_one_part(served: Any) -> bool:
    """True if no module beside a model class of vLLM receives hidden states in two parts."""
    beside = [part for part in vars(sys.modules[served.__module__]).values() if inspect.isclass(part)]
    forwards = [part.forward for part in beside if part.__module__ == served.__module__ and hasattr(part, "forward")]
    return not any("residual" in inspect.signature(forward).parameters for forward in forwards)


def decoder_layers(model: Any, config: ModelConfig) -> Any:
    """Return the decoder layers of a model of vLLM, in order."""
    parts = (model.get_language_model() if supports_multimodal(model) else model).modules()
    count = config.hf_text_config.num_hidden_layers
    return next(part for part in parts if isinstance(part, nn.ModuleList) and len(part) == count)


def __getattr__(name: str) -> type[StepModel]:
    return model_class(AniForCausalLM, name, "Ani")


# --- the gate's inputs ------------------------------------------------------------------------------------------------


class _ReadLayer(nn.Module):
    """Mixed into the class of a decoder layer whose incoming hidden states are read."""

    argument_names: tuple[str, ...]
    """Arguments of the layer's own forward, in order."""

    def received(self, args: Any, kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the incoming hidden states, (tokens, d_model), and the arguments of a call by name."""
        named = {**dict(zip(self.argument_names, args, strict=False)), **kwargs}
        states, residual = named["hidden_states"], named.get("residual")
        # Many of vLLM's layers get two parts that are not added yet; those of transformers have a batch dimension.
        return (states if residual is None else states + residual).flatten(0, -2), named


def _read_layer(layer: Any, mixin: type[_ReadLayer]) -> None:
    layer.argument_names = tuple(inspect.signature(layer.forward).parameters)
    swap_class(layer, mixin)


class _KeepsStates(_ReadLayer):
    """Keeps the hidden states that come in, for a gate."""

    kept_states: torch.Tensor
    """Hidden states, (tokens of a step, d_model), in the model's dtype."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Keep the states, then call the layer."""
        states, named = self.received(args, kwargs)
        self.kept_states[: len(states)] = states
        return super().forward(**named)


class _KeepsMeanValues(nn.Module):
    """Mixed into the class of a layer's attention: keeps the mean of the text's values for a gate.

    Attention returns this mean for a query of zeros. Therefore each value head gets one more query head, whose query is
    zero. The mean includes tokens of earlier steps and of cached prefixes, because attention reads their values.
    """

    kept_values: torch.Tensor
    """Mean values, (tokens of a step, all value heads together), in the model's dtype."""
    head_size: int
    num_kv_heads: int

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        queries = query.view(len(query), self.num_kv_heads, -1)  # the query heads of each value head side by side
        queries = nn.functional.pad(queries, (0, self.head_size)).flatten(1)
        given = super().forward(queries, key, value, *args, **kwargs).view(len(query), self.num_kv_heads, -1)
        given, mean = given[..., : -self.head_size].flatten(1), given[..., -self.head_size :].flatten(1)
        if get_tensor_model_parallel_world_size() > 1:
            mean = tensor_model_parallel_all_gather(mean.contiguous())
            copies = mean.shape[1] // self.kept_values.shape[1]  # if there are more ranks than value heads
            mean = mean.view(len(mean), -1, copies, self.head_size)[:, :, 0].flatten(1)
        self.kept_values[: len(mean)] = mean
        return given


def keep_gate_inputs(
    layers: Sequence[Any], reads: Iterable[tuple[int, str, int]], config: VllmConfig
) -> list[torch.Tensor]:
    """Make decoder layers keep what a gate reads of them in each step. `reads` names layer, "states" or "values" (the
    mean of its attention's), and width of each input. Return the buffers, in the same order, each in the model's dtype,
    (tokens of a step, width)."""
    kept = []
    for index, kind, width in reads:
        layer = layers[index]
        buffer = torch.zeros(
            config.scheduler_config.max_num_batched_tokens,
            width,
            dtype=config.model_config.dtype,
            device=_device(layer),
        )
        if kind == "states":
            _read_layer(layer, _KeepsStates)
            layer.register_buffer("kept_states", buffer, persistent=False)
        else:
            attention = next(part for part in layer.modules() if isinstance(part, Attention))
            if attention.has_sink or attention.impl.alibi_slopes is not None:
                raise ValueError(
                    f"the mean of layer {index}'s values can't be read beside sinks or ALiBi; use transformers"
                )
            swap_class(attention, _KeepsMeanValues)
            attention.num_heads = attention.impl.num_heads = attention.num_heads + attention.num_kv_heads
            # vLLM groups layers by their number of query heads.
            attention.impl.num_queries_per_kv = attention.num_heads // attention.num_kv_heads
            attention.register_buffer("kept_values", buffer, persistent=False)
        kept.append(buffer)
    return kept


def _device(layer: nn.Module) -> torch.device:
    return next(layer.parameters()).device


# --- the model --------------------------------------------------------------------------------------------------------


class _InjectionLayer(_ReadLayer):
    """Layer l: edits the hidden states that come in, as the attached model does."""

    ani: AniModule
    ani_features: torch.Tensor
    """φ, float32 (tokens of a step, d_fourier)."""
    ani_numbers: torch.Tensor
    """True for tokens that carry a number, bool (tokens of a step, 1)."""
    ani_earlier: list[torch.Tensor]
    """The gate's inputs of earlier layers, in its order."""
    ani_eager: bool
    """True if this forward runs as written. A compiled one can't look at `ani_used`."""
    ani_used = False
    """True if a token of the coming step carries a number."""
    ani_sampled: torch.Tensor
    """Tokens of a step whose incoming states are kept in `ani_samples`, for `check_start`; 0 in all later steps."""
    ani_samples: torch.Tensor
    """Hidden states, (samples, d_model), in the model's dtype."""

    def write(self, positions: Ids, features: Features) -> None:
        """Write the numbers of the coming step: indices of their tokens, int64 (N,), and φ, float32 (N, d_fourier)."""
        if self.ani_used:
            self.ani_numbers.zero_()
        self.ani_used = len(positions) > 0
        if self.ani_used:
            device = self.ani_numbers.device
            at = _on_device(positions, device)
            self.ani_numbers.index_fill_(0, at, True)
            self.ani_features.index_copy_(0, at, _on_device(features, device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Inject, then call the layer. A token without injection keeps its states' two parts as they are."""
        if self.ani_eager and not self.ani_used:
            return super().forward(*args, **kwargs)
        states, named = self.received(args, kwargs)
        self.ani_samples.copy_(states[self.ani_sampled])
        count = states.shape[0]
        earlier = [kept[:count] for kept in self.ani_earlier]
        injection = self.ani(states, self.ani_features[:count], earlier=earlier)
        injected = (injection.alpha.unsqueeze(-1) > 0) & self.ani_numbers[:count]
        hidden_states, residual = named["hidden_states"], named.get("residual")
        updated = torch.where(injected, injection.hidden_states, hidden_states.flatten(0, -2))
        named["hidden_states"] = updated.view_as(hidden_states)
        if residual is not None:
            named["residual"] = torch.where(injected, torch.zeros_like(residual), residual)
        return super().forward(**named)


def _on_device(array: Ids | Features, device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class AniForCausalLM(StepModel):
    """Mixed into a family's vLLM class: the family with ANI."""

    config: Any
    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        model_config = vllm_config.model_config
        settings = merged_settings(model_config.hf_config)
        assert settings is not None
        self.ani_config = settings
        self.ani_tokenizer = tokenizer_of(model_config)
        locator = NumberLocator(self.ani_tokenizer, settings)
        self.ani_steps = StepLocator(locator)
        self.reads_answers = self.ani_steps.reads_answers
        layers = decoder_layers(self, model_config)
        layer = layers[settings.layer]
        device = _device(layer)
        _read_layer(layer, _InjectionLayer)
        layer.ani = AniModule(settings, locator.encoder.width).float().to(device)
        size = vllm_config.scheduler_config.max_num_batched_tokens
        self.ani_calibration = merged_calibration(model_config.hf_config)
        samples = len(self.ani_calibration.states)
        buffers = {
            "features": torch.zeros(size, locator.encoder.width, dtype=torch.float32, device=device),
            "numbers": torch.zeros(size, 1, dtype=torch.bool, device=device),
            "sampled": torch.zeros(samples, dtype=torch.int64, device=device),
            "samples": torch.zeros(samples, settings.hidden_size or 0, dtype=model_config.dtype, device=device),
        }
        for name, buffer in buffers.items():
            layer.register_buffer(f"ani_{name}", buffer, persistent=False)
        layer.ani_earlier = keep_gate_inputs(layers, settings.gate_reads, vllm_config)
        layer.ani_eager = model_config.enforce_eager
        self.ani_layer = [layer]  # not as a second child

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the weights of the family, and the module's into layer l."""
        module: dict[str, torch.Tensor] = {}

        def family_weights() -> Iterator[tuple[str, torch.Tensor]]:  # one by one, as vLLM reads them from a file
            for name, weight in weights:
                if name.startswith("ani."):
                    module[name.removeprefix("ani.")] = weight
                else:
                    yield name, weight

        loaded: set[str] = super().load_weights(family_weights())  # type: ignore[misc]
        self.ani_layer[0].ani.load_state_dict(module)
        place = next(name for name, part in self.named_modules() if part is self.ani_layer[0].ani)
        return loaded | {f"{place}.{name}" for name in module}

    def before_step(self, step: EngineStep | None) -> None:
        """Give layer l the numbers of the coming step."""
        self.ani_layer[0].write(*self.ani_steps.find(step))

    def check_start(self, worker: Worker) -> None:
        """Compute the checkpoint's calibration text as a request; raises ValueError if the states that layer l receives
        at its numbers are not those of transformers."""
        layer = self.ani_layer[0]
        ids = self.ani_tokenizer(self.ani_calibration.text)["input_ids"]
        config = worker.vllm_config
        ids = ids[: min(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len - 1)]
        numbers = [(token, plain_text(number.text)) for token, number in self.ani_steps.locator.find(ids).items()]
        positions = np.array([token for token, _ in numbers[: len(layer.ani_sampled)]])
        layer.ani_sampled[: len(positions)] = _on_device(positions, layer.ani_sampled.device)
        layer.ani_samples.zero_()
        run_request(worker, ids, {NUMBERS: numbers})
        layer.ani_sampled.zero_()
        difference = self.ani_calibration.difference(layer.ani_samples[: len(positions)])
        if not difference <= self.ani_calibration.tolerance:
            raise ValueError(
                f"the hidden states of layer {self.ani_config.layer} differ by {difference:.2g} from those that ani "
                f"merge stored, more than {self.ani_calibration.tolerance:.2g}: this vLLM computes {self.family} in "
                "another way than transformers, or the weights were changed; use transformers, or merge again"
            )


def _checking(warm_up: Any) -> Any:
    """Return a worker's `compile_or_warm_up_model`, the last step of its start, followed by the check."""

    @functools.wraps(warm_up)
    def both(worker: Any) -> Any:
        times = warm_up(worker)
        model = worker.get_model()
        if isinstance(model, AniForCausalLM):
            model.check_start(worker)
        return times

    return both


for _worker in (Worker, CPUWorker):
    _worker.compile_or_warm_up_model = _checking(_worker.compile_or_warm_up_model)


# --- the V1 runner ----------------------------------------------------------------------------------------------------


def _before_step_v1(runner: Any, num_reqs: int | None = None) -> None:
    model = runner.get_model()
    if not isinstance(model, StepModel):
        return
    batch = runner.input_batch
    count = batch.num_reqs if num_reqs is None else num_reqs  # 0: a step of no request
    names = batch.req_ids[:count]
    step = EngineStep(
        names,
        batch.token_ids_cpu,
        np.arange(count),
        batch.num_prompt_tokens[:count],
        batch.num_computed_tokens_cpu[:count],
        runner.query_start_loc.np[: count + 1],
        lambda i: gates_closed(runner.requests[names[i]].sampling_params),
        lambda i: prompt_numbers(runner.requests[names[i]].sampling_params),
    )
    model.before_step(step if count else None)


GPUModelRunner._init_model_kwargs = before(GPUModelRunner._init_model_kwargs, _before_step_v1)  # also the CPU runner's


# --- the V2 runner ----------------------------------------------------------------------------------------------------


class StepState(DefaultModelState):  # type: ignore[misc]
    """Keeps each request's text, which the V2 runner keeps on the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._make_tables()

    def _make_tables(self) -> None:
        """Tables by the runner's index of a request."""
        self._token_ids = np.zeros((self.max_num_reqs, self.max_model_len), dtype=np.int32)
        self._prompt_lengths = np.zeros(self.max_num_reqs, dtype=np.int64)
        self._closed = np.zeros(self.max_num_reqs, dtype=bool)
        self._numbers: list[Sequence[tuple[int, str]]] = [()] * self.max_num_reqs

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Add a request, or one that goes on after a preemption."""
        super().add_request(req_index, new_req_data)
        self._closed[req_index] = gates_closed(new_req_data.sampling_params)
        self._numbers[req_index] = prompt_numbers(new_req_data.sampling_params)
        self._prompt_lengths[req_index] = len(new_req_data.prompt_token_ids)
        self._token_ids[req_index, : len(new_req_data.prefill_token_ids)] = new_req_data.prefill_token_ids

    def prepare_inputs(self, input_batch: Any, req_states: Any) -> Any:
        """Prepare a step. A model that reads answers waits for the tokens that the device has just sampled.

        The device also has drafted tokens and the exact places of all tokens. The host plans a step before the last
        step's drafts are judged, so it only has upper bounds of the places.
        """
        count = len(input_batch.req_ids)
        rows = input_batch.idx_mapping_np[:count]
        starts, offsets = input_batch.num_computed_tokens_np, input_batch.query_start_loc_np
        if self.model.reads_answers and not self._closed[rows].all():
            parts = input_batch.query_start_loc, input_batch.positions, input_batch.input_ids
            together = torch.cat(parts).cpu().split([len(part) for part in parts])  # one copy, and one wait
            offsets, places, ids = (part.numpy() for part in together)
            starts, total = places[offsets[:count]], offsets[count]
            self._token_ids[np.repeat(rows, np.diff(offsets[: count + 1])), places[:total]] = ids[:total]
        step = EngineStep(
            input_batch.req_ids,
            self._token_ids,
            rows,
            self._prompt_lengths[rows],
            starts[:count],
            offsets[: count + 1],
            lambda i: bool(self._closed[rows[i]]),
            lambda i: self._numbers[rows[i]],
        )
        self.model.before_step(step)
        return super().prepare_inputs(input_batch, req_states)

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """Prepare a step of no request."""
        self.model.before_step(None)
        inputs: dict[str, Any] = super().prepare_dummy_inputs(num_reqs, num_tokens)
        return inputs
