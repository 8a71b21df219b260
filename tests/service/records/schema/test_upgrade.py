"""Ledgers of older versions are brought up to date, in SQLite and PostgreSQL; newer ones are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from ggferry.formats.errors import CorruptError, UsageError
from ggferry.service.records.ledger import Ledger
from ggferry.service.records.ledger_tables import SCHEMA
from ggferry.service.records.schema import upgrade
from ggferry.service.server.store import tokens
from ggferry.service.server.store.database import SERVER, Store
from helpers import old_ledgers
from helpers.archive_tools import command

HISTORIES = (upgrade.LEDGER, SERVER)
VERSION_TABLES = {history.table for history in HISTORIES}


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The ledger of a server of version 0.1, of either kind."""
    if request.param == "sqlite":
        return str(old_ledgers.sqlite_at(tmp_path))
    return old_ledgers.postgres_at(request.getfixturevalue("postgres"), tmp_path)


@pytest.fixture
def opened(old: str) -> Iterator[Store]:
    store = Store(old)
    yield store
    store.close()


def differences(store: Store) -> list[Any]:
    """What alembic would change to make the tables those that the program declares."""

    def ours(name: str | None, kind: str, _: Any) -> bool:
        return kind != "table" or name not in VERSION_TABLES

    with store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": ours, "compare_type": True})
        return list(compare_metadata(context, store._meta))


def versions(store: Store) -> list[str]:
    with store.reading() as connection:
        return [upgrade._version(connection, history) for history in HISTORIES]


def test_the_head_is_the_newest_module() -> None:
    for history in HISTORIES:
        script = ScriptDirectory(history.folder, version_locations=[history.folder])
        assert script.get_heads() == [history.head]


def test_tables_of_an_older_version_become_those_of_a_new_ledger(opened: Store) -> None:
    """A table that is changed without a module in `versions` fails here."""
    assert differences(opened) == []
    assert versions(opened) == [history.head for history in HISTORIES]


def test_nothing_is_lost(old: str, opened: Store) -> None:
    kind = "sqlite" if opened._sqlite else "postgresql"
    facts = old_ledgers.facts(kind)
    states = {name: opened.row(facts[name])["state"] for name in ("done", "broken", "waiting")}
    assert states == {"done": "done", "broken": "quarantined", "waiting": "queued"}
    token = tokens.find(opened, facts["token"])
    assert token is not None and (token.name, token.scope, token.quota) == ("ci", "submit", 10**9)
    text = (old_ledgers.KEPT / f"ledger.{kind}.sql").read_text()
    with opened.reading() as connection:
        for table, count in old_ledgers.counted(connection, opened._meta.tables.values()).items():
            rows = text.count(f'INSERT INTO "{table}" ') + text.count(f"INSERT INTO public.{table} ")
            assert count == rows, table


def test_the_ledger_of_the_first_version(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger")) as first:
        first.executescript(old_ledgers.VERSION_1)
    store = Store(str(tmp_path / "ledger"))
    new = Store(str(tmp_path / "new"))
    try:
        assert versions(store) == versions(new) == [history.head for history in HISTORIES]
        assert differences(new) == []
        assert store.first(sa.select(store.schema.c.version)) == {"version": SCHEMA}
        columns = [
            {column["name"] for column in sa.inspect(each.engine).get_columns("ggferry_jobs")} for each in (store, new)
        ]
        assert columns[0] == columns[1]
    finally:
        store.close()
        new.close()


@pytest.mark.parametrize("history", HISTORIES, ids=["ledger", "server"])
def test_a_newer_version_is_refused(opened: Store, old: str, history: upgrade.History) -> None:
    table, _ = upgrade._versions(history)
    opened.run(sa.update(table).values(version_num="9999"))
    with pytest.raises(UsageError, match="made by a newer ggferry") as caught:
        Store(old)
    assert (caught.value.found, caught.value.expected) == ("version 9999", f"version {history.head}")
    opened.run(sa.update(table).values(version_num=history.head))
    Store(old).close()


def test_a_newer_version_is_refused_by_the_command(tmp_path: Path) -> None:
    path = old_ledgers.sqlite_at(tmp_path)
    Store(str(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {SERVER.table} SET version_num = '0777'")
        connection.commit()
    done = command("serve", "--data", path.parent, "token", "list", code=2)
    assert "made by a newer ggferry" in done.stderr and "0777" in done.stderr
    command("ledger", "list", path)  # the ledger itself is not newer


def test_a_column_that_is_absent_is_noticed_when_the_server_starts(tmp_path: Path) -> None:
    """Such a ledger was opened and served, and each request that needed the column failed."""
    path = old_ledgers.sqlite_at(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE ggferry_uploads DROP COLUMN summary")
        connection.commit()
    with pytest.raises(CorruptError, match="not as its version has them") as caught:
        Store(str(path))
    assert caught.value.found == "no column summary in ggferry_uploads"


def test_an_upgrade_that_is_cut_off_changes_nothing(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_check_columns", killed)
        with pytest.raises(KeyboardInterrupt):
            Store(old)
    ledger = Ledger(old)
    there = set(sa.inspect(ledger.engine).get_table_names())
    ledger.close()
    assert "ggferry_audit" not in there and SERVER.table not in there
    store = Store(old)
    assert differences(store) == []
    store.close()


def test_servers_that_start_together_upgrade_once(old: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: Store(old), range(4)))
    assert all(versions(store) == [history.head for history in HISTORIES] for store in stores)
    assert differences(stores[0]) == []
    for store in stores:
        store.close()
