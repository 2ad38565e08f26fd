"""Turns the result files of a folder into one self-contained HTML page."""

from ani.report.page import build_report

__all__ = ["build_report"]
