"""BitNet b1.58: LLaMA with a norm before each output matrix, of attention and of the feed-forward.

Sources: llama.cpp `src/models/bitnet.cpp`, which computes silu; transformers `modeling_bitnet.py`. Today's
convert_hf_to_gguf does not know the names of Microsoft's norms, and rounds weights to three values whatever they are:
ours are those that the class computes with. The class of 2024 (1bitLLM/bitnet_b1_58-3B; microsoft/BitBLAS 0991bf61,
`integration/BitNet/modeling_bitnet.py`) always rounds them: `converters/prequantized/schemes/_bitnet_online.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.architectures._tensors import norm
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

ACTIVATION = HParam(
    "activation", "feed_forward_activation", ValueType.STRING, {"hf": "hidden_act"},
    words={"relu2": "relu_squared", "silu": "silu"}, absent="silu",
    check="activation == 'silu' or activation == 'relu_squared'",
)
_2024 = "1bitllm"
TIED = replace(
    common.ALWAYS_TIED,
    defaults=(*common.ALWAYS_TIED.defaults, Default(False, "the default of the class of 2024", dialect=_2024)),
)
WEIGHT_BITS = HParam("weight_bits", None, fields={"hf": "weight_bits"}, words={1: 1}, required=False)
HPARAMS = (*common.SIZES, common.RMS_EPS, *rope.ROPE, TIED, ACTIVATION, WEIGHT_BITS)

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

HF = Dialect(
    "hf", drops=common.DROPS,
    caveats=(*rope.CAVEATS, common.UNTIED, common.heads_as_wide_as_the_model("bitnet")),
    ignored_keys=(common.UNBIASED,),
)
LAYER = "model.layers.{n}."

SPEC = Architecture(
    name="bitnet", runtimes=("llama.cpp",),
    display_name="BitNet",
    hf_classes=("BitNetForCausalLM", "BitnetForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        replace(
            HF, name=_2024, names="hf", fields="hf", classes=("BitnetForCausalLM",),
            renames=(
                (f"{LAYER}self_attn.inner_attn_ln.", f"{LAYER}self_attn.attn_sub_norm."),
                (f"{LAYER}mlp.ffn_layernorm.", f"{LAYER}mlp.ffn_sub_norm."),
            ),
            ignored_keys=(
                common.UNBIASED,
                IgnoredKey("input_bits", "a GGUF model computes with activations as they are"),
            ),
        ),
    ),
    recipe={"rope": "halves"},
    caveats=(SQUARED,),
)
SPEC = half.with_base(SPEC, "BitNetModel")
