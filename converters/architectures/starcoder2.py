"""StarCoder 2: layer norms, biases everywhere, one plain feed-forward network, tied embeddings.

Source: llama.cpp `src/models/starcoder2.cpp`, transformers `modeling_starcoder2.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

# The class reads the one key, whatever others stand beside it.
EPS = replace(common.LAYER_EPS, fields={"hf": "norm_epsilon|layer_norm_epsilon|layer_norm_eps|norm_eps"})
HPARAMS = (
    *common.SIZES, EPS, *rope.ROPE, common.N_SWA,
    HParam("biased", None, ValueType.BOOL, {"hf": "use_bias"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    common.ALWAYS_TIED, gpt.GELU_TANH,
)

_BIASED = "biased == 1"
ROLES = roles(
    tensors.embedding(),
    "output_norm.bias : n_embd | hf model.norm.bias",
    block(
        """
        attn_norm.bias : n_embd | hf input_layernorm.bias
        ffn_norm.bias  : n_embd | hf post_attention_layernorm.bias
        """,
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.attention(bias=_BIASED, output_bias=_BIASED),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.plain(names=("c_fc", "c_proj"), bias=_BIASED),
    ),
)

BIASED = Caveat("biased == 0", "a model without biases: llama.cpp expects them in starcoder2",
    unsupported_by="llama.cpp")

KINDS = (
    IgnoredKey("mlp_type", "one plain network", ("default",)),
    IgnoredKey("norm_type", "layer norms", ("layer_norm",)),
)

SPEC = Architecture(
    name="starcoder2", runtimes=("llama.cpp",),
    display_name="StarCoder 2",
    hf_classes=("Starcoder2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=common.DROPS, caveats=(*rope.CAVEATS, common.WINDOW, BIASED, gpt.ERF), ignored_keys=KINDS),
    ),
    recipe={"norm": "layer", "rope": "halves", "ffn": "plain", "activation": "gelu_tanh"},
)
SPEC = half.with_base(SPEC, "Starcoder2Model")
