"""Hunyuan 4: several streams of states; latent attention with sinks and gated, to what an indexer chooses, in some
blocks for those behind them, too; experts scored by sigmoid and chosen with a bias, gates and ups bounded.

Sources: llama.cpp `src/models/hy-v4.cpp`, `conversion/hy_v4.py`; transformers `modeling_hy_v4.py`. Published rows turn
in pairs, as llama.cpp, vLLM and MLX take them; transformers 5.23 turns them by halves. What transformers saves has
other names than what is published: both are read.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _deepseek as deepseek
from ggferry.converters.architectures import _indexer as index
from ggferry.converters.architectures import _limits as limits
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _routed as routed
from ggferry.converters.architectures import _streams as streams
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._latent import latent_attention
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Pick
from ggferry.converters.schema.roles import block, roles

F32, BOOL, STRING = common.F32, common.BOOL, common.STRING
_HF = "transformers' default"
_CHOSEN = dict.fromkeys(("indexed_attention", "sparse_attention", "deepseek_sparse_attention"), True)


HPARAMS = (
    *deepseek.SIZES[:6], HParam("n_head_kv", "attention.head_count_kv", check="n_head_kv == 1"), deepseek.QUERIES,
    *deepseek.WIDTHS, replace(deepseek.EPS[0], defaults=(Default(1e-5, _HF, dialect="hf"),)), deepseek.EPS[1],
    rope.BASE, replace(rope.KIND, words={"default": "default"}),
    *deepseek.DENSE[:2], replace(deepseek.DENSE[2], defaults=()), common.N_EXPERT, common.N_EXPERT_USED,
    common.N_FF_EXP, HParam("n_shared", "expert_shared_count", fields={"hf": "n_shared_experts"}, check="0 < n_shared"),
    *routed.NO_GROUPS, replace(routed.SCALE, defaults=(Default(2.827, _HF, dialect="hf"),)), routed.NORM,
    replace(routed.SIGMOID, required=True),
    HParam("limit", None, F32, {"hf": "swiglu_limit"}, required=False, check="0 <= limit", unrepresentable=0.0,
           defaults=(Default(10.0, _HF, dialect="hf"),)),
    limits.of_experts(limits.everywhere("limit")), streams.COUNT, streams.EPSILON,
    HParam("hc_magnitude", "hyper_connection.magnitude", F32, {"hf": "hc_magnitude"}),
    replace(index.HPARAMS[0], words=_CHOSEN), *index.HPARAMS[1:],
    HParam("index_eps", None, F32, derive=streams.epsilon),
    HParam("index_full", "attention.indexer.types", BOOL, {"hf": "indexer_types"}, length="n_layer",
           words={"full": True, "shared": False}, derive="each n == 0 or n % 4 == 1"),
    streams.always("connected", "enable_ihc"), streams.always("gated", "gated_mla"),
    streams.always("sinking", "learnable_sink"),
    HParam("gate", None, STRING, {"hf": "gating_type"}, words={"elementwise": "elementwise"}, required=False),
    common.ALL_SPARSE[0], common.TIED, common.ATTENTION_BIAS, common.SILU,
)

EXPERTS = """
ffn_gate_inp.weight f32 : n_expert n_embd          | hf mlp.gate.weight
ffn_gate_exps.weight    : n_expert n_ff_exp n_embd | hf mlp.experts.gate_up_proj @gate
ffn_down_exps.weight    : n_expert n_embd n_ff_exp | hf mlp.experts.down_proj
ffn_up_exps.weight      : n_expert n_ff_exp n_embd | hf mlp.experts.gate_up_proj @up
"""
ROUTED = "n_dense <= n"
ROLES = roles(
    tensors.embedding(),
    streams.head("model.hc_head.hc_head_"),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        latent_attention(),
        "attn_sinks.weight f32 : n_head | hf self_attn.learnable_sink_param",
        tensors.linear("attn_gate", "n_head*head_dim_v_mla n_embd", "self_attn.linear_gate"),
        index.indexer(when="index_full == 1"),
        streams.connections("hc_attn_layer.hc_pre.hc_", "hc_mlp_layer.hc_pre.hc_", "2*n_streams", 2),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(when="n < n_dense"),
        roles(EXPERTS, when=ROUTED, gate=Pick("n_expert", 0, "n_ff_exp", stacked=True),
              up=Pick("n_expert", "n_ff_exp", "2*n_ff_exp", stacked=True)),
        tensors.selection_bias("mlp.gate.e_score_correction_bias", optional=True, when=ROUTED),
        tensors.shared_experts("mlp.shared_experts.", width="n_shared*n_ff_exp", when=ROUTED),
    ),
)
HALVES = Caveat(
    "n_rot > 0",
    "rotated rows are taken in pairs, as published and as llama.cpp takes them; transformers 5.23 rotates halves",
    differs_in="transformers",
)
LAYER = "model.layers.{n}."

SPEC = Architecture(
    name="hy_v4", runtimes=("llama.cpp",),
    display_name="Hunyuan 4",
    hf_classes=("HYV4ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"latent_kv": "joint", "gate_up": "halves"},
            drops=(
                Drop("model.mtp_layers.*", "predicts further tokens for speculative decoding: no part of the decoder"),
                *deepseek.DROPS,
            ),
            fixed={"n_head_kv": 1},
            renames=(
                ("model.hc_pre.hc_head.", "model.hc_head."),
                (f"{LAYER}hc_pre.hc_attn_layer.", f"{LAYER}hc_attn_layer.hc_pre."),
                (f"{LAYER}hc_pre.hc_mlp_layer.", f"{LAYER}hc_mlp_layer.hc_pre."),
                (f"{LAYER}mlp.linear_gate.", f"{LAYER}mlp.gate_proj."),
                (f"{LAYER}mlp.shared_experts.linear_gate.", f"{LAYER}mlp.shared_experts.gate_proj."),
            ),
            caveats=(deepseek.LOW_RANK, deepseek.EPSILON, HALVES),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("num_key_value_heads", "every head has keys of its own, expanded from one"),
                IgnoredKey("head_dim", "repeats qk_rope_head_dim, or the width of heads"),
                IgnoredKey("qk_head_dim", "the sum of its two parts", follows="head_dim_mla"),
                IgnoredKey("num_nextn_predict_layers", "counts blocks that are no part of the decoder and dropped"),
                IgnoredKey("topk_method", "chosen with a bias", ("noaux_tc",)),
                IgnoredKey("learnable_sink_init", "used before training only"),
                IgnoredKey("enable_lm_head_fp32", "how it is computed"),
            ),
        ),
    ),
    recipe={
        "computation": "streams", "attention": "latent", "indexer_rope": "pairs", "indexer_turns": "last",
        "routing": "sigmoid",
    },
    caveats=(common.own_output("hy_v4"),),
)
