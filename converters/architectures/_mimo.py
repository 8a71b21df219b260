"""MiMo-V2: which blocks have a window, how far it reaches, and how many heads of keys they have."""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.schema.architecture import Default, HParam, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import Regroup
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import varied
from ggferry.formats.limits import MAX_LAYERS


def sinks(name: str, place: str, default: bool) -> HParam:
    """Return whether blocks of a kind have sinks."""
    why = (Default(default, "transformers' default", dialect="hf"),)
    return HParam(name, None, common.BOOL, {"hf": place}, required=False, defaults=why)


def window_layers(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window where nothing lists them: all but the first and every sixth."""
    count = values["n_layer"]
    if not 0 < count <= MAX_LAYERS:
        raise ValueError(f"{count} blocks")
    return tuple(n > 0 and (n + 1) % 6 != 0 for n in range(count))


FOUND = HParam("nextn_found", None, required=False)
PREDICTING = replace(nextn.DECLARED, fields={"gguf": nextn.COUNT}, derive="nextn_found")
"""No key of a configuration counts the blocks that predict further tokens; the publisher's have three."""


def windows_and_further(values: Values) -> tuple[bool, ...]:
    """Return which blocks have a window: those that predict further tokens have one (SGLang 0.5.23, `MiMoV2MTPLayer`).
    """
    return (*(values.get("kinds") or window_layers(values)), *(True,) * nextn.count(values))


def window(values: Values) -> int:
    """Return how many tokens a window holds: `sliding_window_size` counts those before the current one."""
    if "window_before" in values:
        return int(values["window_before"]) + 1
    return int(values["window_stated"])


def heads_of_windows(values: Values) -> int:
    """Return the heads of keys in blocks with a window: twice those of the others (transformers)."""
    return 2 * int(values["heads_kv_full"])


def heads_by_window(values: Values) -> tuple[int, ...]:
    """Return the heads of keys, block by block."""
    return tuple(values["heads_kv_swa" if window else "heads_kv_full"] for window in values["swa_layers"])


def ranks(values: Values) -> int:
    """Return how many ranks of tensor parallelism one matrix of queries, keys and values is cut for: as many as heads
    of keys (SGLang 0.5.23, `get_mimo_v2_fused_qkv_expected_tp_size`). Raises ValueError where nothing says that it is.
    """
    if not values["fused"]:
        return 1
    if values.get("qkv_layout") != "fused_qkv":
        raise ValueError(
            "queries, keys and values are one matrix; neither attention_projection_layout nor scales of FP8 say for "
            "how many ranks it is cut"
        )
    return int(values["heads_kv_full"])


QUERIES, KEYS, VALUES = "n_head*head_dim", "n_head_kv*head_dim", "n_head_kv*head_dim_v"
_PARTS = Regroup("n_ranks", tuple(f"{rows}/n_ranks" for rows in (QUERIES, KEYS, VALUES)))
RANKED = """
    blk.{n}.attn_q.weight model.layers.{n}.self_attn.qkv_proj.weight @queries
    blk.{n}.attn_k.weight model.layers.{n}.self_attn.qkv_proj.weight @keys
    blk.{n}.attn_v.weight model.layers.{n}.self_attn.qkv_proj.weight @values
    blk.{n}.attn_q.bias   model.layers.{n}.self_attn.qkv_proj.bias @queries
    blk.{n}.attn_k.bias   model.layers.{n}.self_attn.qkv_proj.bias @keys
    blk.{n}.attn_v.bias   model.layers.{n}.self_attn.qkv_proj.bias @values
"""


def with_ranked(table: Sequence[Role]) -> Sequence[Role]:
    """Return `table` with the dialect of MiMo-V2.5, whose queries, keys and values lie rank by rank."""
    return varied(
        table, "ranked", "hf", RANKED,
        queries=Then(_PARTS, Split(0, QUERIES)), keys=Then(_PARTS, Split(QUERIES, f"{QUERIES}+{KEYS}")),
        values=Then(_PARTS, Split(f"{QUERIES}+{KEYS}", f"{QUERIES}+{KEYS}+{VALUES}")),
    )
