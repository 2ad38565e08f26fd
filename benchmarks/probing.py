"""Probing: hidden states and probes of every layer over plain forward passes over the same sentences.

The plain pass is the model's own, with its head, on the same batches: what anybody pays who only runs the sentences.
"""

import argparse

import _paired
import torch

from ani.data.contrastive import contrastive_sentences
from ani.models import load_model, load_tokenizer
from ani.probing.probes import probe_layers
from ani.probing.states import BATCH_TOKENS, number_states


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=2000)
    arguments = parser.parse_args()
    model, tokenizer = load_model("smollm2"), load_tokenizer("smollm2")
    sentences = contrastive_sentences(arguments.sentences)
    passes = batches([sentence.text for sentence in sentences])

    @torch.inference_mode()
    def plain() -> None:
        for batch in passes:
            model(**batch, use_cache=False)

    shapes: set[torch.Size] = set()

    def probed() -> None:
        states = number_states(model, tokenizer, sentences)
        shapes.add(states.states.shape)
        probe_layers(states)

    found = _paired.ratios(probed, plain, arguments.repeats, warmup=0)
    tokens = sum(int(batch["attention_mask"].sum()) for batch in passes)
    (layers, numbers, width) = shapes.pop()
    rows = _paired.table(
        f"Probing SmolLM2-135M ({model.dtype}): {len(sentences)} sentences, {tokens} tokens in {len(passes)} batches; "
        f"{layers} layers × {numbers} numbers × {width}"
    )
    _paired.add(rows, "states and probes / plain passes", found, "≤ 1.5")
    _paired.show(rows)


if __name__ == "__main__":
    main()
