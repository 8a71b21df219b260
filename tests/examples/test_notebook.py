"""The notebook of examples/ prints in a Jupyter kernel what it was committed with."""

from __future__ import annotations

import re
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from helpers.third_party_fixtures import ROOT

NAME = "first_conversion.ipynb"


@pytest.mark.slow
def test_it_prints_what_it_was_committed_with() -> None:
    examples = ROOT / "examples"
    committed = nbformat.read(examples / NAME, as_version=4)
    nbformat.validate(committed)
    executed = nbformat.from_dict(committed)
    for cell in executed.cells:
        cell.pop("outputs", None)
        if cell.cell_type == "code":
            cell.outputs = []
    options = Config()
    options.KernelManager.kernel_name = "python3"
    NotebookClient(executed, resources={"metadata": {"path": str(examples)}}, config=options).execute()
    outputs = [printed(cell) for cell in executed.cells]
    assert outputs == [printed(cell) for cell in committed.cells]
    assert sum("proof, 149088 bytes" in text for text in outputs) == 1 and sum("<svg" in text for text in outputs) == 1


def printed(cell: Any) -> str:
    """What a cell shows, without the figures of float32 sums, whose last digits differ between processors."""
    texts = [output.get("text") or output.data.get("image/svg+xml", "") for output in cell.get("outputs", ())]
    return re.sub(r"KL divergence \S+, same top token \d+%", "KL divergence", "".join(texts))
