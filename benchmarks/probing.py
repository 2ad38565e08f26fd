"""Probing: hidden states and probes of every layer of SmolLM2 over plain forward passes over the same sentences.

The plain pass is the model's own, with its head, on batches of the same size. The probes' own share is shown too.
"""

import time

import _paired
import torch

from ani.data.diagnostic import diagnostic_sentences
from ani.models import load_model, load_tokenizer
from ani.probing.probes import probe_layers
from ani.probing.states import BATCH_TOKENS, number_states


def main() -> None:
    """Print the ratio of the times, and seconds per layer."""
    model, tokenizer = load_model("smollm2"), load_tokenizer("smollm2")
    sentences = diagnostic_sentences(1334, split="train") + diagnostic_sentences(666, split="test")
    ids = sorted(tokenizer([sentence.text for sentence in sentences])["input_ids"], key=len)
    size = BATCH_TOKENS // len(ids[-1])
    batches = [
        tokenizer.pad({"input_ids": ids[first : first + size]}, padding_side="right", return_tensors="pt")
        for first in range(0, len(ids), size)
    ]
    fits: list[float] = []

    @torch.inference_mode()
    def plain() -> None:
        for batch in batches:
            model(**batch, use_cache=False)

    def probed() -> None:
        states = number_states(model, tokenizer, sentences)
        start = time.perf_counter()
        probe_layers(states)
        fits.append((time.perf_counter() - start) / len(states.layers))

    found = _paired.ratios(probed, plain, 3, warmup=0)
    rows = _paired.table(f"Probing SmolLM2-135M ({model.dtype}), {len(sentences)} sentences")
    _paired.add(rows, "states and probes / plain passes", found, "≤ 1.5")
    _paired.add(rows, "seconds per layer, probes alone", fits)
    _paired.show(rows)


if __name__ == "__main__":
    main()
