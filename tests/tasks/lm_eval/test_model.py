"""lm-evaluation-harness's model, for one that is loaded: letters of several tokens, and the batch that it finds."""

from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from ani.injection.methods import METHODS
from ani.launch import ONE_PROCESS
from ani.tasks.lm_eval.kept import KeptAnswers
from ani.tasks.lm_eval.model import ChatModel
from tests.refusals import refused
from tests.tiny import attached, logits_of


def chat_model(batch_size: Any) -> ChatModel:
    model, tokenizer = attached("qwen3")
    model.config.max_position_embeddings = 48
    kept = KeptAnswers(None, str, 1, lambda _: None, ONE_PROCESS)
    return ChatModel(model, tokenizer, METHODS["ani"], kept, batch_size)


@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
def test_letters_of_several_tokens(batch_size: Any) -> None:
    benchmark = chat_model(batch_size)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(1, 100, (size,), generator=generator).tolist() for size in (3, 40, 17, 1, 9, 2)]
    letters = [[5], [6, 7], [8], [9, 5, 6], [5, 5], [7]]
    requests = [(None, context, letter) for context, letter in zip(drawn, letters, strict=True)]
    found = benchmark._loglikelihood_tokens(requests, disable_tqdm=True)
    for (score, _), (_, context, letter) in zip(found, requests, strict=True):
        ids = torch.tensor([context + letter])
        likely = logits_of(benchmark.model, ids).double().log_softmax(-1)[0, len(context) - 1 : -1]
        assert score == pytest.approx(sum(likely[range(len(letter)), letter].tolist()), abs=1e-4)


def test_a_token_that_pads_at_a_prompts_end_is_refused() -> None:
    refused(lambda: chat_model(1)._loglikelihood_tokens([(None, [4, 0], [5])]), "ends in the token 0")


def test_a_batch_for_writing_is_found_with_a_cache_and_the_last_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = chat_model("auto")  # as on a GPU
    tried: list[tuple[torch.Size, bool]] = []
    forward = benchmark.model.forward

    def recording(*args: torch.Tensor, **given: object) -> object:
        outputs = forward(*args, **given)
        tried.append((outputs.logits.shape[:2], outputs.past_key_values is not None))
        return outputs

    monkeypatch.setattr(benchmark.model, "forward", recording)
    monkeypatch.setattr(benchmark, "max_batch_size", 2)
    request: Any = Instance("generate_until", {}, ("a b", {"until": ["\n"], "max_gen_toks": 2}), 0)
    written = benchmark.generate_until([request])
    assert len(written) == 1 and tried[0] == (torch.Size([2, 1]), True)
