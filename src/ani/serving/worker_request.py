"""A request that a worker of vLLM computes by itself, at its start."""

from typing import Any

from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.worker.gpu.warmup import _reserved_block_count


def run_request(worker: Any, ids: list[int], extra_args: dict[str, Any]) -> None:
    """Compute a prompt as a request of its own, with these `SamplingParams.extra_args`, before there are others."""
    runner, name = worker.model_runner, "ani-calibration"
    sampling = SamplingParams(temperature=0, max_tokens=1, extra_args=extra_args)
    limits = {"max_model_len": runner.max_model_len, "max_encoder_len": 0}
    limits["num_lookahead_tokens"] = worker.vllm_config.num_lookahead_tokens
    blocks, free = [], 1  # vLLM never uses block 0
    for group in runner.kv_cache_config.kv_cache_groups:
        count = _reserved_block_count(len(ids), group.kv_cache_spec, **limits)
        blocks.append(list(range(free, free + count)))
        free += count
    request = NewRequestData(name, ids, [], sampling, None, tuple(blocks), 0, None, prefill_token_ids=ids)
    begin, end = SchedulerOutput.make_empty(), SchedulerOutput.make_empty()
    begin.scheduled_new_reqs, begin.num_scheduled_tokens = [request], {name: len(ids)}
    begin.total_num_scheduled_tokens, begin.num_common_prefix_blocks = len(ids), [0] * len(blocks)
    end.finished_req_ids = {name}
    # A connector of stored states would wait for a scheduler. The V2 runner has an object for it.
    connector, agent = getattr(runner, "kv_connector", None), kv_transfer_state._KV_CONNECTOR_AGENT
    if connector is not None:
        connector.set_disabled(True)
    kv_transfer_state._KV_CONNECTOR_AGENT = None
    try:
        worker.execute_model(begin)
        worker.sample_tokens(None)
        worker.execute_model(end)
    finally:
        if connector is not None:
            connector.set_disabled(False)
        kv_transfer_state._KV_CONNECTOR_AGENT = agent
