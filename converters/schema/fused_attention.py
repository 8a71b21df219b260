"""Queries, keys and values of a block in one tensor, `attn_qkv`: written with `--fuse-qkv`, and read from any file.

llama.cpp reads either form (`create_tensor_qkv` in `llama-model.cpp`, b11549); convert_hf_to_gguf.py writes this one
with `--fuse-qkv` (`conversion/base.py`): rows of queries, then keys, then values, each in GGUF's order, biases alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from ggferry.converters.schema.architecture import Architecture, From, Role
from ggferry.converters.schema.layouts.base import SAME, Then
from ggferry.converters.schema.layouts.parts import Concat, Split
from ggferry.converters.schema.roles import Roles, both
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import UsageError

FUSED = "blk.{n}.attn_qkv."
"""How the names of the fused matrix and of its bias begin."""
MATRIX = f"{FUSED}weight"
_PARTS = ("blk.{n}.attn_q.", "blk.{n}.attn_k.", "blk.{n}.attn_v.")
FURTHER, DECODER = "n >= n_layer", "n < n_layer"
"""The blocks that predict further tokens, and those before them."""
_OTHERS = {FURTHER: DECODER, DECODER: FURTHER}
_WRITTEN = re.compile(r"blk\.\d+\.attn_qkv\.weight")


def is_fused(checkpoint: Checkpoint) -> bool:
    """Return whether a GGUF file has queries, keys and values of some block in one tensor."""
    return checkpoint.container == "gguf" and any(map(_WRITTEN.fullmatch, checkpoint.tensors))


def was_fused(checkpoint: Checkpoint, table: Architecture) -> bool:
    """Return whether a GGUF file has in one tensor what the table of its architecture has apart."""
    return is_fused(checkpoint) and can_be_fused(table)


def is_joined(architecture: Architecture) -> bool:
    """Return whether the architecture is one that `fused` made of all blocks."""
    if any(role.name.startswith(_PARTS[0]) for role in architecture.roles):
        return False
    found = (role for role in architecture.roles if role.name == MATRIX)
    layouts = (origin.layout for role in found for origin in role.sources.values())
    return any(isinstance(layout, Concat) and layout.rows for layout in layouts)


def fused_where(checkpoint: Checkpoint, table: Architecture) -> str:
    """Return in which blocks of such a GGUF file the three are one tensor; empty for all of them.

    Those that predict further tokens may differ: of MiMo-V2 llama.cpp drafts by one tensor alone, and its converter
    fuses the decoder's alone.
    """
    if not table.further_fused or not any(".attn_q.weight" in name for name in checkpoint.tensors):
        return ""
    return DECODER if MATRIX.format(n=0) in checkpoint.tensors else FURTHER


def can_be_fused(architecture: Architecture) -> bool:
    """Return whether the table has the three apart, all of them in the same blocks, and nothing else of that name."""
    found = {role.name: role for role in architecture.roles}
    parts = [found.get(f"{start}weight") for start in _PARTS]
    whole = [role for role in parts if role is not None and not role.optional]
    biases = [f"{start}bias" in found for start in _PARTS]
    apart = MATRIX not in found and len(whole) == 3 and len({role.when for role in whole}) == 1
    transposed = any("attn_q" in dialect.conventions.get("transposed", ()) for dialect in architecture.dialects)
    return apart and not transposed and (all(biases) or not any(biases))


def fused(architecture: Architecture, where: str = "") -> Architecture:
    """Return the architecture with one role in place of three, and of three biases. The table must allow it.

    With `where`, only in blocks of which this condition holds, `FURTHER` or `DECODER`: the others have the three.
    """
    found = {role.name: role for role in architecture.roles}
    joined = {end: _joined([found[f"{start}{end}"] for start in _PARTS]) for end in _ends(found)}
    gone = {f"{start}{end}" for start in _PARTS[1:] for end in joined}

    def made() -> tuple[Role, ...]:
        kept = (role for role in architecture.roles if where or role.name not in gone)
        return tuple(one for role in kept for one in each(role))

    def each(role: Role) -> tuple[Role, ...]:
        end = _end(role.name)
        if not where:
            return (joined.get(end, role),)
        apart = replace(role, when=both(role.when, _OTHERS[where])) if role.name.startswith(_PARTS) else role
        return (replace(joined[end], when=both(role.when, where)), apart) if end in joined else (apart,)

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
    """Return where a dialect keeps the three; None where it is neither three tensors whose rows are copied, nor one."""
    origins = [part.sources[column] for part in parts if column in part.sources]
    if len(origins) == len(parts) and len({origin.patterns for origin in origins}) == 1:
        return _whole(origins)
    patterns = tuple(origin.patterns[0] for origin in origins if len(origin.patterns) == 1 and not origin.computed)
    if len(set(patterns)) < len(parts) or not all(origin.layout.block_safe for origin in origins):
        return None
    layouts = tuple(origin.layout for origin in origins)
    each = layouts if any(layout != SAME for layout in layouts) else ()
    return From(patterns, Concat(each, tuple(part.shape[0] for part in parts)))


def _whole(origins: list[From]) -> From | None:
    """Return where a dialect keeps all three in one tensor, whose rows a layout puts in order; else None.

    They are then cut from it one behind another.
    """
    layouts = [origin.layout for origin in origins]
    cut = [layout.second for layout in layouts if isinstance(layout, Then) and isinstance(layout.second, Split)]
    first = layouts[0]
    consecutive = len(cut) == len(layouts) and all(a.stop == b.start for a, b in pairwise(cut))
    if not (consecutive and isinstance(first, Then) and cut[0].start == 0 and first.first.block_safe):
        return None
    alike = all(isinstance(layout, Then) and layout.first == first.first for layout in layouts)
    return From(origins[0].patterns, first.first) if alike else None
