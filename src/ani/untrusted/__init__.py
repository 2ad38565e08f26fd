"""What files that others made may hold, each kind judged before anything is built by it; knows nothing about numbers.

`text` reads JSON, JSON lines and YAML, `folder` judges links, pickles and digests, `weights` safetensors, `peft` what
an adapter may tell PEFT, and `model` a model's directory. What is refused raises `InputError` with one sentence.
"""

from ani.untrusted.text import (
    bounded_lines,
    first_problem,
    json_lines,
    one_line,
    parse_json,
    parse_yaml,
    read_json_object,
    read_text,
)

__all__ = [
    "bounded_lines",
    "first_problem",
    "json_lines",
    "one_line",
    "parse_json",
    "parse_yaml",
    "read_json_object",
    "read_text",
]
