"""Turns the result files of a run into tables and one self-contained HTML page.

Knows nothing about models, training or how the results came to be.
"""

from ani.report.page import build_report
from ani.report.pairs import backends_differ, compare_folders
from ani.report.tables import (
    accuracy_markdown,
    accuracy_table,
    benchmark_tables,
    comparison_markdown,
    comparison_tables,
    finer_table,
    gate_shares_table,
    gating_markdown,
    gating_table,
    layers_table,
    routing_table,
)

__all__ = [
    "accuracy_markdown",
    "accuracy_table",
    "backends_differ",
    "benchmark_tables",
    "build_report",
    "compare_folders",
    "comparison_markdown",
    "comparison_tables",
    "finer_table",
    "gate_shares_table",
    "gating_markdown",
    "gating_table",
    "layers_table",
    "routing_table",
]
