"""Nemotron and Minitron: LayerNorms stored as their distance from one, a squared ReLU, heads rotated in part.

Source: llama.cpp `src/models/nemotron.cpp`, `conversion/nemotron.py`; transformers `modeling_nemotron.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    *common.SIZES, common.LAYER_EPS, rope.BASE,
    replace(rope.FRACTION, defaults=(Default(0.5, "transformers' default", dialect="hf"),)), rope.N_ROT, rope.KIND,
    *rope.SCALING, common.TIED, common.ATTENTION_BIAS, common.MLP_BIAS,
    HParam("activation", None, ValueType.STRING, {"hf": "hidden_act"}, words={"relu2": "relu_squared"}, required=False),
)

ROLES = roles(
    tensors.embedding(layout=ADD_ONE, bias=True),
    block(
        tensors.norm("attn_norm", "input_layernorm", layout=ADD_ONE, bias=True),
        tensors.attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
        tensors.norm("ffn_norm", "post_attention_layernorm", layout=ADD_ONE, bias=True),
        tensors.plain(bias="mlp_bias == 1"),
    ),
)
WIDTH = Caveat(
    "n_head * head_dim != n_embd",
    "{n_head} heads are {head_dim} wide in a model of {n_embd}; llama.cpp loads heads of embedding / heads only",
    unsupported_by="llama.cpp",
)

SPEC = Architecture(
    name="nemotron", runtimes=("llama.cpp",),
    display_name="Nemotron",
    hf_classes=("NemotronForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"norm_offset": 1.0},
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, WIDTH, common.OWN_OUTPUT),
        ),
    ),
    recipe={"norm": "layer", "rope": "halves", "ffn": "plain", "activation": "relu_squared"},
)
