"""Apertus: queries and keys normed head by head; a feed-forward without a gate, activated by xIELU.

Source: llama.cpp `src/models/apertus.cpp`, transformers `modeling_apertus.py`. The four numbers of xIELU are tensors of
each block in a checkpoint and keys in GGUF, as they were trained: readers make them positive.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, Drop, HParam
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

ACT = "model.layers.{n}.mlp.act_fn."
XIELU = tuple(
    HParam(f"xielu_{name}", f"xielu.{name}", ValueType.FLOAT32, tensors=f"{ACT}{name}", global_key=True,
        length="n_layer",
           allow_scalar=True, scalar=name in ("beta", "eps"))
    for name in ("alpha_n", "alpha_p", "beta", "eps")
)

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE_WITH_FACTORS, *XIELU, common.TIED, common.ATTENTION_BIAS,
    HParam("activation", None, ValueType.STRING, {"hf": "hidden_act"}, words={"xielu": "xielu"}, required=False),
)

ROLES = roles(
    tensors.embedding(),
    rope.FACTORS,
    block(
        tensors.norm("attn_norm", "attention_layernorm"),
        tensors.attention(bias="attention_bias == 1", output_bias="attention_bias == 1"),
        tensors.qk_norm(),
        tensors.norm("ffn_norm", "feedforward_layernorm"),
        tensors.plain(),
    ),
)

SPEC = Architecture(
    name="apertus", runtimes=("llama.cpp",),
    display_name="Apertus",
    hf_classes=("ApertusForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(Drop("model.layers.{n}.mlp.act_fn.*", "a number of xIELU: it is among the keys", follows=True),
                   *common.DROPS),
            caveats=(*rope.CAVEATS, common.own_output("apertus")),
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"rope": "halves", "ffn": "plain", "activation": "xielu"},
)
