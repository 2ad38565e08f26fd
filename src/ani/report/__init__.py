"""Turns the result files of a folder into one self-contained HTML page.

Knows nothing about models, training or how the results came to be.
"""

from ani.report.page import build_report

__all__ = ["build_report"]
