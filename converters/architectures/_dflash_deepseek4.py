"""DSpark in DeepSeek V4's form: a draft whose blocks are those of its target, with several streams and experts.

The checkpoint of the target holds it (`mtp.{n}.`, deepseek-ai/DeepSeek-V4-Flash-DSpark): what reads the target's states
in its first block, what makes one state of the streams and DSpark's heads in its last. Sources: llama.cpp
`src/models/dflash.cpp`, `graph_dsv4`; SGLang `deepseek_v4_dspark.py`; DeepSeek's `inference/model.py`, `DSparkBlock`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek4 as deepseek4
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _streams as streams
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import roles

F32, BOOL = common.F32, common.BOOL
NAME = "deepseek4"
CLASS = "DeepseekV4DSparkModel"
LAYER = "stages.{n}."
"""How the names of a block's tensors begin here, so that they are none of the decoder's."""
BUNDLED = ("DeepseekV4ForCausalLM", "dspark_target_layer_ids")
_HF = "transformers' default"


def _optional(param: HParam, value: object = None) -> HParam:
    """Return an hparam that other drafts lack; `value` is what transformers takes where a configuration is silent."""
    defaults = () if value is None else (Default(value, _HF, dialect=NAME),)
    return replace(param, required=False, defaults=defaults)


def blocks(values: Values) -> int:
    """block_count: the draft's blocks are counted beside the target's, where it is in the target's checkpoint."""
    if values.get("n_streams") and values.get("stages_stated"):
        return int(values["stages_stated"])
    return int(values["blocks_stated"])


def _inner_width(values: Values) -> int | None:
    """feed_forward_length: blocks of experts have none."""
    return None if values.get("n_streams") else values.get("n_ff_stated")


def _ratios(values: Values) -> tuple[int, ...] | None:
    """attention.compress_ratios: no block of a draft compresses."""
    return (0,) * int(values["n_layer"]) if values.get("n_streams") else None


SIZES = (
    HParam("stages_stated", None, fields={"hf": "dspark_num_layers|num_nextn_predict_layers"}, required=False),
    HParam("blocks_stated", None, fields={"hf": common.N_LAYER.fields["hf"]}, required=False),
    replace(common.N_LAYER, derive=blocks, fields={}),
    HParam("n_ff_stated", None, fields=common.N_FF.fields, required=False),
    replace(common.N_FF, derive=_inner_width, fields={}, required=False),
)
"""Of every draft: what one of several streams says otherwise."""
HPARAMS = (
    replace(streams.COUNT, absent=0, check="0 <= n_streams"),
    _optional(streams.EPSILON), _optional(streams.ITERATIONS),
    HParam("q_rank", "attention.q_lora_rank", fields={"hf": "q_lora_rank"}, required=False, check="0 < q_rank"),
    HParam("out_groups", "attention.output_group_count", fields={"hf": "o_groups"}, required=False,
           check="0 < out_groups and n_head % out_groups == 0"),
    HParam("out_rank", "attention.output_lora_rank", fields={"hf": "o_lora_rank"}, required=False),
    HParam("ratios", "attention.compress_ratios", derive=_ratios, length="n_layer", required=False),
    _optional(common.N_EXPERT), _optional(common.N_EXPERT_USED),
    HParam("n_ff_exp", "expert_feed_forward_length", fields={"hf": "moe_intermediate_size"}, required=False),
    HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, required=False, check="n_shared == 1",
           defaults=(Default(1, _HF, dialect=NAME),)),
    HParam("expert_scale", "expert_weights_scale", F32, {"hf": "routed_scaling_factor"}, required=False,
           unrepresentable=0.0, defaults=(Default(1.5, _HF, dialect=NAME),)),
    HParam("expert_norm", "expert_weights_norm", BOOL, {"hf": "norm_topk_prob"}, words={True: True}, required=False,
           defaults=(Default(True, _HF, dialect=NAME),)),
    HParam("expert_gating", "expert_gating_func", fields={"hf": "scoring_func"}, words={"sqrtsoftplus": 4},
           required=False, check="expert_gating == 4", defaults=(Default(4, _HF, dialect=NAME),)),
    HParam("limit", None, F32, {"hf": "swiglu_limit"}, required=False, check="0 <= limit", unrepresentable=0.0,
           defaults=(Default(10.0, _HF, dialect=NAME),)),
    limits.of_experts(limits.everywhere("limit")),
    limits.of_shared(limits.everywhere("limit"), implied=limits.of_the_others),
)
BLOCK = (
    *roles(deepseek4.ATTENTION),
    *streams.connections("hc_attn_", "hc_ffn_", "(2+n_streams)*n_streams", 3),
    *tensors.experts("ffn.experts.{e}.", "ffn.gate", deepseek4.PARTS),
    *tensors.selection_bias("ffn.gate.bias"),
    *tensors.shared_experts("ffn.shared_experts.", deepseek4.PARTS, width="n_ff_exp"),
)
"""What its blocks have besides norms and sinks."""
OWN_NAMES = """
output_norm.weight        last.norm.weight
blk.{n}.attn_norm.weight  stages.{n}.attn_norm.weight
blk.{n}.ffn_norm.weight   stages.{n}.ffn_norm.weight
blk.{n}.attn_sinks.weight stages.{n}.attn.attn_sink
"""
FOUR = Caveat(
    "n_streams != 0 and n_streams != 4", "llama.cpp stops: it has four streams, and here they are {n_streams}",
    unsupported_by="llama.cpp",
)
DROPS = tuple(
    Drop(f"{at}{name}*", "of the decoder: a draft takes over its target's embeddings and output matrix")
    for at in ("", "model.") for name in ("layers.", "embed.", "embed_tokens.", "head.", "norm.", "hc_head", "lm_head.")
)
_MOVED = (
    ("main_proj.", "fc."), ("main_norm.", "hidden_norm."), ("norm.", "last.norm."), ("hc_head_", "last.hc_head_"),
    ("markov_head.", "markov_head."), ("confidence_head.", "confidence_head."),
    ("attn.kv_norm.", f"{LAYER}attn.norm."), ("", LAYER),
)
RENAMES = tuple((f"{at}mtp.{{n}}.{name}", other) for at in ("", "model.") for name, other in _MOVED)
IGNORED_KEYS = IgnoredKey(
    "dspark_markov_rank compress_ratios compress_rope_theta compress_rate_* compress_rates.* index_* num_hash_layers "
    "rope_scaling.* rope_parameters.compress.* mlp_layer_types",
    "of the decoder, whose blocks compress, and whose first ones choose experts by the token; or of tensors",
)
