"""The report: one self-contained HTML page from the result files of a folder."""

from ani.report.page import build_report

__all__ = ["build_report"]
