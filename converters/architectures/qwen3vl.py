"""Qwen3-VL, the text half: Qwen3 with positions along three axes, which for text are one.

Source: llama.cpp `src/models/qwen3vl.cpp`, `conversion/qwen3vl.py`, transformers `modeling_qwen3_vl.py`. The vision
half adds features of some of its layers to the first blocks (deepstack); GGUF says how many.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Dialect
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE_OF_QWEN3_AXES, *half.DEEPSTACK, common.TIED, common.SILU,
    *common.BIASES,
    *embeddings.POOLING, *embeddings.LABELS, *embeddings.ANSWER_ROWS,
)

ROLES = embeddings.reranking(roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(biased=True), tensors.gated())),
    tensors.linear("cls.output", "n_labels n_embd", "score", when="classifies == 1"),
))
HF = Dialect(
    "hf",
    drops=(*common.DROPS, *half.drop_vision("*visual.*")),
    caveats=(*rope.CAVEATS, common.biased_output("qwen3vl")),
    config_section=half.WITHIN,
    renames=half.RENAMES,
    fixed={"classifies": False},
    ignored_keys=(common.UNBIASED, half.VISION_KEYS, half.INTERLEAVED, embeddings.IGNORED_KEYS),
)

SPEC = Architecture(
    name="qwen3vl", runtimes=("llama.cpp",),
    display_name="Qwen3-VL",
    hf_classes=("Qwen3VLForConditionalGeneration",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *embeddings.rerankers(HF),
    ),
    recipe={"rope": "halves"},
)
