"""Tables of families whose tensors mlx-lm changes, read as it keeps them.

Latent attention: `embed_q` and `unembed_out` are the halves of `kv_b_proj`, the former transposed head by head, which
is what GGUF has, too (mlx-lm 0.32.2 `models/deepseek_v3.py`, `mla.py`). Granite's stacks of gate and up are cut apart
(`granitemoe.py`). Norms that publishers keep as their distance from one have the one added (`models/qwen3_next.py`,
`qwen3_5.py`, `step3p5.py`: `v + 1.0`).
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.schema.architecture import Architecture, From, Role
from ggferry.converters.schema.layouts.base import SAME
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.recipe import Conventions
from ggferry.converters.schema.roles import Roles
from ggferry.converters.trainer_names.mlx_lm.names import NAME
from ggferry.formats.checkpoint import Checkpoint

ABSORBED = "embed_q.weight"
_JOINT, _STACK = "block_sparse_moe.input_linear.weight", "block_sparse_moe.switch_mlp."
OTHERWISE = {
    "attn_k_b.weight": ("kv_b_proj.weight", ABSORBED),
    "attn_v_b.weight": ("kv_b_proj.weight", "unembed_out.weight"),
    "ffn_gate_exps.weight": (_JOINT, f"{_STACK}gate_proj.weight"),
    "ffn_up_exps.weight": (_JOINT, f"{_STACK}up_proj.weight"),
    "ffn_down_exps.weight": ("block_sparse_moe.output_linear.weight", f"{_STACK}down_proj.weight"),
}
"""Role → how the names of the publisher's tensor and of mlx-lm's end, which is the role as it is."""
_COLUMN = f"{NAME}:"
"""How the name of the column begins that has the tensors as mlx-lm keeps them; the publisher's follows."""
ONE_ADDED = frozenset({"qwen3next", "qwen35", "qwen35moe", "step35"})
"""Architectures whose norms mlx-lm adds one to."""


def as_mlx_lm(architecture: Architecture, dialect: str, checkpoint: Checkpoint) -> Architecture:
    """Return the architecture whose dialect of that name has the tensors as mlx-lm keeps them.

    Where that is no other than the publisher's, it is returned as it is.
    """
    absorbed = any(name.endswith(f".{ABSORBED}") for name in checkpoint.tensors)
    one_added = architecture.name in ONE_ADDED and checkpoint.header.get("names") == NAME
    apart = any(".block_sparse_moe.switch_mlp." in name for name in checkpoint.tensors)
    if not absorbed and not one_added and not apart:
        return architecture
    naming = architecture.dialect(dialect)
    conventions: Conventions = {**naming.conventions}
    if absorbed:
        conventions["latent_kv"] = "split"
    if one_added:
        conventions["norm_offset"] = 0.0
    if apart and conventions.get("gate_up") == "halves":
        conventions["gate_up"] = "separate"
    own = replace(naming, names=_COLUMN + naming.names, fields=naming.source, conventions=conventions)

    def roles() -> tuple[Role, ...]:
        return tuple(_role(role, naming.column, own.column, one_added) for role in architecture.roles)

    # Beside it stays the publisher's, whose column the table has; of types that no model has, it is never chosen.
    publishers = replace(naming, name=f"{naming.name} of its publisher", names=naming.column, types=(NAME,))
    return replace(architecture, roles=Roles(roles)).with_dialect(own).with_dialect(publishers)


def as_published(architecture: Architecture) -> Architecture:
    """Return an architecture of `as_mlx_lm` with the publisher's dialect again, by which folders are written."""
    for naming in architecture.dialects:
        if naming.names.startswith(_COLUMN):
            names = naming.names.removeprefix(_COLUMN)
            architecture = architecture.with_dialect(replace(naming, names=names))
    return architecture


def _role(role: Role, column: str, own: str, one_added: bool) -> Role:
    origin = role.sources.get(column)
    if origin is None:
        return role
    whole, part = OTHERWISE.get(role.name.rpartition("}.")[2], ("", ""))
    if whole and origin.patterns and origin.patterns[0].endswith(whole):
        origin = From((origin.patterns[0].removesuffix(whole) + part,))
    elif one_added and origin.layout == ADD_ONE:
        origin = replace(origin, layout=SAME)
    return replace(role, sources={**role.sources, own: origin})
