"""Where the witnesses are: `fixtures/` travels with the project, `../shared/oracle` stands beside it where it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT.parent / "shared" / "oracle"
FIXTURES = ROOT / "fixtures"


@pytest.fixture(scope="session")
def oracle() -> Path:
    """The folder of files made by other programs; skips, saying so, where it is absent."""
    if not ORACLE.is_dir():
        pytest.skip(f"no oracle at {ORACLE}")
    return ORACLE


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The committed selection of real files."""
    return FIXTURES


def legacy_manifest(root: Path) -> list[dict]:
    """The entries of a legacy-llama manifest whose files are there."""
    path = root / "MANIFEST.json"
    if not path.is_file():
        return []
    return [entry for entry in json.loads(path.read_text())["files"] if (root / entry["file"]).is_file()]
