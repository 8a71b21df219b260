"""BitNet b1.58: LLaMA with a norm before each output matrix, of attention and of the feed-forward.

Sources: llama.cpp `src/models/bitnet.cpp`, which computes silu; transformers `modeling_bitnet.py`. Today's
convert_hf_to_gguf does not know the names of Microsoft's norms, and rounds weights to three values whatever they are:
ours are those of the checkpoint.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures._tensors import norm
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

ACTIVATION = HParam(
    "activation", "feed_forward_activation", ValueType.STRING, {"hf": "hidden_act"},
    words={"relu2": "relu_squared", "silu": "silu"}, absent="silu",
    check="activation == 'silu' or activation == 'relu_squared'",
)
HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, common.ALWAYS_TIED, ACTIVATION)

ROLES = roles(
    tensors.embedding(),
    block(
        norm("attn_norm", "input_layernorm"),
        tensors.attention(),
        norm("attn_sub_norm", "self_attn.attn_sub_norm", width="n_head*head_dim_v"),
        norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
        norm("ffn_sub_norm", "mlp.ffn_sub_norm", width="n_ff"),
    ),
)

SQUARED = Caveat(
    "activation == 'relu_squared'",
    "llama.cpp runs this differently: the gate is a squared relu, and bitnet has silu there",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="bitnet", runtimes=("llama.cpp",),
    display_name="BitNet",
    hf_classes=("BitNetForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf", drops=common.DROPS,
            caveats=(*rope.CAVEATS, common.UNTIED, common.heads_as_wide_as_the_model("bitnet")),
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"rope": "halves"},
    caveats=(SQUARED,),
)
