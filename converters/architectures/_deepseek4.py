"""What only DeepSeek V4 has: how much each block compresses, rotations of two bases, experts chosen by token.

Sources: transformers `configuration_deepseek_v4.py`; llama.cpp `src/models/deepseek4.cpp`.
"""

import math
from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Default, HParam
from ggferry.converters.schema.block_patterns import leading_dense
from ggferry.converters.schema.derivations import Values

F32, STRING = common.F32, common.STRING
_HF = "transformers' default"
SPARSE, HEAVY = 4, 128
"""How many tokens are one key: of those that an indexer chooses, and of those that are all seen."""
KINDS = {"sliding_attention": 0, "compressed_sparse_attention": SPARSE, "heavily_compressed_attention": HEAVY}


def listed_ratios(values: Values) -> tuple[int, ...]:
    """attention.compress_ratios: by kind of block, else as listed, else the default: two heavy blocks, then sparse and
    heavy ones in turn."""
    if "kinds" in values:
        return tuple(values["kinds"])
    if "ratios_stated" in values:
        return tuple(values["ratios_stated"])[: values["n_layer"]]
    return tuple(HEAVY if n < 2 or n % 2 == 0 else SPARSE for n in range(values["n_layer"]))


def all_ratios(values: Values) -> tuple[int, ...]:
    """attention.compress_ratios: `listed_ratios`, and 0 for the blocks that predict further tokens."""
    return (*listed_ratios(values)[: values["n_layer"]], *(0,) * nextn.count(values))


def _of_blocks(values: Values) -> tuple[int, ...]:
    """The ratio of each block. Raises ValueError."""
    found = tuple(values["ratios"])[: values["n_blocks"]]
    if set(found) - set(KINDS.values()):
        raise ValueError(f"compression over another number of tokens than {SPARSE} or {HEAVY}")
    return found


def _series(values: Values) -> tuple[int, ...]:
    """How many vectors a token leaves for the keys of each block: one for its own key, and one for the next."""
    return tuple(2 if ratio == SPARSE else 1 for ratio in values["ratio"])


def _declared(values: Values) -> int:
    """How many ratios a configuration lists."""
    return len(values["ratios_stated"])


def _listed(values: Values) -> int:
    """How many ratios a file lists."""
    return len(values["ratios"])


def hashed(values: Values) -> int:
    """hash_layer_count: how many blocks, the first ones, choose experts by token; transformers' default is three."""
    if "routed_kinds" in values:
        return leading_dense({"sparse_layers": values["routed_kinds"]})
    return min(int(values.get("n_hash_stated", 3)), int(values["n_layer"]))


def rotated(values: Values) -> int:
    """rope.dimension_count: a fraction of a head, or as stated, or an eighth of it."""
    fraction = values.get("rope_fraction")
    if fraction is None:
        declared = values.get("n_rot_stated")
        return int(values["head_dim"] / 8 if declared is None else declared)
    return int(values["head_dim"] * fraction)


def unscaled(values: Values) -> float:
    """What makes the magnitude of yarn's rotations 1, which V4 has whatever the factor is."""
    if values.get("rope_scaling") != "yarn":
        return 1.0
    if "nested_stretch" in values and "rope_magnitude" not in values:
        raise ValueError("rope_parameters.compress has no attention_factor, so that yarn's magnitude is not 1")
    return 1 / (0.1 * math.log(max(values["rope_factor"], 1)) + 1)


def kinds_of_blocks(values: Values) -> Values:
    """Return the kind of each block by what it compresses: the inverse of `all_ratios`."""
    return {"kinds": tuple(values["ratios"])[: values["n_layer"]]}


def routed_kinds(values: Values) -> Values:
    """Return which blocks choose experts by scores: the inverse of `hashed`."""
    return {"routed_kinds": tuple(n >= values["n_hash"] for n in range(values["n_layer"]))}


def fractions(values: Values) -> Values:
    """Return how much of a head turns, which is the same in all blocks: the inverse of `rotated`."""
    from ggferry.converters.schema.inverses.numbers import fraction  # needed for folders only

    part = fraction(values["n_rot"], values["head_dim"])
    return {"rope_fraction": part, "compress_fraction": part, "n_rot_stated": values["n_rot"]}


def magnitude(values: Values) -> Values:
    """Return the magnitude of yarn's rotations, which is 1: what makes `unscaled` take them so."""
    return {"rope_magnitude": 1.0} if values.get("rope_scaling") == "yarn" else {}


def _place(key: str) -> str:
    """Return where a configuration keeps `key` of the scaling, which the blocks that compress have."""
    return "|".join(f"{part}.{key}" for part in ("rope_parameters.compress", "rope_parameters", "rope_scaling"))


def _at(param: HParam, key: str) -> HParam:
    return replace(param, fields={"hf": _place(key)})


RATIOS = (
    HParam("kinds", None, fields={"hf": "layer_types"}, words=KINDS, length="n_layer", required=False),
    HParam("ratios_stated", None, fields={"hf": "compress_ratios"}, length="n_ratios_stated", required=False),
    HParam("n_ratios_stated", None, derive=_declared, required=False),
    HParam("ratios", "attention.compress_ratios", derive=all_ratios, length="n_ratios", undo=kinds_of_blocks,
           check="n_blocks <= n_ratios and n_ratios <= 512"),
    HParam("n_ratios", None, derive=_listed),
    HParam("ratio", None, derive=_of_blocks, length="n_blocks"),
    HParam("series", None, derive=_series, length="n_blocks"),
    HParam("sparse_rate", None, required=False, words={SPARSE: SPARSE},
           fields={"hf": "compress_rates.compressed_sparse_attention|compress_rate_csa"}),
    HParam("heavy_rate", None, required=False, words={HEAVY: HEAVY},
           fields={"hf": "compress_rates.heavily_compressed_attention|compress_rate_hca"}),
)
HASHED = (
    HParam("routed_kinds", None, common.BOOL, {"hf": "mlp_layer_types"}, length="n_layer", required=False,
           words={"hash_moe": False, "moe": True}),
    HParam("n_hash_stated", None, fields={"hf": "num_hash_layers"}, required=False),
    HParam("n_hash", "hash_layer_count", derive=hashed, undo=routed_kinds),
)
# `rope_base` and what scales it are those of blocks that compress; the others have a base of their own, unscaled.
ROTARY = (
    HParam("rope_fraction", None, F32, {"hf": "rope_parameters.main.partial_rotary_factor|partial_rotary_factor"},
           required=False),
    HParam("compress_fraction", None, F32, required=False, check="compress_fraction == rope_fraction",
           fields={"hf": "rope_parameters.compress.partial_rotary_factor|partial_rotary_factor"}),
    HParam("n_rot_stated", None, fields={"hf": "qk_rope_head_dim"}, required=False),
    HParam("n_rot", "rope.dimension_count", derive=rotated, undo=fractions,
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot <= head_dim"),
    HParam("rope_base", "attention.compress_rope_freq_base", F32,
           {"hf": "rope_parameters.compress.rope_theta|compress_rope_theta"}, check="rope_base > 1",
           defaults=(Default(160000.0, _HF, dialect="hf"),)),
    HParam("nested_stretch", None, F32, {"hf": "rope_parameters.compress.factor"}, required=False),
    HParam("rope_base_swa", "rope.freq_base", F32, {"hf": "rope_parameters.main.rope_theta|rope_theta"},
           check="rope_base_swa > 1", defaults=(Default(10000.0, _HF, dialect="hf"),)),
    HParam("main_kind", None, STRING, {"hf": "rope_parameters.main.rope_type"}, words={"default": "default"},
           required=False),
    HParam("rope_kind", None, STRING, {"hf": f"{_place('rope_type')}|{_place('type')}"}, required=False,
           words={"default": "default", "yarn": "yarn"}),
    _at(rope.STRETCH, "factor"),
    replace(rope.ORIGINAL_DECLARED, defaults=(), fields={"hf": _place("original_max_position_embeddings")}),
    replace(rope.MAGNITUDE, fields={"hf": _place("attention_factor")}, words={1: 1.0}),
    replace(rope.TRUNCATE, fields={"hf": _place("truncate")}), rope.TYPE, rope.FACTOR, rope.ORIGINAL,
    HParam("rope_attn_factor", None, F32, derive=unscaled, undo=magnitude),
    _at(rope.BETA_FAST, "beta_fast"), _at(rope.BETA_SLOW, "beta_slow"), rope.RAMP,
)
ATTENTION = """
attn_q_a.weight            : q_rank n_embd                                  | hf attn.wq_a.weight
attn_q_a_norm.weight f32   : q_rank                                         | hf attn.q_norm.weight
attn_q_b.weight            : n_head*head_dim q_rank                         | hf attn.wq_b.weight
attn_kv.weight             : head_dim n_embd                                | hf attn.wkv.weight
attn_kv_a_norm.weight f32  : head_dim                                       | hf attn.norm.weight
attn_output_a.weight       : out_groups*out_rank n_head*head_dim/out_groups | hf attn.wo_a.weight
attn_output_b.weight       : n_embd out_groups*out_rank                     | hf attn.wo_b.weight
"""
SINKS = "attn_sinks.weight f32 : n_head | hf attn.attn_sink"
PARTS = ("w1", "w2", "w3")
"""What experts' matrices are called: gate, down, up."""
