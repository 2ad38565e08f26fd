"""Probing: hidden states and probes of every layer over plain forward passes over the same sentences.

The plain pass is the model's own, with its head, on the same batches: what anybody pays who only runs the sentences.
Then the probes alone over scikit-learn's, one regression after another, and the seconds that a layer takes.

    python benchmarks/probing.py            # of SmolLM2
    python benchmarks/probing.py --full     # made states, 20,000 to learn from and 4,000 to ask about, of width 4,096
"""

import argparse
import time
from collections.abc import Callable
from decimal import Decimal

import _by_scikit_learn
import _paired
import torch
from rich.table import Table

from ani.data.contrastive import contrastive_sentences
from ani.models import load_model, load_tokenizer
from ani.probing.curve import ProbedNumber
from ani.probing.probes import probe_layers, probing_plan
from ani.probing.states import BATCH_TOKENS, NumberStates, number_states


def batches(texts: list[str]) -> list[dict[str, torch.Tensor]]:
    """The texts as token ids with a mask, of similar lengths, as `number_states` has them."""
    tokenizer = load_tokenizer("smollm2")
    rows = sorted(tokenizer(texts)["input_ids"], key=len)
    found: list[list[list[int]]] = [[]]
    for row in rows:
        if found[-1] and (len(found[-1]) + 1) * len(row) > BATCH_TOKENS:
            found.append([])
        found[-1].append(row)
    return [dict(tokenizer.pad({"input_ids": batch}, padding_side="right", return_tensors="pt")) for batch in found]


def main() -> None:
    """Print the ratio of the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    if arguments.full:
        known, asked = made_states(20_000, "known"), made_states(4_000, "asked")
        rows = _paired.table("Probes of 20,000 + 4,000 made states × 4,096, a layer")
        fits(rows, known, asked, arguments.repeats)
        _paired.show(rows)
        return
    model, tokenizer = load_model("smollm2"), load_tokenizer("smollm2")
    sentences = contrastive_sentences(arguments.sentences)
    passes = batches([sentence.text for sentence in sentences])

    @torch.inference_mode()
    def plain() -> None:
        for batch in passes:
            model(**batch, use_cache=False)

    read: list[NumberStates] = []

    def probed() -> None:
        read[:] = [number_states(model, tokenizer, sentences)]
        probe_layers(read[0])

    found = _paired.ratios(probed, plain, arguments.repeats, warmup=0)
    tokens = sum(int(batch["attention_mask"].sum()) for batch in passes)
    (layers, numbers, width) = read[0].states.shape
    rows = _paired.table(
        f"Probing SmolLM2-135M ({model.dtype}): {len(sentences)} sentences, {tokens} tokens in {len(passes)} batches; "
        f"{layers} layers × {numbers} numbers × {width}"
    )
    _paired.add(rows, "states and probes / plain passes", found, "≤ 1.5")
    fits(rows, read[0], None, arguments.repeats)
    _paired.show(rows)


def fits(rows: Table, known: NumberStates, asked: NumberStates | None, repeats: int) -> None:
    """Add the probes' times, of the middle layer; on the card if there is one."""
    middle = len(known.layers) // 2
    first, second = (
        each and NumberStates(each.numbers, (middle,), each.states[middle : middle + 1]) for each in (known, asked)
    )
    assert first is not None
    plan = probing_plan(first.numbers, (second or first).numbers, second is not None, 0)
    times: dict[str, list[float]] = {"ours": [], "scikit-learn's": []}

    def timed(name: str, fit: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            start = time.perf_counter()
            fit()
            times[name].append(time.perf_counter() - start)

        return run

    def by_scikit_learn() -> object:
        return _by_scikit_learn.probe_layer(
            *(each.states[0].float().numpy() for each in (first, second or first)), plan
        )

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = timed("ours", lambda: probe_layers(first, second, device=device))
    ratios = _paired.ratios(ours, timed("scikit-learn's", by_scikit_learn), repeats, warmup=0)
    _paired.add(rows, f"probes ({device}, {torch.get_num_threads()} threads) / scikit-learn's", ratios, "< 1")
    for name, found in times.items():
        _paired.add(rows, f"seconds a layer, {name}", found)


def made_states(count: int, kind: str, width: int = 4096) -> NumberStates:
    """A layer of states of very different sizes, in which roles can be read mostly."""
    generator = torch.Generator().manual_seed(count)
    values, templates = (torch.randint(most, (count,), generator=generator).tolist() for most in (300, 12))
    numbers = [
        ProbedNumber(
            sentence=i,
            position=0,
            value=Decimal(100 + value),
            role=("nominal", "quantitative")[i % 2],
            domain=f"{kind} {i // 2 % 28}",
            template=f"{kind} {i // 2 % 28}.{t}",
        )
        for i, (value, t) in enumerate(zip(values, templates, strict=True))
    ]
    sizes = (torch.arange(width) + 1.0) ** -0.5
    latent = torch.randn(count, width, generator=generator) * sizes
    latent[:, 5:40] += 0.25 * (2 * (torch.arange(count)[:, None] % 2) - 1) * sizes[5:40]
    mixed = latent @ torch.randn(width, width, generator=torch.Generator().manual_seed(0))
    return NumberStates(numbers, (0,), mixed.bfloat16().unsqueeze(0))


if __name__ == "__main__":
    main()
