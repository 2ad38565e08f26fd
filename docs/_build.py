"""What the site shows of the code: tables of keys and fields, the command line; and figures that follow its theme.

A page asks for them by comments, which other readers of its Markdown don't see: `<!-- fields: ani.module.Class -->` and
`<!-- commands -->`.
"""

import ast
import importlib
import inspect
import json
import re
import textwrap
import types
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

DOCS = Path(__file__).parent
WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    bool: "`true`, `false`",
    type(None): "`null`",
    Any: "anything",
}
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs' event: the comments become what they ask for."""
    markdown = re.sub(r"(?m)^<!-- fields: ([\w.]+) -->$", lambda found: fields_table(found[1]), markdown)
    return re.sub(r"(?m)^<!-- commands -->$", lambda _: command_sections(), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """mkdocs' event: our figures stand in the page itself, where its colours reach them."""
    return re.sub(
        r'<p><img alt="([^"]*)" src="(figures/[\w-]+\.svg)" ?/?></p>',
        lambda image: f'<figure role="img" aria-label="{image[1]}">{(DOCS / image[2]).read_text()}</figure>',
        html,
    )


def on_post_page(output: str, **_: Any) -> str:
    """mkdocs' event: a name that the theme leaves out, for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def fields_table(name: str) -> str:
    """The fields of a pydantic model, named tuple or typed dict, as a Markdown table."""
    module, _, attribute = name.rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    meanings = _meanings(kind)
    if issubclass(kind, BaseModel):
        rows = [
            (f"`{key}`", _type(field.annotation, field.metadata), _default(field), meanings.get(key, ""))
            for key, field in kind.model_fields.items()
        ]
        return _table(("key", "value", "default", "meaning"), rows)
    hints = get_type_hints(kind, include_extras=True)
    return _table(("key", "value", "meaning"), [(f"`{k}`", _type(t), meanings.get(k, "")) for k, t in hints.items()])


def command_sections() -> str:
    """Every command with its arguments and options."""
    from ani.cli import app

    parts = []
    groups = [(f"{group.name} ", group.typer_instance) for group in app.registered_groups]
    for group, command in [
        (group, each) for group, typer in [("", app), *groups] for each in typer.registered_commands
    ]:
        assert command.callback is not None
        name = group + (command.name or command.callback.__name__.replace("_", "-"))
        hints = get_type_hints(command.callback, include_extras=True)
        usage, rows = [f"ani {name}"], []
        for key, parameter in inspect.signature(command.callback).parameters.items():
            if not get_args(hints[key]):
                continue  # typer's context
            kind, info, *_ = get_args(_without_null(hints[key]))
            if info.hidden:
                continue  # for our own processes
            required = parameter.default is parameter.empty
            value = _type_name(_without_null(kind))
            if isinstance(info, OptionInfo):
                named = [name for name in (info.default, *info.param_decls) if str(name).startswith("--")]
                shown = named[0] if named else f"--{key.replace('_', '-')}"  # as typer derives it
                usage += [f"{shown} {key.upper()}"] if required else []
                value = "" if kind is bool else value.replace("list of text", "text; may be repeated")
            else:
                shown = key.upper()
                many = "..." if "list" in str(kind) else ""
                usage.append(f"{shown}{many}" if required else f"[{shown}{many}]")
            given = parameter.default if parameter.default not in (None, False) else ""
            default = "*required*" if required else f"`{given}`" if given != "" else ""
            rows.append((f"`{shown}`", value, default, _cell(info.help or "")))
        heads = ("argument or option", "value", "default", "meaning")
        table = _table(heads, rows) if rows else ""
        options = ["[vLLM's options]"] if command.context_settings else ["[options]"] if "-" in str(rows) else []
        doc = inspect.cleandoc(command.callback.__doc__ or "")
        parts.append(f"## ani {name}\n\n{doc}\n\n```text\n{' '.join([*usage, *options])}\n```\n\n{table}")
    return "\n\n".join(parts)


def _without_null(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    (kept,) = (argument for argument in get_args(annotation) if argument is not type(None))
    return kept


def _meanings(kind: Any) -> dict[str, str]:
    """The docstring under each field, its own class's before those of its bases."""
    found: dict[str, str] = {}
    for base in reversed([kind, *kind.__mro__[1:]]):
        if base.__module__.split(".")[0] != "ani":
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for statement, following in pairwise(node.body):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str() as text)):
                    found[key] = _cell(inspect.cleandoc(text))
    return found


def _type(annotation: Any, metadata: Any = ()) -> str:
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in metadata
        for name, sign in LIMITS.items()
        if hasattr(limit, name) and abs(getattr(limit, name)) < 2**53  # which is what a float can hold
    ]
    first, *others = _alternatives(annotation)  # only the first has limits
    return " or ".join([" ".join([first, ", ".join(limits)]).strip(), *others])


def _alternatives(annotation: Any) -> list[str]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [_type(argument) for argument in get_args(annotation)]
    return [_type_name(annotation)]


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        metadata = [limit for field in arguments[1:] for limit in getattr(field, "metadata", [field])]
        return _type(arguments[0], metadata)
    if origin is NotRequired:
        return f"{_type(arguments[0])}, or left out"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (list, tuple):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return WORDS.get(annotation) or getattr(annotation, "__name__", str(annotation))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    return "its own" if isinstance(value, BaseModel) else f"`{json.dumps(value, ensure_ascii=False)}`"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(['<div class="keys" markdown>\n', *(f"| {' | '.join(line)} |" for line in lines), "\n</div>"])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
