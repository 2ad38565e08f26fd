"""Records of gate decisions, and their views in HTML and on the terminal."""

from collections.abc import Container, Iterator, Sequence
from decimal import Decimal
from html import escape
from typing import Self

from pydantic import Field, model_validator
from rich.table import Table
from rich.text import Text

from ani.results.records import Integer, Probability, Record
from ani.results.scores import TaskRecord
from ani.roles import RoleName

_BASE_STYLE = "padding:0 .3em; border-radius:.3em; white-space:nowrap; print-color-adjust:exact;"
_OPEN_STYLE = f"{_BASE_STYLE} background:#0b6b3a; color:#fff; border:2px solid #0b6b3a; font-weight:bold;"
_SHUT_STYLE = f"{_BASE_STYLE} background:#e4e4e4; color:#222; border:2px dashed #777;"
LEGEND = "Green with a solid frame: injected. Grey with a dashed frame: left alone."


class NumberDecision(Record):
    """A number of a text, and the gate's decision about it."""

    text: str
    value: Decimal
    """Exact."""
    start: Integer = Field(ge=0)
    """First character in the text."""
    end: Integer
    """One after the last character."""
    first_token: Integer | None = None
    last_token: Integer | None = None
    alpha: Probability | None = None
    """σ(z), before the threshold; None where the number got nothing: the config's overflow rule leaves it alone, or
    under `after` one token shows it and a later number to be over."""
    role: RoleName | None = None
    """What the data says it is."""
    tag: str | None = None
    """Of FiNER-139."""
    injected: bool
    """α as applied: 1[σ(z) > 0.5], unless `forced_gates` says otherwise."""

    @property
    def tokens(self) -> range:
        """The tokens that hold it; none where that isn't known."""
        if self.first_token is None or self.last_token is None:
            return range(0)
        return range(self.first_token, self.last_token + 1)


class DecidedText(TaskRecord):
    """A text and the gate's decision about each of its numbers, in their order; a line of `gates.jsonl`."""

    known_by = "source", "text"

    source: str = ""
    """Where it comes from, such as `mmlu`."""
    group: str | None = None
    """Of the source, such as a subject."""
    text: str
    numbers: tuple[NumberDecision, ...]
    rewritten: bool = False
    """Whether the tokenizer changes the numbers of the text, whose roles then aren't known: it has none here."""

    @model_validator(mode="after")
    def _numbers_stand_in_text(self) -> Self:
        last = 0
        for number in self.numbers:
            found = self.text[number.start : number.end]
            if number.start < last or not found or found != number.text:
                raise ValueError(
                    f"number {number.text!r} does not stand at characters [{number.start}, {number.end}) "
                    "of the text, after the number before it"
                )
            last = number.end
        return self


def _pieces(text: str, numbers: Sequence[NumberDecision]) -> Iterator[tuple[str, int | None]]:
    """The text cut at its numbers, nothing left out, and the place of each in `numbers`."""
    end = 0
    for place, number in enumerate(numbers):
        yield text[end : number.start], None
        yield text[number.start : number.end], place
        end = number.end
    yield text[end:], None


def marked_html(text: str, numbers: Sequence[NumberDecision], gated: bool = True, forced: Container[int] = ()) -> str:
    """`text` as HTML, escaped, with every number marked by its gate: value, α as learnt, open or shut, and whether it
    is one of those (by their place in `numbers`) that are `forced`; for notebooks, the playground and the report."""
    parts = []
    for piece, place in _pieces(text, numbers):
        if place is None:
            parts.append(escape(piece))
            continue
        number = numbers[place]
        undecided = number.alpha is None
        learnt = f"α {number.alpha:.3f} · " if gated and not undecided else ""
        state = "open" if number.injected else "left alone" if undecided else "shut"
        why = "" if undecided else ", forced" if place in forced else "" if gated else ", no gate"
        parts.append(
            f'<mark class="{"open" if number.injected else "shut"}" '
            f'style="{_OPEN_STYLE if number.injected else _SHUT_STYLE}">{escape(piece)}'
            f'<small style="display:inline; color:inherit; font-weight:normal"> = {number.value} · {learnt}{state}{why}'
            "</small></mark>"
        )
    return f'<div style="white-space:pre-wrap; line-height:2.2">{"".join(parts)}</div>'


def gate_view(text: str, numbers: Sequence[NumberDecision], gated: bool = True, forced: Container[int] = ()) -> str:
    """`marked_html` with its legend."""
    legend = LEGEND if numbers else "No number in the text."
    return f"{marked_html(text, numbers, gated, forced)}<p><small>{legend}</small></p>"


def marked_text(text: str, numbers: Sequence[NumberDecision]) -> Text:
    """`text` for a terminal, with every number coloured by its gate: `[10]` injected, grey left alone."""
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
    """Every number with its exact value, α = σ(z) and the decision, for a terminal."""
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
