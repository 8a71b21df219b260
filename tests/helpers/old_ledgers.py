"""The data folder of a server of version 0.1 (fixtures/service), put where a test wants it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from helpers.third_party_fixtures import FIXTURES

KEPT = FIXTURES / "service" / "data-0.1"
MADE_AT = "/tmp/ggferry-0.1"  # where it was when it was made: its rows hold paths


VERSION_1 = """
CREATE TABLE ggferry_jobs (
    id TEXT NOT NULL, "plan" TEXT NOT NULL, source TEXT, output TEXT, entry JSON, state TEXT NOT NULL, bucket BIGINT,
    "key" TEXT, bytes_in BIGINT, bytes_out BIGINT, attempts INTEGER, losses INTEGER, owner TEXT, lease_until DOUBLE,
    not_before DOUBLE, stage TEXT, error JSON, receipt JSON, same_as TEXT, adopted BOOLEAN, peak BIGINT,
    deleted BOOLEAN, created DOUBLE, started DOUBLE, finished DOUBLE, updated DOUBLE, PRIMARY KEY (id), UNIQUE ("key"));
CREATE TABLE ggferry_attempts (
    id INTEGER NOT NULL, job TEXT, attempt INTEGER, owner TEXT, outcome TEXT, error JSON, started DOUBLE, ended DOUBLE,
    PRIMARY KEY (id));
CREATE TABLE ggferry_schema (version INTEGER NOT NULL, PRIMARY KEY (version));
INSERT INTO ggferry_schema VALUES (1);
INSERT INTO ggferry_jobs VALUES ('00000001', 'plan', '/in/1', '/out/1', '{"bytes_in": 1}', 'running', 1, 'content', 1,
    1, 2, 1, 'somewhere/else/1:1:1', 1.0, 0.0, NULL, NULL, NULL, NULL, NULL, NULL, 0, 1.0, 1.0, NULL, 1.0);
INSERT INTO ggferry_attempts VALUES (1, '00000001', 2, 'somewhere/else/1:1:1', NULL, NULL, 1.0, NULL);
"""
"""A ledger as ggferry made them before claims were counted, with a job held by a coordinator that is gone."""


def facts(kind: str = "sqlite") -> dict[str, str]:
    """The ids of its jobs and of its upload, and a token."""
    found: dict[str, str] = json.loads(
        (KEPT / ("facts.json" if kind == "sqlite" else f"facts.{kind}.json")).read_text()
    )
    return found


def files_at(place: Path, kind: str = "sqlite") -> Path:
    """Its root and outputs, with the times by which its ledger knows the sources; the data folder is returned."""
    shutil.copytree(KEPT / "root", place / "root")
    shutil.copytree(KEPT / "data", place / "data")
    (place / "data").chmod(0o700)
    text = (KEPT / f"ledger.{kind}.sql").read_text()
    for name, time in re.findall(r'"path": "[^"]*/root/([a-z]+\.bin)", "bytes": \d+, "version": "(\d+)"', text):
        os.utime(place / "root" / name, ns=(int(time), int(time)))
    return place / "data"


def sqlite_at(place: Path) -> Path:
    """Its ledger as the file `data/ledger` below a place."""
    path = place / "data" / "ledger"
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((KEPT / "ledger.sqlite.sql").read_text().replace(MADE_AT, str(place)))
    return path


def postgres_at(url: str, place: Path) -> str:
    """Its ledger in an empty database of a PostgreSQL server."""
    import psycopg

    text = (KEPT / "ledger.postgresql.sql").read_text().replace(MADE_AT, str(place))
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        connection.execute(text.encode())
    return url


def counted(connection: Any, tables: Any) -> dict[str, int]:
    """How many rows each table has."""
    import sqlalchemy as sa

    return {
        table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables
    }
