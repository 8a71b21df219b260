"""Granite 4 and Bamba: Mamba-2, and blocks of attention between; Granite's without positions, with or without experts.

Source: llama.cpp `src/models/granite-hybrid.cpp`, `conversion/granite.py`; transformers
`modeling_{granitemoehybrid,bamba}.py`. Bamba turns a part of each head, and only its rows change their order; today's
convert_hf_to_gguf moves those of the whole head, which makes another model.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _granite as granite
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import rotary_halves_to_pairs
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL
_FRACTION = "rope_parameters.partial_rotary_factor|rope_scaling.partial_rotary_factor"
_BAMBA = "hf_class == 'BambaForCausalLM'"


_LOGITS = replace(granite.SCALES[-1], absent=0.0)  # Bamba has none
HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_HEAD,
    replace(hybrid.HEADS_KV_DECLARED, implied=hybrid.as_many_heads_kv),
    *hybrid.ATTENDS_DECLARED, hybrid.ATTENDS,
    hybrid.HEADS_KV, common.HEAD_DIM, common.HEAD_DIM_V,
    HParam("ff_stated", None, fields={"hf": "intermediate_size"}, required=False),
    HParam("ff_shared", None, fields={"hf": "shared_intermediate_size"}, required=False),
    common.N_EXPERT, *hybrid.USED_WHERE_THERE_ARE_EXPERTS,
    HParam("n_ff", "feed_forward_length", derive=granite.dense_width),
    HParam("n_ff_shexp", "expert_shared_feed_forward_length", derive=granite.shared_width, absent=0),
    common.RMS_EPS,
    replace(granite.ROTATES, defaults=(Default(True, "Bamba turns them", when=_BAMBA, dialect="bamba"),
                                       Default(False, "transformers' default", dialect="hf"))),
    rope.BASE, replace(rope.FRACTION, fields={"hf": _FRACTION}, derive=hybrid.rotated_part),
    rope.N_ROT, rope.KIND, *rope.SCALING, *granite.SCALES[:-1], _LOGITS, *hybrid.MAMBA2,
    common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        hybrid.mamba2(when="n_head_kv == 0"),
        tensors.attention(
            q=rotary_halves_to_pairs("n_head"), k=rotary_halves_to_pairs("heads_kv"), when="n_head_kv > 0",
            bias="attention_bias == 1", output_bias="attention_bias == 1",
        ),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated("feed_forward.", when="n_expert == 0", bias="mlp_bias == 1"),
    ),
)
MIXTURE = block(granite.experts(), granite.fused_gated("n_ff_shexp", "_shexp"), when="n_expert > 0")
BAMBA = """
output_norm.weight      model.final_layernorm.weight
blk.{n}.ffn_norm.weight model.layers.{n}.pre_ff_layernorm.weight
"""
WIDTH = Caveat(
    "n_inner != 2 * n_embd",
    "the state space is {n_inner} wide for a model of {n_embd}; llama.cpp loads twice that only",
    unsupported_by="llama.cpp",
)

HF = Dialect(
    "hf", conventions={"rope": "halves", "ffn": "fused", "gate_up": "halves", "decay": "log"}, drops=common.DROPS,
    caveats=(*rope.CAVEATS, WIDTH), ignored_keys=hybrid.MAMBA_IGNORED_KEYS,
)

SPEC = Architecture(
    name="granitehybrid", runtimes=("llama.cpp",),
    display_name="Granite 4",
    hf_classes=("GraniteMoeHybridForCausalLM", "BambaForCausalLM"),
    hparams=HPARAMS,
    roles=roles(
        varied(varied(ROLES, "bamba", "hf", BAMBA), "dense", "hf", granite.FUSED, gate=granite.GATE, up=granite.UP),
        MIXTURE,
    ),
    dialects=(
        HF,
        replace(
            HF, name="dense", fields="hf", classes=("GraniteMoeHybridForCausalLM",),
            forbidden_tensors=("*.block_sparse_moe.*",)
        ),
        replace(
            HF, name="bamba", fields="hf", classes=("BambaForCausalLM",),
            conventions={"rope": "halves", "decay": "log"},
            # It has none of Granite's multipliers, and turns whatever position_embedding_type says.
            fixed={"attn_scale": 0.0, "logit_scale": 0.0, "embedding_scale": 1.0, "residual_scale": 1.0,
                   "rope_layers": True},
            ignored_keys=(*HF.ignored_keys,
                IgnoredKey("partial_rotary_factor", "0.5 to the class, whatever is stated", values=(0.5,)),
                IgnoredKey("attn_rotary_emb", "the turned part of a head", follows="n_rot")),
        ),
    ),
    recipe={"logit_scale": "divide", "routing": "chosen", "decay": "rate"},
)
