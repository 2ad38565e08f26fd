"""The gate's decision about a number, and its views in HTML and on the terminal."""

from collections.abc import Container, Iterator, Sequence
from decimal import Decimal
from html import escape

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table
from rich.text import Text

from ani.roles import RoleName

_BASE_STYLE = "padding:0 .3em; border-radius:.3em; white-space:nowrap; print-color-adjust:exact;"
_OPEN_STYLE = f"{_BASE_STYLE} background:#0b6b3a; color:#fff; border:2px solid #0b6b3a; font-weight:bold;"
_CLOSED_STYLE = f"{_BASE_STYLE} background:#e4e4e4; color:#222; border:2px dashed #777;"
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

    @property
    def tokens(self) -> range:
        """Token positions of the number; empty if unknown."""
        if self.first_token is None or self.last_token is None:
            return range(0)
        return range(self.first_token, self.last_token + 1)


def _pieces(text: str, numbers: Sequence[NumberDecision]) -> Iterator[tuple[str, int | None]]:
    """Yield all pieces of the text, each with its place in `numbers` if it is a number."""
    end = 0
    for place, number in enumerate(numbers):
        yield text[end : number.start], None
        yield text[number.start : number.end], place
        end = number.end
    yield text[end:], None


def marked_html(text: str, numbers: Sequence[NumberDecision], gated: bool = True, forced: Container[int] = ()) -> str:
    """Return `text` as escaped HTML, with each number marked: value, α, open or closed, and whether its gate is
    `forced` (by its place in `numbers`)."""
    parts = []
    for piece, place in _pieces(text, numbers):
        if place is None:
            parts.append(escape(piece))
            continue
        number = numbers[place]
        undecided = number.alpha is None
        learnt = f"α {number.alpha:.3f} · " if gated and not undecided else ""
        state = "open" if number.injected else "left alone" if undecided else "closed"
        why = "" if undecided else ", forced" if place in forced else "" if gated else ", no gate"
        parts.append(
            f'<mark class="{"open" if number.injected else "closed"}" '
            f'style="{_OPEN_STYLE if number.injected else _CLOSED_STYLE}">{escape(piece)}'
            f'<small style="display:inline; color:inherit; font-weight:normal"> = {number.value} · {learnt}{state}{why}'
            "</small></mark>"
        )
    return f'<div style="white-space:pre-wrap; line-height:2.2">{"".join(parts)}</div>'


def gate_view(text: str, numbers: Sequence[NumberDecision], gated: bool = True, forced: Container[int] = ()) -> str:
    """Return `marked_html` and a legend."""
    legend = LEGEND if numbers else "No number in the text."
    return f"{marked_html(text, numbers, gated, forced)}<p><small>{legend}</small></p>"


def marked_text(text: str, numbers: Sequence[NumberDecision]) -> Text:
    """Return `text` for a terminal, with each number coloured: `[10]` injected, grey left alone."""
    shown = Text()
    for piece, place in _pieces(text, numbers):
        if place is None:
            shown.append(piece)
        elif numbers[place].injected:
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
        alpha = "–" if number.alpha is None else f"{number.alpha:.3f}"
        table.add_row(Text(number.text), str(number.value), alpha, decision)
    if not numbers:
        table.add_row("–", "–", "–", "no number in the text")
    return table
