"""PLaMo 2 (Preferred Networks): state spaces with a head-wise gate, in every second block or so attention with a norm
for each head; norms before and behind both branches.

Source: llama.cpp `src/models/plamo2.cpp`, `conversion/plamo.py`; vLLM's `plamo2.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _hybrid as hybrid
from ggferry.converters.architectures import _plamo as plamo
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.values import ADD_ONE, NEG_EXP
from ggferry.converters.schema.roles import block, roles

BOOL = common.BOOL
_REMOTE = "the model's own default"

HPARAMS = (
    *common.SIZES[:5],
    # One number: with a list that says 0 for the first block, as the tool writes it, llama.cpp's rotation never ends.
    HParam("n_head", "attention.head_count", fields={"hf": "num_attention_heads"}, length="n_layer", allow_scalar=True),
    hybrid.HEADS_KV_DECLARED,
    HParam("mamba_step", None, fields={"hf": "mamba_step"}, required=False,
           defaults=(Default(2, _REMOTE, dialect="hf"),)),
    HParam("mamba_enabled", None, BOOL, {"hf": "mamba_enabled"}, words={True: True}, required=False),
    HParam("attends", None, BOOL, length="n_layer", required=False, derive=plamo.attending),
    hybrid.HEADS_KV,
    replace(common.HEAD_DIM, fields={"hf": "hidden_size_per_head"}, implied=""),
    replace(common.HEAD_DIM_V, fields={"hf": "hidden_size_per_head"}, implied=""),
    common.RMS_EPS, *rope.ROPE,
    HParam("n_conv", "ssm.conv_kernel", fields={"hf": "mamba_d_conv"}, defaults=(Default(4, _REMOTE, dialect="hf"),)),
    HParam("n_state", "ssm.state_size", fields={"hf": "mamba_d_state"},
           defaults=(Default(64, _REMOTE, dialect="hf"),)),
    HParam("n_heads", "ssm.time_step_rank", fields={"hf": "mamba_num_heads"}, check="0 < n_heads"),
    HParam("n_inner", "ssm.inner_size", derive="n_heads * head_dim", check="n_inner == n_heads * head_dim"),
    HParam("ssm_groups", "ssm.group_count", words={0: 0}, defaults=(Default(0, "llama.cpp knows no others"),)),
    HParam("dt_rank", None, derive=plamo.selection_rank, check="0 < dt_rank"),
    common.ALWAYS_TIED, common.SILU,
)

MIXERS = """
attn_qkv.weight when=n_head_kv>0        : n_head*head_dim+n_head_kv*head_dim+n_head_kv*head_dim_v n_embd | hf mixer.qkv_proj.weight
attn_q_norm.weight f32 when=n_head_kv>0 : n_head head_dim                                                | hf mixer.q_weight
attn_k_norm.weight f32 when=n_head_kv>0 : n_head_kv head_dim                                             | hf mixer.k_weight
attn_output.weight when=n_head_kv>0     : n_embd n_head*head_dim_v                                       | hf mixer.o_proj.weight
ssm_in.weight when=n_head_kv==0         : 2*n_inner n_embd                                               | hf mixer.in_proj.weight
ssm_conv1d.weight f32 when=n_head_kv==0 : n_inner n_conv                                                 | hf mixer.conv1d.weight @conv
ssm_x.weight when=n_head_kv==0          : 2*n_state+dt_rank n_inner                                      | hf mixer.bcdt_proj.weight
ssm_dt.weight when=n_head_kv==0         : n_heads dt_rank                                                | hf mixer.dt_proj.weight
ssm_dt.bias when=n_head_kv==0           : n_heads                                                        | hf mixer.dt_bias
ssm_a f32 when=n_head_kv==0             : n_heads                                                        | hf mixer.A_log @rate
ssm_d f32 when=n_head_kv==0             : n_heads                                                        | hf mixer.D
ssm_dt_norm f32 when=n_head_kv==0       : dt_rank                                                        | hf mixer.dt_norm_weight
ssm_b_norm f32 when=n_head_kv==0        : n_state                                                        | hf mixer.B_norm_weight
ssm_c_norm f32 when=n_head_kv==0        : n_state                                                        | hf mixer.C_norm_weight
ssm_out.weight when=n_head_kv==0        : n_embd n_inner                                                 | hf mixer.out_proj.weight
"""  # noqa: E501
ROLES = roles(
    tensors.embedding(layout=ADD_ONE),
    block(
        plamo.norms(),
        roles(MIXERS, conv=hybrid.CONV, rate=NEG_EXP),
        plamo.network(),
        layer="model.layers.layers.{n}.",
    ),
)

SPEC = Architecture(
    name="plamo2", runtimes=("llama.cpp",),
    display_name="PLaMo 2",
    hf_classes=("Plamo2ForCausalLM", "PLaMo2ForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={
                "decay": "log",
                "norm_offset": 1.0,
                "offset_norms": ("attn_norm", "ffn_norm", "output_norm"),
                "post_norms": "fifths",
            },
            drops=plamo.DROPS,
            caveats=rope.CAVEATS,
            ignored_keys=(
                common.UNBIASED,
                *hybrid.MAMBA_IGNORED_KEYS,
                IgnoredKey("sliding_window_pattern", "no list of windows without a window"),
            ),
        ),
    ),
    recipe={"rope": "halves", "qkv": "fused", "ffn": "fused", "decay": "rate"},
    caveats=(
        Caveat(
            "head_dim != head_dim_v",
            "llama.cpp runs this differently: it scales scores by the width of a value in plamo2",
            unsupported_by="llama.cpp",
        ),
    ),
)
