"""The ledger's tables, and the settings that make SQLite keep its promises."""

from __future__ import annotations

from typing import Any

from ggferry.support.heavy import sa

SCHEMA = 2
"""What `ggferry_schema` states; a ggferry refuses a ledger that states more. It rises where an older ggferry, which may
run beside this one, could no longer work with the tables; every change of them is a module of `schema/versions/`."""


def tables() -> tuple[Any, Any, Any, Any]:
    """Return metadata and the tables jobs, attempts, schema.

    Times are seconds since 1970, sizes bytes. A job's `claims` only grows: its value at a claim is that claim's token.
    `ticket` is the request that made the last claim.
    """
    meta = sa.MetaData()
    text, number, real, data, column = sa.Text, sa.BigInteger, sa.Double, sa.JSON, sa.Column
    jobs = sa.Table(
        "ggferry_jobs", meta,
        column("id", text, primary_key=True), column("plan", text, nullable=False), column("source", text),
        column("output", text), column("entry", data), column("state", text, nullable=False), column("bucket", number),
        column("key", text, unique=True), column("bytes_in", number), column("bytes_out", number),
        column("attempts", sa.Integer), column("losses", sa.Integer), column("owner", text),
        column("lease_until", real), column("not_before", real), column("stage", text),
        column("error", data(none_as_null=True)), column("receipt", data(none_as_null=True)), column("same_as", text),
        column("adopted", sa.Boolean), column("peak", number), column("deleted", sa.Boolean), column("created", real),
        column("started", real), column("finished", real), column("updated", real),
        column("claims", number, nullable=False, server_default="0"), column("ticket", text),
        sa.Index("ggferry_jobs_queue", "plan", "state", "attempts"),
    )
    attempts = sa.Table(
        "ggferry_attempts", meta,
        column("id", sa.Integer, primary_key=True, autoincrement=True), column("job", text, index=True),
        column("attempt", sa.Integer), column("owner", text), column("outcome", text),
        column("error", data(none_as_null=True)), column("started", real), column("ended", real),
        column("token", number),
    )
    return meta, jobs, attempts, sa.Table("ggferry_schema", meta, column("version", sa.Integer, primary_key=True))


def prepare_sqlite(engine: Any) -> None:
    """Set WAL, commits to disk, and transactions that lock at once, so that no claim is based on stale data."""

    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, below
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=60000"):
            connection.execute(f"PRAGMA {pragma}")

    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sa.event.listen(engine, "connect", on_connect)
    sa.event.listen(engine, "begin", on_begin)
