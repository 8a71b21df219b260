"""Tables of an older version are brought to the newest by alembic, within the transaction that opens the database.

A database without tables gets the newest ones at once, and the number of their version. alembic is loaded only where
tables are older.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ggferry.formats.errors import CorruptError, UsageError
from ggferry.support.heavy import sa
from ggferry.support.records import dataclass


@dataclass(frozen=True, slots=True)
class History:
    """The versions of some tables.

    Attributes:
        folder: Folder of the modules, one a version.
        table: Name of the table that holds the version.
        first: A table that every version has.
        head: The newest version.
        what: What the tables are called.
    """

    folder: str
    table: str
    first: str
    head: str
    what: str


HERE = os.path.dirname(os.path.abspath(__file__))
LEDGER = History(os.path.join(HERE, "versions"), "ggferry_ledger_version", "ggferry_jobs", "0004", "ledger")


def prepare(connection: Any, history: History, tables: Iterable[Any], oldest: str, shown: str) -> None:
    """Make `tables`, or bring those that are there to the head of their history.

    `oldest`: the version of tables that do not state one. Raises UsageError for tables of a newer ggferry, and
    CorruptError where a column is absent.
    """
    tables = [*tables]
    here = set(sa.inspect(connection).get_table_names())
    if history.first not in here:
        tables[0].metadata.create_all(connection, tables=tables)
        if history.table not in here:
            _make_version_table(connection, history)
        _note(connection, history, history.head)
        return
    if history.table not in here:
        _make_version_table(connection, history)
        _note(connection, history, oldest)
    found = _version(connection, history)
    if found != history.head:
        _upgrade(connection, history, found, shown)
    _check_columns(connection, tables, shown)


def refuse_newer(what: str, found: str, expected: str, shown: str) -> UsageError:
    """Return the error for tables that a newer ggferry made."""
    return UsageError(
        f"the {what} was made by a newer ggferry",
        path=shown,
        found=f"version {found}",
        expected=f"version {expected}",
        hint="use that ggferry, or a new ledger",
    )


def _versions(history: History) -> Any:
    column: Any = sa.column("version_num")
    return sa.table(history.table, column), column


def _make_version_table(connection: Any, history: History) -> None:
    name = sa.Column("version_num", sa.String(32), primary_key=True)
    sa.Table(history.table, sa.MetaData(), name).create(connection)


def _note(connection: Any, history: History, version: str) -> None:
    table, _ = _versions(history)
    connection.execute(sa.delete(table))
    connection.execute(sa.insert(table).values(version_num=version))


def _version(connection: Any, history: History) -> str:
    table, column = _versions(history)
    found = connection.execute(sa.select(column).select_from(table)).scalars().all()
    if len(found) != 1:
        raise CorruptError(f"the version of the {history.what}", found=f"{len(found)} rows in {history.table}")
    return str(found[0])


def _upgrade(connection: Any, history: History, found: str, shown: str) -> None:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    script = ScriptDirectory(history.folder, version_locations=[history.folder])
    if found not in {each.revision for each in script.walk_revisions()}:
        raise refuse_newer(history.what, found, history.head, shown)

    def steps(revision: Any, _: Any) -> Any:
        return script._upgrade_revs(history.head, revision)

    with EnvironmentContext(Config(), script, fn=steps, destination_rev=history.head) as environment:
        environment.configure(connection=connection, version_table=history.table)
        environment.run_migrations()


def _check_columns(connection: Any, tables: Iterable[Any], shown: str) -> None:
    """Raise CorruptError where a table or a column that is asked for is absent: every later request would fail."""
    kept = sa.inspect(connection).get_multi_columns(filter_names=[table.name for table in tables])
    there = {name: {column["name"] for column in columns} for (_, name), columns in kept.items()}
    for table in tables:
        absent = {column.name for column in table.c} - there.get(table.name, set())
        if absent:
            column = min(absent)
            raise CorruptError(
                "the tables of the ledger are not as its version has them",
                path=shown,
                found=f"no column {column} in {table.name}" if table.name in there else f"no table {table.name}",
                hint="restore a backup, or use a new ledger",
            )
