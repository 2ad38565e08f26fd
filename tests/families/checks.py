"""The checks of a family: ANI changes what it should and nothing else, and all ways of running the model agree."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import ani
from ani.errors import InputError, one_line
from ani.injection.methods import Policy
from ani.injection.model_parts import ani_module, is_attached, last_decision, number_locator
from ani.models import auto_class
from tests.families.models import all_families, tiny
from tests.tiny import randomise
from tests.tokenizers import gemma_like

LAYER = 2
TOLERANCE = 1e-4
"""Largest difference between logits that count as equal, as a share of the largest logit."""
TEXT = "Room 505 holds 12.5 people, 1234567 + 89 = 1234656. Order 90417 costs $3.50, paid in 2019 by 8."
OTHER = "The bill came to 23 dollars; 7 of"
WORDS = "The quick brown fox jumps over the lazy dog, and nobody counts how often."
STEPS = 8

Ids = torch.Tensor


def encode(text: str) -> Ids:
    return torch.as_tensor(gemma_like()(text, return_tensors="pt")["input_ids"])


IDS, SHORT = encode(TEXT), encode(OTHER)
CUT = encode(TEXT[: TEXT.index("567")]).shape[1]
"""A place inside 1234567."""


@torch.no_grad()
def logits_of(model: PreTrainedModel, ids: Ids, **given: Any) -> torch.Tensor:
    return torch.as_tensor(model(input_ids=ids, **given).logits)


def deviation(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, in units of the largest value; infinite with NaN."""
    largest = float((actual - expected).abs().max() / expected.abs().max())
    return largest if largest == largest else float("inf")


# --- ways of running a model, each compared with one forward pass over the whole text ---------------------------------


def numbers_of(model: PreTrainedModel, ids: Ids) -> Any:
    """The numbers that a pass outside `generate` needs: those of the prompt, unless the policy is causal."""
    return None if not is_attached(model) or number_locator(model).causal else number_locator(model).batch(ids.tolist())


def whole(model: PreTrainedModel, ids: Ids, prompt: int | None = None) -> torch.Tensor:
    """Logits of one pass; under a policy that is not causal only the prompt's numbers are injected."""
    numbers = numbers_of(model, ids[:, :prompt])
    return logits_of(model, ids, use_cache=False, **({} if numbers is None else {"numbers": numbers}))


def in_pieces(model: PreTrainedModel, ends: Sequence[int]) -> float:
    """The text in cached pieces."""
    ids, cache, found = IDS[:, : ends[-1]], {}, []
    numbers = numbers_of(model, ids)
    for start, stop in pairwise([0, *ends]):
        given = {} if numbers is None else {"numbers": numbers.between(start, stop)}
        with torch.no_grad():
            outputs = model(input_ids=ids[:, start:stop], use_cache=True, **cache, **given)
        found.append(outputs.logits)
        cache = {name: outputs[name] for name in ("past_key_values", "cache_params") if outputs.get(name) is not None}
        if not cache:
            raise NotImplementedError("no cache")
    return deviation(torch.cat(found, dim=1), whole(model, ids))


class _Forced:
    """Makes `generate` write a text."""

    def __init__(self, ids: Ids, start: int) -> None:
        self.ids, self.start = ids, start

    def __call__(self, ids: Ids, scores: torch.Tensor) -> torch.Tensor:
        token = self.ids[0, ids.shape[1] - self.start]
        return torch.full_like(scores, -torch.inf).index_fill_(1, token[None], 0.0)


def generated(model: PreTrainedModel, ids: Ids, answer: Ids, mask: torch.Tensor | None = None, **more: Any) -> Any:
    """The logits from which `generate` writes an answer."""
    given = {"do_sample": False, "pad_token_id": gemma_like().pad_token_id, "disable_compile": True, **more}
    given |= {"max_new_tokens": answer.shape[1], "min_new_tokens": answer.shape[1]}
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask,
        logits_processor=[_Forced(answer, ids.shape[1])],
        output_logits=True,
        return_dict_in_generate=True,
        **given,
    )
    return torch.stack(found.logits, dim=1)


def generation(model: PreTrainedModel, **more: Any) -> float:
    """`generate` from a prompt that ends inside a number."""
    expected = whole(model, IDS[:, : CUT + STEPS], CUT)[:, CUT - 1 : -1]
    return deviation(generated(model, IDS[:, :CUT], IDS[:, CUT : CUT + STEPS], **more), expected)


def left_padding(model: PreTrainedModel) -> float:
    """`generate` for a padded batch, and for each row alone."""
    answer, missing = IDS[:, CUT : CUT + 4], CUT - SHORT.shape[1]
    padding = torch.full((1, missing), gemma_like().pad_token_id)
    batch = torch.cat([IDS[:, :CUT], torch.cat([padding, SHORT], dim=1)])
    mask = torch.ones_like(batch)
    mask[1, :missing] = 0
    alone = torch.cat([generated(model, ids, answer) for ids in (IDS[:, :CUT], SHORT)])
    return deviation(generated(model, batch, answer, mask), alone)


def beams(model: PreTrainedModel) -> float:
    """The scores of beams, and the log-probabilities of what they wrote."""
    allowed = sorted(set(gemma_like()("0123456789 ., ", add_special_tokens=False)["input_ids"]))

    def confined(_: Ids, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_copy_(1, torch.tensor(allowed), scores[:, allowed])

    found = model.generate(
        IDS[:, :CUT],
        attention_mask=torch.ones_like(IDS[:, :CUT]),
        logits_processor=[confined],
        **{"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0, "do_sample": False},
        **{"max_new_tokens": STEPS, "min_new_tokens": STEPS, "pad_token_id": gemma_like().pad_token_id},
        **{"output_scores": True, "return_dict_in_generate": True, "disable_compile": True},
    )
    likely = torch.cat([whole(model, each[None], CUT) for each in found.sequences]).log_softmax(dim=-1)
    written = found.sequences[:, CUT:, None]
    return deviation(found.sequences_scores, likely[:, CUT - 1 : -1].gather(2, written).squeeze(2).sum(dim=1))


WAYS: dict[str, Callable[[PreTrainedModel], float]] = {
    "two pieces": lambda model: in_pieces(model, [CUT, IDS.shape[1]]),
    "single tokens": lambda model: in_pieces(model, range(CUT, CUT + STEPS)),
    "generation": generation,
    "generation without cache": lambda model: generation(model, use_cache=False),
    "left padding": left_padding,
    "beams": beams,
}
"""The deviation of each way of running a model."""


# --- what a model keeps -----------------------------------------------------------------------------------------------


def gradients(model: PreTrainedModel, checkpointing: bool) -> list[torch.Tensor | None]:
    """Gradients of the trained parameters for the text, whose first ten tokens are the prompt."""
    labels = IDS.clone()
    labels[:, :10] = -100
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        model.zero_grad()
        torch.manual_seed(0)
        model(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=labels, use_cache=False).loss.backward()
        trained = ani_module(model) if is_attached(model) else model.get_input_embeddings()
        return [None if each.grad is None else each.grad.clone() for each in trained.parameters()]
    finally:
        if checkpointing:
            model.gradient_checkpointing_disable()
        model.zero_grad()
        model.eval()


def training(model: PreTrainedModel) -> float:
    """Gradients, and their deviation with gradient checkpointing."""
    plain = gradients(model, False)
    if any(each is None or not each.isfinite().all() for each in plain) or not any(each.any() for each in plain):
        raise ArithmeticError("gradients that are missing, infinite or zero")
    if not model.supports_gradient_checkpointing:
        return 0.0
    return max(deviation(a, b) for a, b in zip(gradients(model, True), plain, strict=True) if b.any())


def reloaded(model: PreTrainedModel) -> PreTrainedModel:
    """The model after it was saved and loaded, as users have it; raises if it isn't the same."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(folder)
    if (amount := deviation(logits_of(again, IDS), logits_of(model, IDS))) > TOLERANCE:
        raise ValueError(f"deviates by {amount:.2g}")
    return cast(PreTrainedModel, again)


def round_trip(model: PreTrainedModel, base: torch.Tensor) -> Iterator[tuple[str, float]]:
    """Yield the deviations after the adapter was saved, taken off, loaded, and merged; the model ends attached."""
    expected, tokenizer = logits_of(model, IDS), gemma_like()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ani.save_adapter(model, folder / "adapter")
        ani.detach(model)
        yield "detach", float("inf") if not torch.equal(logits_of(model, IDS), base) else 0.0
        model.save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
        ani.load_adapter(model, tokenizer, folder / "adapter")
        yield "load", float("inf") if not torch.equal(logits_of(model, IDS), expected) else 0.0
        ani.merge(folder / "adapter", folder / "merged", model=str(folder / "base"))
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged")
        yield "merge", deviation(logits_of(merged, IDS), expected)


def outside(
    model: PreTrainedModel, base: torch.Tensor, base_words: torch.Tensor, is_causal: bool
) -> Iterator[tuple[str, float]]:
    """Yield infinity for what injection changes and should not, by one bit: a text without numbers, a text whose gates
    are closed, and in a causal model logits before the first injection; and if it changes nothing."""
    words, logits = logits_of(model, encode(WORDS)), logits_of(model, IDS)
    decision = last_decision(model)
    assert decision is not None
    first = int(decision.numbers.positions[decision.injection.alpha > 0].min())
    with ani.forced_gates(model, False):
        closed = logits_of(model, IDS)
    yield "no numbers", 0.0 if torch.equal(words, base_words) else float("inf")
    yield "closed gates", 0.0 if torch.equal(closed, base) else float("inf")
    if is_causal:
        yield "before the first number", deviation(logits[:, :first], base[:, :first])
    yield "effect", 0.0 if deviation(logits[:, first:], base[:, first:]) > TOLERANCE else float("inf")


# --- one family -------------------------------------------------------------------------------------------------------


RESULTS = ["wrong", "base", "refused", "parity"]
"""From worst to best."""


class Result(NamedTuple):
    """The result of a family's checks."""

    family: str
    class_name: str
    result: str
    """`parity`, `refused`, `base` (the tiny base model can't be built or read a text), or `wrong`."""
    reason: str = ""
    """The checks that failed, the refusal, or the error of the base model; for `parity`, the checks that the base model
    itself fails, which therefore were not made."""


def _tried(call: Callable[[], float], tolerance: float = TOLERANCE) -> str:
    """Describe how a check failed: its deviation, or its error; empty if it passed."""
    try:
        found = call()
    except Exception as error:  # a family's code may raise anything: that is a result of the check
        return _words(error)
    return "" if found <= tolerance else f"deviates by {found:.2g}"


def examine(family: str, policies: Sequence[Policy] = ("after", "terminal")) -> Result:
    """Build a family's tiny model, and carry out all checks that the base itself passes."""
    class_name = all_families()[family]
    try:
        model = tiny(family)
    except Exception as error:
        return Result(family, class_name, "base", _words(error))
    own: dict[str, str] = {}
    try:
        model = reloaded(model)
    except Exception as error:
        own["saving"] = _words(error)
    base, base_words = logits_of(model, IDS), logits_of(model, encode(WORDS))
    if not torch.equal(logits_of(model, IDS), base):
        own["determinism"] = "the same text gives other logits each time"
    if deviation(logits_of(model, IDS[:, :-1]), base[:, :-1]) > TOLERANCE:
        own["causal attention"] = "later tokens change earlier logits"
    ways = {name: partial(way, model) for name, way in {**WAYS, "training": training}.items()}
    own |= {name: problem for name, way in ways.items() if (problem := _tried(way))}
    wrong: list[str] = []
    refused: list[str] = []
    for policy in policies:
        classes = [type(module) for module in model.modules()]
        try:
            ani.attach(model, gemma_like(), ani.AniConfig(layer=LAYER, policy=policy, gate_hidden_size=16))
        except InputError as error:
            refused.append(str(error).split(": ", 1)[-1].rsplit("; choose another", 1)[0])
            same = "determinism" in own or torch.equal(logits_of(model, IDS), base)
            if not same or classes != [type(module) for module in model.modules()]:
                wrong.append(f"{policy}: a refused model is changed")
            continue
        except Exception as error:
            wrong.append(f"{policy}: attach raises {_words(error)}")
            break
        randomise(model, gemma_like(), TEXT)
        found = {name: _tried(way) for name, way in ways.items() if name not in own}
        groups = {
            "identity": outside(model, base, base_words, "causal attention" not in own),
            "round trip": iter(()) if "saving" in own else round_trip(model, base),
        }
        for group, steps in groups.items():
            try:
                for name, amount in steps:
                    found[name] = "" if amount <= TOLERANCE else f"deviates by {amount:.2g}"
            except Exception as error:
                found[group] = _words(error)
        wrong += [f"{policy}, {name}: {problem}" for name, problem in found.items() if problem]
        if is_attached(model):
            ani.detach(model)
        if not torch.equal(logits_of(model, IDS), base):
            wrong.append(f"{policy}: detach leaves another model")
    if wrong:
        return Result(family, class_name, "wrong", "; ".join(wrong))
    if refused:
        return Result(family, class_name, "refused", refused[0])
    return Result(family, class_name, "parity", f"the base itself fails: {', '.join(own)}" if own else "")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error, 160)}"
