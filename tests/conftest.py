"""Loads `tests.fixtures` where tests are run: pytest-xdist's first process runs none, and the others wait for it."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.fixtures")
