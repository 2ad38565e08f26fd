"""The gate's decision about a number, and its views in HTML and on the terminal."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from html import escape

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table
from rich.text import Text

from ani.roles import RoleName

_BASE_STYLE = "padding:0 .3em; border-radius:.3em; white-space:nowrap; print-color-adjust:exact;"
_OPEN_STYLE = f"{_BASE_STYLE} background:#0b6b3a; color:#fff; border:2px solid #0b6b3a; font-weight:bold;"
_CLOSED_STYLE = f"{_BASE_STYLE} background:#e4e4e4; color:#222; border:2px dashed #777;"
UNDECIDED = 0.1
"""Distance of α from 0.5 below which the table names no role: an untrained gate is near 0.5."""
LEGEND = "Green with a solid frame: injected. Grey with a dashed frame: left alone."


class NumberDecision(BaseModel):
    """A number of a text, and the gate's decision about it."""

    model_config = ConfigDict(frozen=True, strict=True)

    text: str
    value: Decimal
    """Exact value."""
    start: int = Field(ge=0)
    """First character in the text."""
    end: int
    """One after the last character."""
    first_token: int | None = None
    last_token: int | None = None
    alpha: float | None = Field(default=None, ge=0, le=1)
    """σ(z), before the threshold; None where nothing is decided: the config's overflow rule skips the number, or under
    `after` one token completes it and a later number."""
    role: RoleName | None = None
    """Role that the data gives."""
    tag: str | None = None
    """Tag of FiNER-139."""
    injected: bool
    """α as applied: 1[σ(z) > 0.5], unless `forced_gates` says otherwise."""


def _pieces(text: str, numbers: Sequence[NumberDecision]) -> Iterator[tuple[str, NumberDecision | None]]:
    """Yield all pieces of the text, a number with its decision."""
    end = 0
    for number in numbers:
        yield text[end : number.start], None
        yield text[number.start : number.end], number
        end = number.end
    yield text[end:], None


def gate_view(text: str, numbers: Sequence[NumberDecision], gated: bool = True, forced: bool = False) -> str:
    """Return a text as escaped HTML, with a legend and each number marked: value, α, and whether it is injected.

    Args:
        text: The text.
        numbers: The decisions about all of its numbers.
        gated: True if the module has a gate.
        forced: True if `forced_gates` decided.
    """
    parts = []
    for piece, number in _pieces(text, numbers):
        if number is None:
            parts.append(escape(piece))
            continue
        undecided = number.alpha is None
        learnt = f"α {number.alpha:.3f} · " if gated and not undecided else ""
        state = "open" if number.injected else "left alone" if undecided else "closed"
        why = "" if undecided else ", forced" if forced else "" if gated else ", no gate"
        parts.append(
            f'<mark class="{"open" if number.injected else "closed"}" '
            f'style="{_OPEN_STYLE if number.injected else _CLOSED_STYLE}">{escape(piece)}'
            f'<small style="display:inline; color:inherit; font-weight:normal"> = {number.value} · {learnt}{state}{why}'
            "</small></mark>"
        )
    legend = LEGEND if numbers else "No number in the text."
    marked = f'<div style="white-space:pre-wrap; line-height:2.2">{"".join(parts)}</div>'
    return f"{marked}<p><small>{legend}</small></p>"


def marked_text(text: str, numbers: Sequence[NumberDecision]) -> Text:
    """Return `text` for a terminal, with each number coloured: `[10]` injected, grey left alone."""
    shown = Text()
    for piece, number in _pieces(text, numbers):
        if number is None:
            shown.append(piece)
        elif number.injected:
            shown.append(f"[{piece}]", "bold white on dark_green")  # not by colour alone
        else:
            shown.append(piece, "black on grey70")
    return shown


def decisions_table(numbers: Sequence[NumberDecision]) -> Table:
    """Return a table of the numbers with value, α and decision, for a terminal."""
    table = Table("number", "value", "α", "gate", title=None)
    for number in numbers:
        decision = "open: injected as a quantity" if number.injected else "closed: left alone as a name"
        if number.alpha is None:
            decision = "left alone: out of range, or its token has a later one"
        elif abs(number.alpha - 0.5) < UNDECIDED:
            decision = f"undecided: {'injected' if number.injected else 'left alone'}"
        alpha = "–" if number.alpha is None else f"{number.alpha:.3f}"
        table.add_row(Text(number.text), str(number.value), alpha, decision)
    if not numbers:
        table.add_row("–", "–", "–", "no number in the text")
    return table
