"""Where the witnesses are: files that other programs made, and what those programs computed from them.

`fixtures/` travels with the project and has one of every kind. The variable GGFERRY_CORPUS may name a folder of the
same layout with more of them: what only that folder has becomes further cases of the same tests, marked `corpus`.
Without the variable those cases do not exist; no test is skipped.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from helpers.peers import Record, is_record, record_of

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
VARIABLE = "GGFERRY_CORPUS"
CORPUS = Path(os.environ[VARIABLE]).resolve() if os.environ.get(VARIABLE) else None
ROOTS = (FIXTURES, CORPUS) if CORPUS else (FIXTURES,)
"""In the order in which they are asked."""

Entry = tuple[Path, dict[str, Any]]
"""A manifest's folder, and what it says of one file."""

SUFFIXES = ("", ".json", ".gz")
"""A GGUF may be kept as a record (peers.py), a large text in compressed form."""


def witness(name: str) -> Path:
    """The file or folder `name`, or what is kept in its place. Raises FileNotFoundError for what nobody has."""
    for root in ROOTS:
        for suffix in SUFFIXES if Path(name).suffix in (".gguf", ".json") else ("",):
            if (root / (name + suffix)).exists():
                return root / (name + suffix)
    raise FileNotFoundError(f"no {name} in {' or '.join(map(str, ROOTS))}")


def has(name: str) -> bool:
    """Whether there is such a witness."""
    try:
        return witness(name).exists()
    except FileNotFoundError:
        return False


def listed(pattern: str) -> list[str]:
    """Every witness whose name matches, sorted; a record under the name of the file it stands for."""
    found: set[str] = set()
    for root in ROOTS:
        for suffix in ("", ".json") if pattern.endswith(".gguf") else ("",):
            found |= {str(path.relative_to(root)).removesuffix(suffix) for path in root.glob(pattern + suffix)}
    return sorted(found)


def is_committed(name: str) -> bool:
    """Whether `fixtures/` has it, and not the corpus alone."""
    return witness(name).is_relative_to(FIXTURES)


def cases(found: Iterable[str], name: str = "{}", slow: Container[str] = ()) -> list[ParameterSet]:
    """Parameters of a test, one a case: those of `found` whose witness `name` (with the case in it) is there.

    Cases that only the corpus has are marked so; those among `slow` are slow.
    """
    parameters = []
    for case in found:
        if has(name.format(case)):
            marks = [] if is_committed(name.format(case)) else [pytest.mark.corpus]
            marks += [pytest.mark.slow] if case in slow else []
            parameters.append(pytest.param(case, marks=marks, id=case))
    return parameters


def root_cases() -> list[ParameterSet]:
    """Parameters of a test that goes through all there is: `fixtures/`, and the corpus where there is one."""
    return [pytest.param(FIXTURES, id="fixtures")] + [
        pytest.param(root, marks=pytest.mark.corpus, id="corpus") for root in ROOTS[1:]
    ]


def read_json(name: str) -> Any:
    """A JSON witness, unpacked where it is kept compressed."""
    path = witness(name)
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def record(name: str) -> Record:
    """What another program's GGUF says of itself, whether it is kept as a record or whole."""
    path = witness(name)
    return json.loads(path.read_text()) if is_record(path) else record_of(path, "", "")


def hf_models() -> dict[str, dict[str, Any]]:
    """The checkpoints that are there, by name, as the manifest of `hf/` describes them."""
    found: dict[str, dict[str, Any]] = {}
    for root in ROOTS:
        models = json.loads((root / "hf" / "MANIFEST.json").read_text())["models"]
        found |= {name: models[name] for name in models if name not in found and (root / "hf/ckpt" / name).is_dir()}
    return found


def hf_tokens() -> list[int]:
    """The ids of which the logits under `hf/out` are."""
    return json.loads((FIXTURES / "hf" / "MANIFEST.json").read_text())["tokens"]


def legacy_llama() -> list[Entry]:
    """The GGML-era LLaMA files that are there, as their manifests describe them."""
    return _entries("legacy-llama", lambda found: found["files"])


def legacy_other() -> list[Entry]:
    """The same of the other families; files that hold no model have no `hparams` and are left out."""
    return [entry for entry in _entries("legacy-other", lambda found: found) if "hparams" in entry[1]]


def _entries(folder: str, files: Callable[[Any], list[dict[str, Any]]]) -> list[Entry]:
    found: dict[str, Entry] = {}
    for root in ROOTS:
        for entry in files(json.loads((root / folder / "MANIFEST.json").read_text())):
            if (root / folder / entry["file"]).is_file():
                found.setdefault(entry["file"], (root / folder, entry))
    return list(found.values())


def entry_cases(entries: Iterable[Entry], quick: Iterable[str] | None = None) -> list[ParameterSet]:
    """Parameters (root, entry) of a test, one an entry, marked as `cases` does; all but those of `quick` are slow."""
    chosen = None if quick is None else set(quick)
    parameters = []
    for root, entry in entries:
        marks = [] if root.is_relative_to(FIXTURES) else [pytest.mark.corpus]
        marks += [] if chosen is None or entry["file"] in chosen else [pytest.mark.slow]
        parameters.append(pytest.param(root, entry, marks=marks, id=entry["file"]))
    return parameters
