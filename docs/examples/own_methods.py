"""Two user-defined methods.

`reversed` is a way to write (Lee et al., "Teaching Arithmetic to Small Transformers", arXiv 2307.03381): every run of
digits from right to left, so that a model that writes from left to right knows a sum's carry before it needs it.
`Calculate 47 + 85 =` is asked as `Calculate 74 + 58 =`, and the answer `231` is read as 132. It trains LoRA alone.
`early` is a way to inject: the size of a number, added at layer 2 to each of its tokens, without a gate.
"""

import re

from ani.cli import main
from ani.injection.methods import METHODS, Method
from ani.numbers import number_pieces


def reverse_digits(text: str) -> str:
    """Every run of digits from right to left; its own inverse."""
    return re.sub("[0-9]+", lambda digits: digits[0][::-1], text)


def reversed_pieces(text: str) -> list[tuple[str, bool]]:
    """A text as the model reads and writes it, in pieces; True for numbers."""
    return [(reverse_digits(piece) if is_number else piece, is_number) for piece, is_number in number_pieces(text)]


METHODS["reversed"] = Method(
    settings=None,  # no module
    pieces=reversed_pieces,  # prompts and completions in training, prompts in evaluation
    read=reverse_digits,  # what the model answers, before it is judged
)
METHODS["early"] = Method(
    settings={  # what it fixes of a recipe's section `ani`; the rest stays free
        "layer": 2,
        "policy": "digitwise",
        "gate": "open",
        "combine": "add",
        "encoders": ["magnitude"],
    }
)

if __name__ == "__main__":  # ANI's command line, which knows both now
    main()
