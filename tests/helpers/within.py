"""`--within SECONDS`: begin no test after that, and say how many were not reached.

For machines that lend CI a fixed time and not always the same speed. The tests begin at another module with every
commit, so that over time all of them are reached, however slow the machine.
"""

from __future__ import annotations

import subprocess
import time
from itertools import groupby
from typing import Any

import pytest

from helpers.third_party_fixtures import ROOT

UNREACHED = "ggferry_unreached"


class Within:
    """A plugin of one run, in the process that collects reports and in its workers."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._seconds = seconds
        self.unreached = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = rotated(items, turn())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        if time.monotonic() < self._until:
            return None
        self.unreached += 1
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[UNREACHED] = self.unreached

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.unreached += getattr(node, "workeroutput", {}).get(UNREACHED, 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unreached:
            terminalreporter.write_line(
                f"NOT REACHED within {self._seconds:.0f} s: {self.unreached} tests", yellow=True
            )


def rotated(items: list[pytest.Item], turn: int) -> list[pytest.Item]:
    """Return the tests from another module on, each module's own in their order."""
    modules = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    start = turn % len(modules) if modules else 0
    return [item for module in (*modules[start:], *modules[:start]) for item in module]


def turn() -> int:
    """A number of the commit that is tested; 0 outside a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(found.stdout, 16) if found.returncode == 0 else 0
