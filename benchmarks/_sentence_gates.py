"""How well can a gate tell from SmolLM2's states whether a sentence means its calculation? Fits it, as `gate: fitted`
does, to more and fewer sentences and templates, to other states, and for more and fewer passes (docs/findings.md).

A test sentence that means its result is right if the gate is open at all tokens that write it, another if the gate is
shut at all of its tokens. Some 15 minutes on one core.
"""

import argparse
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from ani.data.calculation_sentences import calculation_sentences
from ani.data.collator import NumberCollator, tokenize
from ani.data.sources import Example
from ani.injection.attach import ani_module, number_locator
from ani.results.statistics import area_under_roc
from ani.roles import Role
from ani.training import fitted_gate, fitting
from ani.training.examples import LengthGroupedSampler
from ani.training.recipe import load_recipe
from ani.training.run import prepare

LAST = 28
STATES = [4, 8, 12, 16, 18, 20, 24]
CONTEXT = list(range(1, LAST, 2))
OURS = {"states": [4, 8, 12, 16, 18], "context": list(range(1, 18, 2))}
"""What the calculator's gate reads."""
ROWS: dict[str, dict[str, Any]] = {
    "as the calculator's": {},
    "another seed": {"seed": 1},
    "1,500 sentences": {"sentences": 1500},
    "750 sentences": {"sentences": 750},
    "a half of the templates": {"share": 0.5},
    "a quarter": {"share": 0.25},
    "an eighth": {"share": 0.125},
    "4 passes": {"epochs": 4},
    **{f"layer {layer} alone": {"states": [layer], "context": []} for layer in (8, 12, 18, 24)},
    "five layers": {"context": []},
    "all layers up to 28": {"states": [*STATES, LAST], "context": CONTEXT},
}


class Sentences:
    """Training and test sentences, and what a gate of the last layer reads at each of their tokens."""

    def __init__(self) -> None:
        settings = ["output=unused", f"ani.layer={LAST}", f"ani.gate_layers={STATES}", f"ani.gate_context={CONTEXT}"]
        model, tokenizer = prepare(load_recipe("recipes/small/calculator.yaml", settings))
        locator, train = number_locator(model), calculation_sentences(6000, split="train")
        self.all = [*train, *calculation_sentences(1000, split="test", seed=1)]
        self.train = range(len(train))
        examples = [Example(each.prompt, each.completion, each.roles) for each in self.all]
        rows = [tokenize(example, tokenizer, locator, 128) for example in examples]
        collator = NumberCollator(tokenizer, locator)
        gate = ani_module(model).gate
        assert gate is not None
        self.states, self.roles, texts = fitted_gate._features(model, gate, collator, rows, 0)
        self.of = torch.tensor([*LengthGroupedSampler([len(row.input_ids) for row in rows], fitted_gate.ROWS, 0)])[
            texts
        ]
        """Each token's sentence: all of them have one."""
        self.width = len(self.states[0]) // (1 + len(STATES) + len(CONTEXT))

    def columns(self, states: Sequence[int], context: Sequence[int]) -> torch.Tensor:
        """Those of some layers' states and attention means, in the order in which the gate reads them."""
        order = [("state", LAST)]
        for layer in range(LAST):
            order += [("state", layer)] * (layer in STATES) + [("context", layer)] * (layer in CONTEXT)
        wanted = [("state", layer) for layer in states] + [("context", layer) for layer in context]
        blocks = torch.tensor([order.index(each) for each in wanted])
        return (blocks[:, None] * self.width + torch.arange(self.width)).flatten()

    def learnt(self, sentences: int, share: float, seed: int) -> torch.Tensor:
        """The tokens of the first training sentences whose templates are among a share of all."""
        kept = [i for i in self.train if zlib.crc32(f"{seed} {self.all[i].template}".encode()) % 1000 < 1000 * share]
        return torch.isin(self.of, torch.tensor(kept[:sentences])).nonzero().flatten()


def fitted(
    of: Sentences,
    states: Sequence[int] = OURS["states"],
    context: Sequence[int] = OURS["context"],
    sentences: int = 6000,
    share: float = 1.0,
    epochs: int | None = None,
    seed: int = 0,
) -> tuple[int, int, dict[int, float]]:
    """How many sentences and templates a gate was fitted to, and by test sentence how sure the gate is that it is
    meant: the least z where its value is written, or the greatest anywhere."""
    torch.manual_seed(seed)
    columns, tokens = of.columns(states, context), of.learnt(sentences, share, seed)
    read, roles = of.states[tokens][:, columns], of.roles[tokens]
    learnt, texts = of.of[tokens].unique(return_inverse=True)
    gate = nn.Sequential(nn.Linear(len(columns), 48), nn.GELU(), nn.Dropout(0.3), nn.Linear(48, 1))
    mean, std = fitting.fit(gate, read, roles, texts, epochs)
    found: dict[int, float] = {}
    test = (of.of >= len(of.train)).nonzero().flatten()
    with torch.inference_mode():
        for part in test.split(4096):
            zs = gate.eval()((of.states[part][:, columns].float() - mean) / std).squeeze(-1)
            for z, sentence, role in zip(zs.tolist(), of.of[part].tolist(), of.roles[part].tolist(), strict=True):
                if of.all[sentence].role == "nominal":
                    found[sentence] = max(z, found.get(sentence, z))
                elif role == Role.QUANTITATIVE:
                    found[sentence] = min(z, found.get(sentence, z))
    return len(learnt), len({of.all[int(i)].template for i in learnt}), found


def judged(found: dict[int, float], of: Sentences, resamples: int = 400) -> list[str]:
    """Area under the ROC curve, and the share of what isn't meant that is left alone where 95% of what is meant are
    answered; 95% intervals over templates."""
    sentences = sorted(found)
    z = torch.tensor([found[i] for i in sentences])
    meant = torch.tensor([of.all[i].role == "quantitative" for i in sentences])
    templates = [of.all[i].template for i in sentences]
    groups = [torch.tensor([i for i, each in enumerate(templates) if each == t]) for t in sorted(set(templates))]

    def both(drawn: torch.Tensor) -> torch.Tensor:
        yes, no = z[drawn][meant[drawn]], z[drawn][~meant[drawn]]
        bound = yes.sort()[0][int(0.05 * len(yes))]
        return torch.tensor([area_under_roc(yes.tolist(), no.tolist()), float((no < bound).float().mean())])

    torch.manual_seed(0)
    drawn = [both(torch.cat([groups[i] for i in torch.randint(len(groups), (len(groups),))])) for _ in range(resamples)]
    low, high = torch.stack(drawn).quantile(torch.tensor([0.025, 0.975]), dim=0)
    roc, left = both(torch.arange(len(z)))
    return [f"{roc:.3f} ({low[0]:.3f}–{high[0]:.3f})", f"{left:.1%} ({100 * low[1]:.1f}–{100 * high[1]:.1f})"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"{', '.join(ROWS)}; without one, all")
    chosen = parser.parse_args().rows or list(ROWS)
    of = Sentences()
    table = Table("gate", "sentences", "templates", "area under the ROC curve", "left alone, 95% answered")
    for name in track(chosen, "fitted gates"):
        sentences, templates, found = fitted(of, **ROWS[name])
        table.add_row(name, f"{sentences:,}", str(templates), *judged(found, of))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
