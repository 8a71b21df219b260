"""What every test may ask for, which tests there are, and that none of them is skipped."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest

from helpers.peers import Peers
from helpers.witnesses import CORPUS, FIXTURES, ROOT, VARIABLE, witness

__all__ = ["FIXTURES", "ROOT"]

collect_ignore = [] if CORPUS else ["corpus"]


def pytest_configure(config: pytest.Config) -> None:
    if CORPUS is not None and not (CORPUS / "legacy-llama" / "MANIFEST.json").is_file():
        raise pytest.UsageError(f"{VARIABLE}: no corpus at {CORPUS} (fixtures/README.md says what is one)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a database server, so that `-m 'not postgres'` leaves out all of it."""
    for item in items:
        if isinstance(item, pytest.Function) and starts_postgres(item):
            item.add_marker(pytest.mark.postgres)


def starts_postgres(item: pytest.Function) -> bool:
    """Whether one of its fixtures calls `postgres_server`, or one of its parameters is 'postgres'."""
    fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
    calls = any("postgres_server" in func.__code__.co_names for func in fixtures if inspect.isfunction(func))
    asked = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return calls or any(isinstance(value, str) and value == "postgres" for value in asked)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that is skipped shows nothing on the machine where it is: the run fails, and says which (-ra)."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = len(terminalreporter.stats.get("skipped", ()))
    if skipped:
        terminalreporter.write_line(f"FAILED: {skipped} skipped, and no test may be (tests/conftest.py)", red=True)


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The committed witnesses: files that other programs made."""
    return FIXTURES


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Peers:
    """GGUF files of other programs by their name below `fixtures/`, made again where only their record is kept."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # one for all workers
    return Peers(folder / "peers", witness)
