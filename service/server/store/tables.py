"""The server's tables, and the triggers that note every change of a job's state, whoever makes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ggferry.support.heavy import sa

EVENTS_LOCK = 0x67676A75  # of PostgreSQL's advisory locks; any number that is ours


def server_tables(meta: Any) -> SimpleNamespace:
    """Return the server's tables by name, as part of `meta`. Times are seconds since 1970, sizes bytes."""
    text, number, real, data, column = sa.Text, sa.BigInteger, sa.Double, sa.JSON, sa.Column
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    tokens = sa.Table(
        "ggferry_tokens", meta,
        column("id", text, primary_key=True), column("name", text, nullable=False), column("kind", text),
        column("scope", text, nullable=False), column("digest", text, nullable=False), column("parent", text),
        column("created", real), column("expires", real), column("used", real), column("quota", number),
        column("rate", real), column("made_by", text),
    )
    plans = sa.Table(
        "ggferry_plans", meta,
        column("id", text, primary_key=True), column("state", text, nullable=False), column("source", text),
        column("options", data), column("token", text), column("body", text), column("trees", data),
        column("summary", data), column("error", data(none_as_null=True)), column("created", real),
        column("submitted", real), column("owner", text), column("run", text),
    )
    models = sa.Table(
        "ggferry_models", meta,
        column("id", text, primary_key=True), column("plan", text, index=True), column("source", text),
        column("name", text), column("folder", text, index=True), column("container", text),
        column("version", sa.Integer), column("era", text), column("architecture", text), column("types", text),
        column("bytes_in", number), column("bytes_out", number), column("verdict", text), column("reason", text),
        column("planned", real),
        sa.Index("ggferry_models_name", "name", "id"), sa.Index("ggferry_models_source", "source", "id"),
        sa.Index("ggferry_models_bytes", "bytes_in", "id"),
    )
    uploads = sa.Table(
        "ggferry_uploads", meta,
        column("id", text, primary_key=True), column("token", text, index=True), column("state", text),
        column("files", data), column("bytes", number), column("summary", data),
        column("error", data(none_as_null=True)), column("created", real), column("updated", real),
        column("purpose", text),
    )
    received = sa.Table(
        "ggferry_received", meta,
        column("upload", text, primary_key=True), column("file", sa.Integer, primary_key=True),
        column("offset", number, nullable=False), column("sha256", text),
    )
    pieces = sa.Table(
        "ggferry_pieces", meta,
        column("upload", text, primary_key=True), column("file", sa.Integer, primary_key=True),
        column("start", number, primary_key=True), column("bytes", number, nullable=False),
        column("url", text, nullable=False),
    )
    events = sa.Table(
        "ggferry_events", meta,
        column("id", key, primary_key=True, autoincrement=True), column("job", text, index=True),
        column("plan", text), column("state", text), column("attempt", sa.Integer),
        column("error", data(none_as_null=True)), column("at", real),
        sqlite_autoincrement=True,
    )
    answers = sa.Table(
        "ggferry_answers", meta,
        column("token", text, primary_key=True), column("key", text, primary_key=True), column("request", text),
        column("status", sa.Integer), column("headers", data), column("body", text), column("created", real),
    )
    outputs = sa.Table(
        "ggferry_outputs", meta,
        column("job", text, primary_key=True), column("file", sa.Integer, primary_key=True), column("path", text),
        column("bytes", number), column("blake3", text), column("sha256", text), column("stamp", text),
    )
    asked = sa.Table(
        "ggferry_asked", meta,
        column("job", text, primary_key=True), column("token", text, index=True), column("name", text),
        column("at", real),
    )
    hooks = sa.Table(
        "ggferry_webhooks", meta,
        column("id", text, primary_key=True), column("url", text), column("secret", text), column("created", real),
        column("seen", number),
    )
    notices = sa.Table(
        "ggferry_notices", meta,
        column("id", text, primary_key=True), column("hook", text, index=True), column("body", text),
        column("tries", sa.Integer), column("next", real, index=True), column("done", real), column("error", text),
    )
    audit = sa.Table(
        "ggferry_audit", meta,
        column("id", key, primary_key=True, autoincrement=True), column("at", real), column("actor", text),
        column("token", text), column("address", text), column("action", text), column("subject", text),
        column("status", sa.Integer), column("request", text, unique=True), column("detail", text),
        sa.Index("ggferry_audit_at", "at"),
        sqlite_autoincrement=True,
    )
    qualities = sa.Table(
        "ggferry_qualities", meta,
        column("id", text, primary_key=True), column("job", text, index=True), column("token", text),
        column("name", text), column("state", text, nullable=False), column("sha256", text),
        column("characters", number), column("context", sa.Integer), column("chunks", sa.Integer),
        column("total", sa.Integer), column("result", data(none_as_null=True)),
        column("error", data(none_as_null=True)), column("created", real), column("owner", text),
    )
    return SimpleNamespace(
        audit=audit, qualities=qualities, pieces=pieces,
        tokens=tokens, plans=plans, models=models, uploads=uploads, received=received, events=events, answers=answers,
        outputs=outputs, hooks=hooks, notices=notices, asked=asked,
    )


_COLUMNS = "(job, plan, state, attempt, error, at)"
_SQLITE_NEW = "SELECT NEW.id, NEW.plan, NEW.state, NEW.attempts, NEW.error, (julianday('now') - 2440587.5) * 86400.0"
_PG_NEW = "NEW.id, NEW.plan, NEW.state, NEW.attempts, NEW.error, extract(epoch FROM clock_timestamp())"
TRIGGERS = {
    "sqlite": (
        f"""CREATE TRIGGER IF NOT EXISTS ggferry_job_entered AFTER INSERT ON ggferry_jobs
        BEGIN INSERT INTO ggferry_events {_COLUMNS} {_SQLITE_NEW}; END""",
        f"""CREATE TRIGGER IF NOT EXISTS ggferry_job_changed AFTER UPDATE OF state, claims ON ggferry_jobs
        WHEN OLD.state IS NOT NEW.state OR OLD.claims IS NOT NEW.claims
        BEGIN INSERT INTO ggferry_events {_COLUMNS} {_SQLITE_NEW}; END""",
    ),
    "postgresql": (
        f"""CREATE OR REPLACE FUNCTION ggferry_note_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' OR OLD.state IS DISTINCT FROM NEW.state OR OLD.claims IS DISTINCT FROM NEW.claims THEN
        PERFORM pg_advisory_xact_lock({EVENTS_LOCK});
        INSERT INTO ggferry_events {_COLUMNS} SELECT {_PG_NEW}; END IF; RETURN NULL; END $$""",
        "DROP TRIGGER IF EXISTS ggferry_job_noted ON ggferry_jobs",
        """CREATE TRIGGER ggferry_job_noted AFTER INSERT OR UPDATE ON ggferry_jobs
        FOR EACH ROW EXECUTE FUNCTION ggferry_note_job()""",
    ),
}
"""Statements by dialect. In PostgreSQL the lock makes the order of ids that of the commits, so that a reader who has
seen an id has seen all smaller ones; SQLite has one writer at a time anyway."""
