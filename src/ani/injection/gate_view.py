"""The gate's decisions about a text as HTML, for notebooks and the playground; knows nothing about models."""

from collections.abc import Container, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ani.injection.inspection import NumberDecision

_BASE_STYLE = "padding:0 .3em; border-radius:.3em; white-space:nowrap;"
_OPEN_STYLE = f"{_BASE_STYLE} background:#0b6b3a; color:#fff; border:2px solid #0b6b3a; font-weight:bold;"
_SHUT_STYLE = f"{_BASE_STYLE} background:#e4e4e4; color:#222; border:2px dashed #777;"


def gate_view(text: str, numbers: "Sequence[NumberDecision]", gated: bool, forced: Container[int] = ()) -> str:
    """`text` as HTML, escaped, with every number marked by its gate: value, α as learnt, open or shut, and whether it
    is one of those (by their place in `numbers`) that are `forced`."""
    parts, end = [], 0
    for place, number in enumerate(numbers):
        undecided = number.alpha != number.alpha
        learnt = f"α {number.alpha:.3f} · " if gated and not undecided else ""
        state = "open" if number.injected else "left alone" if undecided else "shut"
        why = "" if undecided else ", forced" if place in forced else "" if gated else ", no gate"
        parts += [
            escape(text[end : number.start]),
            f'<mark class="{"open" if number.injected else "shut"}" '
            f'style="{_OPEN_STYLE if number.injected else _SHUT_STYLE}">{escape(text[number.start : number.end])}'
            f'<small style="color:inherit; font-weight:normal"> = {number.value} · {learnt}{state}{why}</small></mark>',
        ]
        end = number.end
    parts.append(escape(text[end:]))
    note = "Green with a solid frame: injected. Grey with a dashed frame: left alone."
    return (
        f'<div style="white-space:pre-wrap; line-height:2.2">{"".join(parts)}</div>'
        f"<p><small>{note if numbers else 'No number in the text.'}</small></p>"
    )
