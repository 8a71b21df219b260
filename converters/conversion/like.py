"""The recipe by which another GGUF file was quantized: the type of every tensor as that file has it.

Publishers choose types tensor by tensor; what they chose stands in their file's table. The recipe is a text like any
other (docs/recipes.md): a line a role where all its tensors agree, and lines of single tensors after it.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import UsageError
from ggferry.formats.files.local_files import Named
from ggferry.formats.gguf.values import Value
from ggferry.quant.recipes.file_types import file_types

_BLOCK = re.compile(r"^((?:\w+\.)*blk\.)\d+(\..*)$")
FLOATS = ("F32", "F16", "BF16", "F64")


def recipe_like(path: str) -> str:
    """Return the text of a recipe that gives every tensor the type that it has in the GGUF file at `path`.

    Any shard of a split file stands for all of them. Raises UsageError for another container and for a file without
    tensors, and what opening it raises.
    """
    checkpoint = open_checkpoint(Named(path))
    checkpoint.close()
    if checkpoint.container != "gguf" or not checkpoint.tensors:
        raise UsageError("--like", path=path, found=checkpoint.container, expected="a GGUF file with tensors")
    types = {name: ref.type.name for name, ref in checkpoint.tensors.items() if len(ref.shape) > 1}
    declared = checkpoint.metadata.get("general.file_type")
    kind = file_types().get(declared.data) if isinstance(declared, Value) and isinstance(declared.data, int) else None
    name = re.sub(r"[^A-Za-z0-9._-]", "_", os.path.basename(path).removesuffix(".gguf"))
    head = [f"recipe    like-{name}", f"default   {most_common(types)}", *([f"file_type {kind.name}"] if kind else [])]
    return "\n".join([*head, "", *lines_of_types(types)]) + "\n"


def most_common(types: Mapping[str, str]) -> str:
    """Return the type that most quantized matrices have, or most of all where none is quantized."""
    counted = Counter(kind for kind in types.values() if kind not in FLOATS) or Counter(types.values())
    return counted.most_common(1)[0][0] if counted else "F16"


def lines_of_types(types: Mapping[str, str]) -> list[str]:
    """Return the lines: of a role in all blocks the type of most of them, then the tensors that differ."""
    roles: dict[str, dict[str, str]] = defaultdict(dict)
    for name, kind in types.items():
        match = _BLOCK.match(name)
        roles[f"{match[1]}*{match[2]}" if match else name][name] = kind
    lines, exceptions = [], []
    for role, found in roles.items():
        usual = Counter(found.values()).most_common(1)[0][0]
        lines.append(f"{role} -> {usual}")
        exceptions += [f"{name} -> {kind}" for name, kind in found.items() if kind != usual]
    return [*lines, *exceptions]
