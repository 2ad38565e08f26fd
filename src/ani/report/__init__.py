"""Turns the result files of a run into tables and one self-contained HTML page.

Knows nothing about models, training or how the results came to be.
"""

from ani.report.page import build_report
from ani.report.tables import (
    accuracy_markdown,
    accuracy_table,
    comparison_markdown,
    comparison_tables,
    gating_markdown,
    gating_table,
    layers_table,
)

__all__ = [
    "accuracy_markdown",
    "accuracy_table",
    "build_report",
    "comparison_markdown",
    "comparison_tables",
    "gating_markdown",
    "gating_table",
    "layers_table",
]
