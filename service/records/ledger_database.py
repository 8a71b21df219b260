"""The ledger's database: opened, upgraded to the current version, and asked again while it is away.

What is asked while the database is away is asked again for as long as a lease lasts, so everything that is asked must
be safe to do twice. SQLite runs with WAL and synchronous=FULL: what was acknowledged is on the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ggferry.formats.errors import CorruptError, GgferryError, NotFoundError, UnreachableError, UsageError
from ggferry.service.records.ledger_rows import HINT, DamagedError, check_row, damaged, decoded
from ggferry.service.records.ledger_tables import SCHEMA, Statements, prepare_sqlite, tables
from ggferry.service.records.ledger_url import connect_options, full_url, hide_secrets, redact
from ggferry.service.records.schema.upgrade import LEDGER, prepare, refuse_newer
from ggferry.support.heavy import sa

DAMAGED = ("Could not decode to UTF-8", "malformed JSON", "malformed database schema")
"""What SQLite says of a value in a row, and of the declaration of a table; it counts some as passing trouble."""
ENCODINGS = ("UTF8", "SQL_ASCII")  # of PostgreSQL's databases; the latter keeps bytes as they come
LOCK = 0x67676A74  # of PostgreSQL's advisory locks; any number that is ours
FIRST_WAIT, LONGEST_WAIT = 0.1, 3.0  # seconds before what failed is asked again; doubled each time

T = TypeVar("T")


class LedgerDatabase:
    """The database at a path, `sqlite:///…`, `postgresql://user@host/name`, or `env:NAME` (what that variable says).

    `patience`: for how many seconds a request is repeated while the database is away; `on_away` is called once an
    outage. Raises UsageError, NotFoundError; it and its methods raise UnreachableError when patience has run out.
    """

    def __init__(
        self,
        place: str,
        *,
        must_exist: bool = False,
        retry_timeout: float = 0.0,
        on_away: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.url = full_url(place)
        self.retry_timeout, self.on_away = retry_timeout, on_away
        self._sqlite = self.url.startswith("sqlite")
        self._leaving, self._away = threading.Event(), threading.Event()
        path = self.url.partition("///")[2]
        if self._sqlite and must_exist and not os.path.exists(path):
            raise NotFoundError("no such ledger", path=path)
        self._meta, self.jobs, self.attempts, self.schema = tables()
        self.statements = Statements(self.jobs, self.attempts)
        try:
            options = {**connect_options(self.url), "json_deserializer": decoded}
            self.engine = sa.create_engine(self.url, **options)
            self.readers = self.engine
            if self._sqlite:
                prepare_sqlite(self.engine)
                self.readers = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", **options)
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            words = f"this ledger needs a package: {hide_secrets(str(error), self.url)}"
            raise UsageError(words, hint="pip install 'ggferry[postgres]'") from None
        self._do(self._make_tables)

    @property
    def shown(self) -> str:
        """Where it is, for people: without passwords."""
        return redact(self.url)

    def close(self) -> None:
        self.engine.dispose()
        self.readers.dispose()

    def hurry(self) -> None:
        """Have no more patience in any thread: the run is ending."""
        self._leaving.set()

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A transaction that is on the disk when it ends."""
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A connection for queries; it locks nobody out."""
        with self.readers.connect() as connection:
            yield connection

    def _do(self, work: Callable[[Any], T], *, reads: bool = False) -> T:
        """Do `work` in a transaction of its own, again and again while the database is away.

        Whether a transaction took effect is not known when its answer was lost, so `work` must be safe to do twice.
        `reads`: it changes nothing, and waits for no writer.
        """
        until, wait = time.monotonic() + self.retry_timeout, FIRST_WAIT
        while True:
            try:
                with self.reading() if reads else self.transaction() as connection:
                    result = work(connection)
                self._away.clear()
                return result
            except sa.exc.IntegrityError:
                raise
            except (DamagedError, UnicodeDecodeError) as error:
                raise self._damaged(str(error)) from None
            except sa.exc.SQLAlchemyError as error:
                words = self._message(error)
                if any(each in words for each in DAMAGED):
                    raise self._damaged(words) from None
                if not _passes(error):
                    raise GgferryError(f"the ledger: {words}", path=self.shown) from None
                if time.monotonic() + wait > until or self._leaving.is_set():
                    raise self._gone(words) from None
                if not self._away.is_set():
                    self._away.set()
                    self.on_away(f"the ledger cannot be reached, asking again for {self.retry_timeout:g} s: {words}")
            self._leaving.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _gone(self, words: str) -> UnreachableError:
        waited = f" for {self.retry_timeout:g} s" if self.retry_timeout else ""
        hint = "the same command continues" if self.retry_timeout else None
        path = self.shown
        return UnreachableError(f"the ledger could not be reached{waited}: {words}", path=path, hint=hint)

    def _damaged(self, words: str) -> CorruptError:
        """Return the error for a value that cannot be read, naming the first job that has such a one."""
        broken = (DamagedError, UnicodeDecodeError, sa.exc.SQLAlchemyError)
        try:
            with self.reading() as connection:
                for job in connection.execute(sa.select(self.jobs.c.id).order_by(self.jobs.c.id)).scalars().all():
                    try:
                        connection.execute(sa.select(self.jobs).where(self.jobs.c.id == job)).all()
                    except broken:
                        return damaged(self.shown, job, words)
        except broken:
            return CorruptError(f"the tables of the ledger are damaged: {words}", path=self.shown, hint=HINT)
        return damaged(self.shown, "in its attempts", words)

    def read_each(self, ids: Sequence[str]) -> tuple[list[dict[str, Any]], list[CorruptError]]:
        """Return the rows of some jobs, and an error for each whose row cannot be read or holds what it cannot.

        The rows are asked for one by one, since one damaged row ends a query for several.
        """
        found: list[dict[str, Any]] = []
        errors: list[CorruptError] = []
        for job in ids:
            query = sa.select(self.jobs).where(self.jobs.c.id == job)
            try:
                with self.reading() as connection:
                    rows = [dict(row._mapping) for row in connection.execute(query)]
                for row in rows:
                    check_row(row, self.shown)
                found += rows
            except CorruptError as error:
                errors.append(error)
            except (DamagedError, UnicodeDecodeError, sa.exc.SQLAlchemyError) as error:
                words = self._message(error)
                if isinstance(error, sa.exc.SQLAlchemyError) and not any(each in words for each in DAMAGED):
                    raise self._gone(words) from None
                errors.append(damaged(self.shown, job, words))
        return found, errors

    def _message(self, error: Exception) -> str:
        """Return the first line of the driver's message, without passwords."""
        lines = str(getattr(error, "orig", None) or error).strip().splitlines()
        return hide_secrets(lines[0] if lines else type(error).__name__, self.url)

    def _now(self, connection: Any) -> float:
        """Return seconds since 1970 by the clock all holders share.

        It is the server's or, for a local file, this machine's.
        """
        if self._sqlite:
            return time.time()
        return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def _make_tables(self, connection: Any) -> None:
        """Make the tables, or bring older ones up to date.

        Raises UsageError for those of a newer ggferry, and for a database that cannot hold every name of a file.
        """
        self._alone(connection)
        self._check_encoding(connection)
        version = SCHEMA
        declared = sa.inspect(connection).has_table(self.schema.name)
        if declared and (found := connection.execute(sa.select(self.schema.c.version)).scalars().all()):
            version = max(found)
        if version > SCHEMA:
            raise refuse_newer(LEDGER.what, str(version), str(SCHEMA), self.shown)
        prepare(connection, LEDGER, (self.jobs, self.attempts, self.schema), f"{version:04}", self.shown)
        if not connection.execute(sa.select(self.schema.c.version)).scalars().all():
            connection.execute(sa.insert(self.schema).values(version=SCHEMA))

    def _check_encoding(self, connection: Any) -> None:
        encoding = "UTF8" if self._sqlite else connection.execute(sa.text("SHOW server_encoding")).scalar_one()
        if encoding not in ENCODINGS:
            words = "the ledger's database cannot hold every name of a file"
            hint = "createdb --encoding UTF8 --template template0 NAME"
            raise UsageError(words, path=self.shown, found=f"encoding {encoding}", expected="UTF8", hint=hint)

    def _alone(self, connection: Any) -> None:
        """Wait until nobody else registers jobs or creates tables; SQLite's transactions exclude each other anyway."""
        if not self._sqlite:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({LOCK})"))


def _passes(error: Exception) -> bool:
    """Return whether the trouble may be over in a moment.

    It may when the server is away, starting, full, or read-only after a change of its role, and when the file is locked
    or its disk full; not for a damaged file, or a table that is missing or not ours.
    """
    kinds = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError, sa.exc.TimeoutError)
    return isinstance(error, kinds) or bool(getattr(error, "connection_invalidated", False))
