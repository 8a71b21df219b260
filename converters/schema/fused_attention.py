"""Queries, keys and values of a block in one tensor, `attn_qkv`: written with `--fuse-qkv`, and read from any file.

llama.cpp reads either form (`create_tensor_qkv` in `llama-model.cpp`, b11549); convert_hf_to_gguf.py writes this one
with `--fuse-qkv` (`conversion/base.py`): rows of queries, then keys, then values, each in GGUF's order, biases alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.schema.architecture import Architecture, From, Role
from ggferry.converters.schema.layouts import SAME, Concat
from ggferry.converters.schema.roles import Roles
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UsageError

FUSED = "blk.{n}.attn_qkv."
"""How the names of the fused matrix and of its bias begin."""
MATRIX = f"{FUSED}weight"
_PARTS = ("blk.{n}.attn_q.", "blk.{n}.attn_k.", "blk.{n}.attn_v.")
_WRITTEN = re.compile(r"blk\.\d+\.attn_qkv\.weight")


def is_fused(checkpoint: Checkpoint) -> bool:
    """Return whether a GGUF file has queries, keys and values of some block in one tensor."""
    return checkpoint.container == "gguf" and any(map(_WRITTEN.fullmatch, checkpoint.tensors))


def was_fused(checkpoint: Checkpoint, table: Architecture) -> bool:
    """Return whether a GGUF file has in one tensor what the table of its architecture has apart."""
    return is_fused(checkpoint) and can_be_fused(table)


def is_joined(architecture: Architecture) -> bool:
    """Return whether the architecture is one that `fused` made."""
    found = (role for role in architecture.roles if role.name == MATRIX)
    layouts = (origin.layout for role in found for origin in role.sources.values())
    return any(isinstance(layout, Concat) and layout.rows for layout in layouts)


def can_be_fused(architecture: Architecture) -> bool:
    """Return whether the table has the three apart, all of them in the same blocks, and nothing else of that name."""
    found = {role.name: role for role in architecture.roles}
    parts = [found.get(f"{start}weight") for start in _PARTS]
    whole = [role for role in parts if role is not None and not role.optional]
    biases = [f"{start}bias" in found for start in _PARTS]
    apart = MATRIX not in found and len(whole) == 3 and len({role.when for role in whole}) == 1
    transposed = any("attn_q" in dialect.conventions.get("transposed", ()) for dialect in architecture.dialects)
    return apart and not transposed and (all(biases) or not any(biases))


def fused(architecture: Architecture) -> Architecture:
    """Return the architecture with one role in place of three, and of three biases. The table must allow it."""
    found = {role.name: role for role in architecture.roles}
    joined = {end: _joined([found[f"{start}{end}"] for start in _PARTS]) for end in _ends(found)}
    gone = {f"{start}{end}" for start in _PARTS[1:] for end in joined}

    def made() -> tuple[Role, ...]:
        kept = (role for role in architecture.roles if role.name not in gone)
        return tuple(joined[role.name[-len(end) :]] if (end := _end(role.name)) in joined else role for role in kept)

    return replace(architecture, roles=Roles(made))


def check_fusing(architecture: Architecture, column: str, path: str) -> None:
    """Raise UsageError where queries, keys and values of a checkpoint cannot be fused; `column` has its names."""
    reason = "the checkpoint's table keeps them in one tensor, computes them, or has them not in the same blocks"
    if can_be_fused(architecture):
        if column in fused(architecture).role(MATRIX).sources:
            return
        reason = "the checkpoint has them in one tensor, or in rows that are not copied as they are"
    raise UsageError(f"--fuse-qkv: not for this model: {reason}", path=path, found=architecture.name)


def _end(name: str) -> str:
    return name.removeprefix(_PARTS[0]) if name.startswith(_PARTS[0]) else ""


def _ends(found: Mapping[str, Role]) -> list[str]:
    return [end for end in ("weight", "bias") if f"{_PARTS[0]}{end}" in found]


def _joined(parts: list[Role]) -> Role:
    """Return the role of what holds the rows of all three, under the names of each dialect that has them apart."""
    first = parts[0]
    sources = {column: made for column in first.sources if (made := _source(parts, column)) is not None}
    rows = "+".join(part.shape[0] for part in parts)
    return replace(
        first,
        name=FUSED + _end(first.name),
        shape=(rows, *first.shape[1:]),
        sources=sources,
        optional=any(part.optional for part in parts),
    )


def _source(parts: list[Role], column: str) -> From | None:
    """Return where a dialect keeps the three; None where they are not three tensors whose rows are copied."""
    origins = [part.sources[column] for part in parts if column in part.sources]
    patterns = tuple(origin.patterns[0] for origin in origins if len(origin.patterns) == 1 and not origin.computed)
    if len(set(patterns)) < len(parts) or not all(origin.layout.block_safe for origin in origins):
        return None
    layouts = tuple(origin.layout for origin in origins)
    each = layouts if any(layout != SAME for layout in layouts) else ()
    return From(patterns, Concat(each, tuple(part.shape[0] for part in parts)))
