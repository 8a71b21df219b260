"""Jamba: Mamba, one block of attention a period, and experts in the feed-forward of every second block.

Sources: llama.cpp `src/models/jamba.cpp`, `conversion/jamba.py`; transformers `modeling_jamba.py`. Nothing is turned by
position; the time step and the selections of the state space are normed, with weights.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.values import NEG_EXP
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

BOOL = ValueType.BOOL


HPARAMS = (
    common.N_VOCAB, common.N_CTX, common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD,
    hybrid.HEADS_KV_DECLARED,
    hybrid.declared("attn_period", "attn_layer_period", 8), hybrid.declared("attn_offset", "attn_layer_offset", 4),
    HParam("attends", None, BOOL, length="n_layer", required=False, derive=hybrid.attending),
    hybrid.HEADS_KV, common.HEAD_DIM, common.HEAD_DIM_V,
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "mamba_d_conv"}),
    HParam("n_inner", "ssm.inner_size"),
    HParam("n_state", "ssm.state_size", fields={"hf": "mamba_d_state"}),
    HParam("dt_rank", "ssm.time_step_rank"),  # a configuration may say "auto": the tensors say what that was
    common.RMS_EPS,
    HParam("experts_stated", None, fields=common.N_EXPERT.fields, required=False),
    replace(common.N_EXPERT, fields={}, derive=hybrid.experts),
    *hybrid.USED_WHERE_THERE_ARE_EXPERTS,
    hybrid.declared("expert_period", "expert_layer_period", 2),
    hybrid.declared("expert_offset", "expert_layer_offset", 1),
    HParam("sparse", None, BOOL, length="n_layer", required=False, derive=hybrid.sparse_layers),
    HParam("conv_bias", None, BOOL, {"hf": "mamba_conv_bias"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    hybrid.PROJECTED, common.TIED, common.SILU,
)

MAMBA = """
ssm_in.weight         : 2*n_inner n_embd          | hf mamba.in_proj.weight
ssm_conv1d.weight f32 : n_inner n_conv            | hf mamba.conv1d.weight @conv
ssm_conv1d.bias when=conv_bias == 1 : n_inner     | hf mamba.conv1d.bias
ssm_x.weight          : dt_rank+2*n_state n_inner | hf mamba.x_proj.weight
ssm_dt.weight         : n_inner dt_rank           | hf mamba.dt_proj.weight
ssm_dt.bias           : n_inner                   | hf mamba.dt_proj.bias
ssm_dt_norm.weight f32 : dt_rank                  | hf mamba.dt_layernorm.weight
ssm_b_norm.weight f32 : n_state                   | hf mamba.b_layernorm.weight
ssm_c_norm.weight f32 : n_state                   | hf mamba.c_layernorm.weight
ssm_a f32             : n_inner n_state           | hf mamba.A_log @rate
ssm_d f32             : n_inner                   | hf mamba.D
ssm_out.weight        : n_embd n_inner            | hf mamba.out_proj.weight
"""
ROLES = roles(
    tensors.embedding(last_norm="model.final_layernorm"),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        roles(MAMBA, when="n_head_kv == 0", conv=hybrid.CONV, rate=NEG_EXP),
        tensors.attention(when="n_head_kv > 0"),
        tensors.norm("ffn_norm", "pre_ff_layernorm"),
        tensors.gated("feed_forward.", when="sparse == 0"),
        tensors.experts("feed_forward.experts.{e}.", "feed_forward.router", width="n_ff", when="sparse == 1"),
    ),
)

SPEC = Architecture(
    name="jamba", runtimes=("llama.cpp",),
    display_name="Jamba",
    hf_classes=("JambaForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"decay": "log"},
            drops=common.DROPS,
            ignored_keys=(common.UNBIASED, *hybrid.MAMBA_IGNORED_KEYS,
                IgnoredKey("mamba_dt_rank", "the tensors say it")),
        ),
    ),
    recipe={"rope": "none", "decay": "rate"},
    caveats=(
        Caveat("conv_bias == 0", "short convolutions without biases: llama.cpp expects them in Jamba's",
               unsupported_by="llama.cpp"),
    ),
)
SPEC = half.with_base(SPEC, "JambaModel")
