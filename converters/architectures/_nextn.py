"""Blocks that predict further tokens, behind those of the decoder: carried where `--mtp` asks for them.

GGUF counts them in `block_count` and says in `nextn_predict_layers` how many they are; each is an ordinary block with
experts, and has a few tensors more (llama.cpp `glm4-moe.cpp`, `deepseek2.cpp`; names: gguf-py `NEXTN_*`). In a
checkpoint they are the layers after the last. Our forward pass does not use them.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import roles

BLOCKS = {"blk.": "n_blocks"}
DROP = replace(routed.NEXT_TOKENS, when="n >= n_layer and mtp == 0")


def _count(values: Values) -> int:
    """nextn_predict_layers: as stated, where they are asked for."""
    return int(values["nextn_stated"]) if values["mtp"] else 0


def _layers(values: Values) -> int:
    """The decoder's blocks: those that block_count counts, but for those that predict further tokens."""
    return int(values["n_blocks"]) - int(values.get("n_nextn") or 0)


HPARAMS = (
    replace(common.N_LAYER, key=None, derive=_layers),
    HParam("mtp", None, common.BOOL, required=False, defaults=(Default(False, "not asked for", dialect="hf"),)),
    HParam("nextn_stated", None, fields={"hf": "num_nextn_predict_layers"}, required=False,
           defaults=(Default(0, "none is stated", dialect="hf"),)),
    HParam("n_nextn", "nextn_predict_layers", derive=_count, absent=0, check="n_nextn < n_blocks"),
    HParam("n_blocks", "block_count", derive="n_layer + n_nextn"),
)
CAVEAT = Caveat(
    "n_nextn > 0",
    "{n_nextn} block(s) that predict further tokens are carried along and compared value by value; the forward "
    "passes of the proof do not use them",
)
IGNORED_KEYS = IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder and dropped")


def counted(hparams: Sequence[HParam]) -> tuple[HParam, ...]:
    """Return `hparams` with such blocks counted apart from those of the decoder."""
    return tuple(one for param in hparams for one in (HPARAMS if param is common.N_LAYER else (param,)))


def dropped(drops: Sequence[Drop]) -> tuple[Drop, ...]:
    """Return `drops` which take such blocks only where nobody asks for them."""
    return tuple(DROP if drop.when == "n >= n_layer" else drop for drop in drops)


def tensors() -> Sequence[Role]:
    """Return what such a block has more than an ordinary one."""
    return roles(
        """
        nextn.eh_proj.weight                    : n_embd 2*n_embd | hf eh_proj.weight
        nextn.enorm.weight f32                  : n_embd          | hf enorm.weight
        nextn.hnorm.weight f32                  : n_embd          | hf hnorm.weight
        nextn.embed_tokens.weight optional      : n_vocab n_embd  | hf embed_tokens.weight
        nextn.shared_head_head.weight optional  : n_vocab n_embd  | hf shared_head.head.weight
        nextn.shared_head_norm.weight f32 optional : n_embd       | hf shared_head.norm.weight
        """,
        when="n >= n_layer",
    )
