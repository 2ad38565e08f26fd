"""The methods that can be compared: ANI, the paper's baselines, and ours. A new one is an entry of `METHODS`.

All share one scanner, one trainer and one evaluation; those that inject share one module. h is the hidden state at a
number's terminal token, e = s·W_P φ(x) the number embedding (`ani.injection.module`), and layer 0 the embedding output:

| method | equation | where | source |
| --- | --- | --- | --- |
| `ani` | h ← h + α·e, α from the gate | layer l, tokens by `policy` | the paper, Eq. 1 to 6, at the terminal token |
| `sft` | | | the paper, "Baselines": LoRA on the same data, nothing else |
| `digitwise` | h ← h + e | layer 0, every token of the number | the paper, "Baselines": Digit-wise (Additive) |
| `xval` | h ← e, φ(x) = the scaled value | layer 0, one position a number | xVal, arXiv 2310.02989 |
| `fone` | h ← e, φ(x) = Fourier features | layer 0, one position a number | FoNE, arXiv 2502.09741 |
| `numerologic` | `42` is written `2:42` | the text | NumeroLogic, arXiv 2404.00459 |
| `static` | h ← e | layer l, terminal token | the paper, "Ablation": Static Injection |
| `static-additive` | h ← h + e | layer l, terminal token | its additive sibling, ours |
| `digitwise-gated` | h ← h + α·e | layer l, every token of the number | the paper, "Ablation": Digit-wise Injection |

`reference`, the tables' first row, is the model with nothing attached or trained; a comparison always has it.

What the sources leave open, and what is done here:

- **Numbers of the response** stay digits under every method. FoNE and xVal also *write* numbers through a head of
  their own, which regresses or classifies a number's value at one position. Here each method must generate text that
  a user can read and that the same evaluation judges, the paper compares them as inputs ("Input-level Integration"),
  and it is silent on any head. So a substituted number is read from one position and its answer is written out.
- **Which numbers are substituted**: those of the prompt. A number whose sub-tokens contain other text too (`(-` in
  `f(-57)` is one token of many tokenizers) is left as it is.
- **xVal's range**: FoNE's variant, logarithmic, to [−5, 5], with M = 10^integer_digits. Its embedding is a direction
  times the value, so 0 is a zero vector, as published.
- **NumeroLogic's braces**: the paper writes `2:42`, so nothing is around it; prompts and completions are
  rewritten for training, prompts for evaluation, and the counts are taken out of what the model writes.
- **Start of W_P**: zero where e is added, random where it replaces the state (`AniModule`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ani.numbers import number_pieces
from ani.numbers.digit_counts import digit_counted_pieces, remove_digit_counts

Policy = Literal["terminal", "digitwise", "running", "after"]
"""Which tokens carry a number (`ani.injection.config.InjectionSettings.policy`)."""

DEFAULT_POLICY: Policy = "after"

MethodName = str
"""A key of `METHODS`."""


class Method(NamedTuple):
    """How a method differs from ANI."""

    settings: Mapping[str, Any] | None = {}
    """Settings that it fixes in the `ani` section of a recipe; None: it has no module."""
    pieces: Callable[[str], list[tuple[str, bool]]] = number_pieces
    """A text as the model reads and writes it, in pieces; True for numbers."""
    read: Callable[[str], str] = str
    """Turns the model's output into ordinary text."""

    def write(self, text: str) -> str:
        """A text as the model reads and writes it."""
        return "".join(piece for piece, _ in self.pieces(text))


_SUBSTITUTED = {"layer": 0, "policy": "terminal", "scope": "prompt", "gate": "open", "combine": "substitute"}

METHODS: dict[MethodName, Method] = {
    "ani": Method(),
    "sft": Method(None),
    "digitwise": Method({"layer": 0, "policy": "digitwise", "scope": "prompt", "gate": "open", "combine": "add"}),
    "xval": Method({**_SUBSTITUTED, "encoders": ["magnitude"]}),
    "fone": Method({**_SUBSTITUTED, "encoders": ["fourier"]}),
    "numerologic": Method(None, digit_counted_pieces, remove_digit_counts),
    "static": Method({"policy": "terminal", "gate": "open", "combine": "replace"}),
    "static-additive": Method({"policy": "terminal", "gate": "open", "combine": "add"}),
    "digitwise-gated": Method({"policy": "digitwise", "gate": "learned", "combine": "add"}),
}
"""Every method by its name (described in the module's docstring); add your own here."""


def unknown_method(name: object) -> str:
    """The error text for a name that `METHODS` doesn't have."""
    return (
        f"no method {name!r:.80}; known are {', '.join(METHODS)} (register your own in ani.injection.methods.METHODS)"
    )
