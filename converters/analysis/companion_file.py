"""The other half of a multimodal model: in the same checkpoint, or in the file beside this one."""

from __future__ import annotations

import os
from typing import Any

from ggferry.converters.metadata.beside import MAX_RECEIPT, MMPROJ, RECEIPT, TEXT, mmproj_name
from ggferry.converters.model_graph.gguf_edits import architecture_name, projector_types
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import CLIP, understand_projector
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError
from ggferry.formats.json_files.text import load_object
from ggferry.formats.reader import Kind, kind_of


def other_half(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return what is known of a model's other half, as plain data; None where there is none, or none is found.

    Of a checkpoint that is the vision or audio encoder, which an mmproj file will hold. Of a GGUF file it is the file
    that its
    receipt names, or that has its name but for llama.cpp's prefix.
    """
    try:
        kind = kind_of(checkpoint.container)
        return _within(checkpoint) if kind is Kind.TRAINING else _beside(checkpoint) if kind is Kind.GGUF else None
    except GgferryError:
        return None


def _within(checkpoint: Checkpoint) -> dict[str, Any] | None:
    graph = understand_projector(checkpoint)
    if graph is None:
        return None
    refs = {ref.name: ref.nbytes for node in graph.nodes for ref in node.inputs}
    return {
        "kind": MMPROJ,
        "architecture": graph.architecture.projector,
        "tensors": len(refs),
        "bytes": sum(refs.values()),
        "file": None,
    }


def _beside(checkpoint: Checkpoint) -> dict[str, Any] | None:
    is_mmproj = architecture_name(checkpoint) == CLIP
    folder, name = os.path.split(checkpoint.path)
    for other in _names(checkpoint.path, name, is_mmproj):
        path = os.path.join(folder, other)
        if other == name or not os.path.isfile(path):
            continue
        found = open_checkpoint(path)
        try:
            if found.container == "gguf" and (architecture_name(found) == CLIP) is not is_mmproj:
                kind = TEXT if is_mmproj else MMPROJ
                what = architecture_name(found) if is_mmproj else projector_types(found)
                return {
                    "kind": kind,
                    "architecture": what,
                    "tensors": len(found.tensors),
                    "bytes": found.nbytes,
                    "file": other,
                }
        finally:
            found.close()
    return None


def _names(path: str, name: str, is_mmproj: bool) -> list[str]:
    """Return the names under which the other half may stand beside a file."""
    plain = name.removeprefix(f"{MMPROJ}-") if is_mmproj else mmproj_name(name)
    if not os.path.isfile(path + RECEIPT):
        return [plain]
    files = load_object(path + RECEIPT, MAX_RECEIPT).get(TEXT if is_mmproj else MMPROJ)
    declared = [file.get("name") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    return [*(os.path.basename(one) for one in declared if isinstance(one, str)), plain]
