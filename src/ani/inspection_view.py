"""The gate's decisions on a terminal; knows nothing about how they came to be."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

OPEN_STYLE = "bold white on dark_green"
CLOSED_STYLE = "black on grey70"


def marked_text(record: Mapping[str, Any]) -> Text:
    """The sentence with every number coloured by its gate: `[10]` injected, grey left alone.

    Args:
        record: Of `ani.evaluation.gating.inspection_record`.
    """
    text = Text()
    end = 0
    for number in record["numbers"]:
        text.append(record["text"][end : number["start"]])
        shown = record["text"][number["start"] : number["end"]]
        # Not by colour alone: an open gate also gets brackets.
        text.append(f"[{shown}]" if number["injected"] else shown, OPEN_STYLE if number["injected"] else CLOSED_STYLE)
        end = number["end"]
    text.append(record["text"][end:])
    return text


def inspection_table(record: Mapping[str, Any]) -> Table:
    """Every number with its exact value, α = σ(z) and the decision."""
    table = Table("number", "value", "α", "gate", title=None)
    for number in record["numbers"]:
        alpha = "–" if number["alpha"] is None else f"{number['alpha']:.3f}"
        decision = "open: injected as a quantity" if number["injected"] else "closed: left alone as a name"
        if number["alpha"] is None:
            decision = "out of range: left alone"
        table.add_row(Text(number["text"]), number["value"], alpha, decision)
    if not record["numbers"]:
        table.add_row("–", "–", "–", "no number in the text")
    return table
