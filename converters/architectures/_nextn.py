"""Blocks that predict further tokens, behind those of the decoder: carried, or dropped with `--no-mtp`.

GGUF counts them in `block_count` and says in `nextn_predict_layers` how many they are; each is an ordinary block with
experts, and has a few tensors more (llama.cpp `glm4-moe.cpp`, `deepseek2.cpp`; names: gguf-py `NEXTN_*`). In a
checkpoint they are the layers after the last. Their forward pass: `forward.computations.decoder.logits_and_further`.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Derivation, Values
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.columns import SideBySide
from ggferry.converters.schema.roles import roles

COUNT = "nextn_predict_layers"
BLOCKS = {"blk.": "n_blocks"}
DROP = replace(routed.NEXT_TOKENS, when="n >= n_layer and mtp == 0")


def count(values: Values) -> int:
    """nextn_predict_layers: as stated, where they are carried."""
    return int(values["nextn_stated"]) if values["mtp"] else 0


def decoder_blocks(values: Values) -> int:
    """The decoder's blocks: those that block_count counts, but for those that predict further tokens."""
    return int(values["n_blocks"]) - int(values.get("n_nextn") or 0)


DECLARED = HParam("nextn_stated", None, fields={"hf": "num_nextn_predict_layers", "gguf": COUNT}, required=False,
                defaults=(Default(0, "none is declared", dialect="hf"),))
HPARAMS = (
    replace(common.N_LAYER, key=None, derive=decoder_blocks),
    HParam("mtp", None, common.BOOL, required=False, defaults=(Default(False, "not carried", dialect="hf"),)),
    DECLARED,
    HParam("n_nextn", COUNT, derive=count, absent=0, check="n_nextn < n_blocks"),
    HParam("n_blocks", "block_count", derive="n_layer + n_nextn"),
)
ONE = Caveat(
    "n_nextn > 1",
    "{n_nextn} blocks predict further tokens: llama.cpp computes one of this architecture, and ends when it drafts",
    differs_in="llama.cpp",
)
IGNORED_KEYS = IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder")


def counted(hparams: Sequence[HParam], declared: HParam = DECLARED) -> tuple[HParam, ...]:
    """Return `hparams` with such blocks counted apart from those of the decoder; `declared` says how many they are."""
    counts = tuple(declared if param is DECLARED else param for param in HPARAMS)
    return tuple(one for param in hparams for one in (counts if param is common.N_LAYER else (param,)))


def dropped(drops: Sequence[Drop]) -> tuple[Drop, ...]:
    """Return `drops` which take such blocks only where nobody asks for them."""
    return tuple(DROP if drop.when == "n >= n_layer" else drop for drop in drops)


def extended(derive: Derivation, value: int) -> Derivation:
    """Return a derivation: the list that `derive` makes of the decoder's blocks, and `value` for each one behind."""

    def each(values: Values) -> tuple[int, ...]:
        return (*derive(values), *(value,) * count(values))

    each.__name__ = derive.__name__  # by which the way back is found (`schema/inverses/`)
    return each


def wiring(norm: Layout = SAME) -> Sequence[Role]:
    """Return what leads into such a block; `norm`: how norms are stored."""
    return roles(
        """
        nextn.eh_proj.weight   : n_embd 2*n_embd | hf eh_proj.weight
        nextn.enorm.weight f32 : n_embd          | hf enorm.weight @norm
        nextn.hnorm.weight f32 : n_embd          | hf hnorm.weight @norm
        """,
        when="n >= n_layer",
        norm=norm,
    )


def two_matrices(embedding: str, hidden: str) -> Sequence[Role]:
    """Return what leads into such a block, of two matrices by these names: columns of one in GGUF."""
    return roles(
        f"nextn.eh_proj.weight : n_embd 2*n_embd | hf {embedding}.weight {hidden}.weight @beside", when="n >= n_layer",
        beside=SideBySide(),
    )


def tensors(norm: Layout = SAME) -> Sequence[Role]:
    """Return what such a block has more than an ordinary one; `norm`: how norms are stored."""
    further = roles(
        """
        nextn.embed_tokens.weight optional      : n_vocab n_embd  | hf embed_tokens.weight
        nextn.shared_head_head.weight optional  : n_vocab n_embd  | hf shared_head.head.weight
        nextn.shared_head_norm.weight f32 optional : n_embd       | hf shared_head.norm.weight @norm
        """,
        when="n >= n_layer",
        norm=norm,
    )
    return (*wiring(norm), *further)
