"""StarCoder 2: layer norms, biases everywhere, one plain feed-forward network, tied embeddings.

Source: llama.cpp `src/models/starcoder2.cpp`, transformers `modeling_starcoder2.py`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Harmless, HParam, Remark
from ggferry.converters.schema.layouts import SAME
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.LAYER_EPS, *rope.ROPE, common.N_SWA,
    HParam("biased", None, ValueType.BOOL, {"hf": "use_bias"}, required=False,
           defaults=(Default(True, "transformers' default", dialect="hf"),)),
    common.ALWAYS_TIED, common.GELU_TANH,
)  # fmt: skip

_BIASED = "when=biased==1"
NORM_BIASES = """
output_norm.bias             : n_embd      | hf model.norm.bias
blk.{n}.attn_norm.bias       : n_embd      | hf model.layers.{n}.input_layernorm.bias
blk.{n}.ffn_norm.bias        : n_embd      | hf model.layers.{n}.post_attention_layernorm.bias
"""
PLAIN = """
blk.{n}.ffn_up.weight        : n_ff n_embd | hf model.layers.{n}.mlp.c_fc.weight
blk.{n}.ffn_up.bias FLAG     : n_ff        | hf model.layers.{n}.mlp.c_fc.bias
blk.{n}.ffn_down.weight      : n_embd n_ff | hf model.layers.{n}.mlp.c_proj.weight
blk.{n}.ffn_down.bias FLAG   : n_embd      | hf model.layers.{n}.mlp.c_proj.bias
"""
ROLES = roles(
    common.EMBEDDING
    + NORM_BIASES
    + common.ATTENTION_NORM
    + common.ATTENTION
    + common.QKV_BIAS.replace("FLAG", _BIASED)
    + common.OUTPUT_BIAS.replace("FLAG", _BIASED)
    + common.FFN_NORM
    + PLAIN.replace("FLAG", _BIASED),
    q=SAME, k=SAME, norm=SAME,
)  # fmt: skip

BIASED = Remark("biased == 0", "a model without biases: llama.cpp expects them in starcoder2", stops="llama.cpp")

KINDS = (
    Harmless("mlp_type", "one plain network", ("default",)),
    Harmless("norm_type", "layer norms", ("layer_norm",)),
)

SPEC = Architecture(
    name="starcoder2",
    display_name="StarCoder 2",
    hf_classes=("Starcoder2ForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect("hf", drops=common.DROPS, remarks=(*rope.REMARKS, common.WINDOW, BIASED), harmless=KINDS),
        "gguf": Dialect("gguf"),
    },
    recipe={"norm": "layer", "rope": "halves", "ffn": "plain", "activation": "gelu_tanh"},
)
