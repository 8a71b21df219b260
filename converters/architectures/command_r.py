"""Command-R (Cohere): one layer norm without bias before both branches, tied embeddings, scaled logits.

Source: llama.cpp `src/models/command-r.cpp`, `conversion/command_r.py`, transformers `modeling_cohere.py`. Rotary pairs
lie side by side on both sides: nothing is permuted.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles
from ggferry.formats.gguf.values import ValueType

HPARAMS = (
    common.N_VOCAB,
    # config.json of Command-R says 8192 in max_position_embeddings; it was trained on what model_max_length says.
    replace(common.N_CTX, fields={"hf": "model_max_length|max_position_embeddings"}),
    common.N_EMBD, common.N_LAYER, common.N_FF, common.N_HEAD, common.N_HEAD_KV, common.HEAD_DIM, common.HEAD_DIM_V,
    common.LAYER_EPS, *rope.ROPE,
    HParam("logit_scale", "logit_scale", ValueType.FLOAT32, {"hf": "logit_scale"}, absent=0.0, unrepresentable=0.0,
           defaults=(Default(0.0625, "transformers' default", dialect="hf"),)),
    HParam("qk_norms", None, ValueType.BOOL, {"hf": "use_qk_norm"}, required=False,
           defaults=(Default(False, "transformers' default", dialect="hf"),)),
    common.ALWAYS_TIED, *common.BIASES, common.SILU,
)

ROLES = roles(
    tensors.embedding(),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.biased_attention(),
        tensors.qk_norm(shapes=tensors.EACH_HEAD, when="qk_norms == 1"),
        tensors.gated(),
    ),
)

NORMS = Caveat(
    "qk_norms == 1 and n_layer < 64",
    "queries and keys are normed: written, but llama.cpp expects that of command-r from 64 blocks on, not of {n_layer}",
    unsupported_by="llama.cpp",
)

UNNORMED = Caveat(
    "qk_norms == 0 and n_layer >= 64",
    "queries and keys are not normed: llama.cpp expects that of command-r from 64 blocks on, and this has {n_layer}",
    unsupported_by="llama.cpp",
)
BIASED = Caveat(
    "output_bias == 1", "a bias of the attention's output: llama.cpp's command-r has none",
    unsupported_by="llama.cpp"
)

CONTEXT = IgnoredKey("max_position_embeddings", "model_max_length is what it was trained on")

SPEC = Architecture(
    name="command-r", runtimes=("llama.cpp",),
    display_name="Command R",
    hf_classes=("CohereForCausalLM",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=common.DROPS,
            caveats=(*rope.CAVEATS, NORMS, UNNORMED, BIASED, common.UNTIED),
            ignored_keys=(CONTEXT,),
        ),
    ),
    recipe={"norm": "layer", "residual": "parallel"},
)
SPEC = half.with_base(SPEC, "CohereModel")
