"""What files that others made may hold, each kind judged before anything is built by it; knows nothing about numbers.

Here are texts, JSON and YAML; `folder` has links, pickles and digests, `weights` safetensors, `peft` what an adapter
may tell PEFT, and `model` a model's directory. Whatever is refused raises `InputError` with one sentence.
"""

from ani.untrusted.text import (
    DEEPEST,
    LARGEST_SETTINGS,
    LONGEST_LINE,
    bounded_lines,
    first_problem,
    json_lines,
    one_line,
    parse_json,
    parse_yaml,
    read_json_object,
    read_text,
    zipped_json_lines,
)

__all__ = [
    "DEEPEST",
    "LARGEST_SETTINGS",
    "LONGEST_LINE",
    "bounded_lines",
    "first_problem",
    "json_lines",
    "one_line",
    "parse_json",
    "parse_yaml",
    "read_json_object",
    "read_text",
    "zipped_json_lines",
]
