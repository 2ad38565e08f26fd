"""Prints the norms behind docs/findings.md, "The first token is not like the others"."""

import torch

from ani.models import load_model, load_tokenizer

tokenizer, model = load_tokenizer("smollm2"), load_model("smollm2", dtype="float32")
for text in ("7 rooms were booked for 12 guests.", "Room 505 has a capacity of 10 people."):
    with torch.inference_mode():
        states = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
    for layer in (10, 12, 14):
        norms = states[layer][0].norm(dim=-1)
        first = states[layer][0, 0].square()
        print(
            f"{text!r} layer {layer}: first token {norms[0]:.0f}, median of the others {norms[1:].median():.0f}, "
            f"largest dimension's share of the first {first.max() / first.sum():.2f}"
        )
