"""Every mistake of `planted.py`, planted in a process of its own: the one that is named must notice.

What our own proof notices without asking anybody is counted, and may not become less. A mistake takes a second of CPU,
so that all but a few are slow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laws.mutations import workshop as program
from laws.mutations.models import MODELS
from laws.mutations.planted import PLANTED
from laws.mutations.rows import ALONE, Planted

import ggferry

NOTICED_ALONE = 61
"""Mistakes of the table that a proof notices for which nobody else is asked."""
EARLIER = "second reader"
"""Who may notice before the one that a row names: it is asked by default, and before the witnesses."""
SAMPLE = ("rows of queries stay halves", "every tensor one row early")
ROOT = Path(ggferry.__file__).parent


class Workshop:
    """The process that mistakes are planted in, and the models that they are shown with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, set[str]()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
        self.process = subprocess.Popen(
            [sys.executable, program.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment, cwd=folder,
        )

    def ask(self, task: str, *arguments: str, planted: Any = ()) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(
            json.dumps({"task": task, "arguments": arguments, "planted": planted}), file=self.process.stdin, flush=True
        )
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "crash" not in answer, answer["crash"]
        return answer

    def model(self, name: str) -> str:
        """The path of the model, made once."""
        path = str(self.folder / f"{name.replace(' ', '-')}{Path(MODELS[name].kind).suffix}")
        if name not in self.made:
            self.ask("make_model", name, path)
            self.made.add(name)
        return path

    def proof(self, model: str, planted: Any = ()) -> dict[str, Any]:
        """Who notices what while the model is converted."""
        return self.ask("full_proof", model, self.model(model), str(self.folder / "out.gguf"), planted=planted)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    found = Workshop(tmp_path_factory.mktemp("planted"))
    yield found
    found.close()


@pytest.mark.parametrize("row", PLANTED, ids=lambda row: row.name)
def test_every_text_stands_where_a_mistake_takes_its_place(row: Planted) -> None:
    texts: dict[str, str] = {}
    for module, old, new in row.changes:
        text = texts.get(module) or (ROOT / f"{module.replace('.', '/')}.py").read_text()
        texts[module] = program.patched(text, [(old, new)], module)
        compile(texts[module], module, "exec") if new != "\0" else None


def test_every_row_has_a_name_and_a_model_of_its_own() -> None:
    assert len({row.name for row in PLANTED}) == len(PLANTED) and {row.model for row in PLANTED} == set(MODELS)
    assert set(SAMPLE) <= {row.name for row in PLANTED}


def test_the_number_of_those_that_our_own_proof_notices_does_not_fall(capsys: pytest.CaptureFixture[str]) -> None:
    alone = sum(row.by in ALONE for row in PLANTED)
    told = sum(row.by == "loader" for row in PLANTED)
    rest = len(PLANTED) - alone - told
    with capsys.disabled():
        print(
            f" {len(PLANTED)} of {len(PLANTED)}: {alone} by our own proof, {told} by the list, {rest} by witnesses ",
            end="",
        )
    assert alone >= NOTICED_ALONE


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_nobody_notices_anything_where_there_is_nothing(model: str, workshop: Workshop) -> None:
    found = workshop.proof(model)
    assert found["by"] is None and not found["told"], found
    assert "transformers" in found["said"] or MODELS[model].kind.startswith(
        ("fixtures/legacy", "fixtures/lora", "fixtures/qwen3-tts", "pocket tts")
    ), found


@pytest.mark.parametrize(
    "row", [row if row.name in SAMPLE else pytest.param(row, marks=pytest.mark.slow) for row in PLANTED],
    ids=lambda row: row.name,
)
def test_a_planted_mistake_is_noticed(row: Planted, workshop: Workshop) -> None:
    found = workshop.proof(row.model, planted=row.changes)
    noticed = ("loader" if found["told"] else None, found["by"])
    assert row.by in noticed or found["by"] == EARLIER, found
