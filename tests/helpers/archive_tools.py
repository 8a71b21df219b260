"""Archives for the tests: folders of small models, good and bad, and the commands run on them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.plan import make_plan as planning
from ggferry.service.records.plan_file import write_plan
from helpers.builders import Llama

GGFERRY = [sys.executable, "-m", "ggferry"]
TOKENS = {"AWS_SECRET_ACCESS_KEY": "never", "HF_TOKEN": "never", "PGPASSWORD": "never"}


def command(*arguments: str | Path, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """A command line run to its end; its exit code must be `code` (None: any)."""
    done = subprocess.run(
        [*GGFERRY, *map(str, arguments)], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def plan(root: Path | str, out: Path, *options: str | Path, **env: str) -> list[dict[str, Any]]:
    """`ggferry plan`; the lines of the file, without the head."""
    command("plan", root, "-o", out, *options, **env)
    return [json.loads(line) for line in out.read_text().splitlines()][1:]


def rows(ledger: Path | str) -> dict[str, dict[str, Any]]:
    """The ledger's jobs by source."""
    done = command("ledger", "list", ledger, "--json")
    return {row["source"]: row for row in map(json.loads, done.stdout.splitlines())}


def write(path: Path, model: Llama) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return model.write(path)


class Canary:
    """Unpickled, it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.path}'",)


def hostile_pickle(path: Path, canary: Path) -> Path:
    """A zip that torch.load without weights_only would run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weight": Canary(canary)}, 2))
        archive.writestr("archive/version", "3\n")
    return path


def spoil(root: Path, fixtures: Path, canary: Path) -> dict[str, str]:
    """Put everything bad and odd into an archive: path below root → state that the ledger must end with."""
    good = fixtures / "legacy-llama" / "ggjt3-20230821" / "q8_0.bin"
    (root / "odd").mkdir(parents=True)
    data = good.read_bytes()
    (root / "odd" / "cut.bin").write_bytes(data[:-1])
    (root / "odd" / "half.bin").write_bytes(data[: len(data) // 2])
    (root / "odd" / "page.pth").write_text("<!DOCTYPE html><title>404</title>")
    (root / "odd" / "empty.gguf").write_bytes(b"")
    (root / "odd" / "pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (root / "odd" / "notes.txt").write_text("models of 2023\n")
    (root / "odd" / "old.zip").write_bytes(b"PK\5\6" + bytes(18))
    (root / "odd" / "lost.bin.1").write_bytes(data)
    hostile_pickle(root / "odd" / "hostile.pth", canary)
    (root / "missing").mkdir()
    Llama(n_ff=192, kind="F16", container="ggmf", version=1).write(root / "missing" / "big.bin", parts=3)
    (root / "missing" / "big.bin.1").unlink()
    missing = {"missing/big.bin": "quarantined"}
    bad = ("cut.bin", "half.bin", "page.pth", "empty.gguf", "pointer.safetensors", "hostile.pth", "lost.bin.1")
    states = {f"odd/{name}": "quarantined" for name in bad} | missing
    return states | {"odd/notes.txt": "skipped", "odd/old.zip": "skipped"}


def planned(root: Path | str, dest: Path | str, out: Path, verify: str = "fast", **edits: dict[str, Any]) -> Path:
    """As `plan`, in this process. `edits`: fields to change in the lines of sources whose name begins so."""
    head, entries = planning.plan(planning.PlanRequest((str(root),), str(dest), verify=verify))
    for name, fields in edits.items():
        entries = [
            replace(each, **fields) if os.path.basename(each.source).startswith(name) else each for each in entries
        ]
    write_plan(str(out), head, entries, overwrite=True)
    return out


def applied(path: Path, **asked: Any) -> tuple[Migration, list[dict[str, Any]]]:
    """As `apply -j 1`, in this process: the run, which has its ledger open, and its events."""
    events: list[dict[str, Any]] = []
    migration = Migration(MigrationRequest(str(path), f"{path}.ledger", **asked), events.append)
    migration.run(migration.prepare())
    return migration, events


def states(migration: Migration) -> dict[str, str]:
    """State by the name of the source."""
    return {os.path.basename(row["source"]): row["state"] for row in migration.ledger.rows(full=False)}
