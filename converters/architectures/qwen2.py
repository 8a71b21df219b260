"""Qwen2: LLaMA with biases on queries, keys and values; rows stay in Hugging Face's order (NeoX rotation).

Source: llama.cpp `src/models/qwen2.cpp`, transformers `modeling_qwen2.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.TIED, common.ATTENTION_BIAS,
    common.SILU, *embeddings.DECODER_POOLING,
)

ROLES = roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.attention(bias="attention_bias == 1"), tensors.gated())),
)

# KORMo has none of Qwen's biases, and names of its own for its norms.
KORMO = (
    ("model.layers.{n}.pre_attention_layernorm.", "model.layers.{n}.input_layernorm."),
    ("model.layers.{n}.pre_mlp_layernorm.", "model.layers.{n}.post_attention_layernorm."),
)
PLAIN = IgnoredKey("use_mrope", "positions are one number each", (False,))  # in configurations of Qwen2.5

HF = Dialect(
    "hf",
    drops=common.DROPS,
    caveats=(*rope.CAVEATS, common.WINDOW),
    fixed={"attention_bias": True},
    ignored_keys=(PLAIN, embeddings.IGNORED_KEYS),
)

SPEC = Architecture(
    name="qwen2", runtimes=("llama.cpp",),
    display_name="Qwen2",
    hf_classes=(
        "Qwen2ForCausalLM", "Qwen2Model", "KORMoForCausalLM", "Qwen2AudioForConditionalGeneration",
        "AudioFlamingo3ForConditionalGeneration", "DotsOCRForCausalLM", "InternVLForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(HF, "qwen2", "dots_ocr"),
        *half.headless(HF, "Qwen2Model"),
        replace(
            HF, name="kormo", names="hf", fields="hf", renames=KORMO, classes=("KORMoForCausalLM",), fixed={},
            ignored_keys=(common.UNBIASED,),
        ),
    ),
    recipe={"rope": "halves"},
)
