"""Qwen3: queries and keys are normed head by head before they turn; no biases; a head width of its own.

Source: llama.cpp `src/models/qwen3.cpp`, transformers `modeling_qwen3.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.architectures import _text_backbone as half
from ggferry.converters.schema.architecture import Architecture, Caveat, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, *rope.ROPE, *common.QWEN_WINDOWS, common.TIED, common.SILU, *common.BIASES,
    *embeddings.DECODER_POOLING, *embeddings.LABELS, *embeddings.ANSWER_ROWS,
)

ROLES = embeddings.reranking(roles(
    tensors.embedding(),
    block(tensors.pre_norm(tensors.normed_attention(biased=True), tensors.gated())),
    tensors.linear("cls.output", "n_labels n_embd", "score", when="classifies == 1"),
))

# llama.cpp turns the scores into shares of one: of a single score nothing is left.
_SHARES = Caveat(
    "n_labels > 1", "llama.cpp gives the softmax of this classifier's scores, transformers the scores",
)
_ONE_SHARE = Caveat(
    "n_labels == 1",
    "llama.cpp gives the softmax of a classifier's scores: of this one, which has a single score, it is always 1",
    unsupported_by="llama.cpp",
)
# Qwen3-Embedding's weights carry the names of a model that stands alone.
HF = Dialect(
    "hf", drops=common.DROPS, caveats=(*rope.CAVEATS, common.WINDOW, common.biased_output("qwen3")), renames=half.BARE,
    fixed={"classifies": False},
    ignored_keys=(common.UNBIASED, embeddings.IGNORED_KEYS),
)
CLASSIFIER = replace(
    HF,
    name="classifier",
    names="hf",
    fields="hf",
    classes=("Qwen3ForSequenceClassification",),
    fixed={"tied": True, "classifies": True, "pooling": embeddings.RANK},
    caveats=(*HF.caveats, _SHARES, _ONE_SHARE),
    ignored_keys=(
        *HF.ignored_keys,
        IgnoredKey("tie_word_embeddings", "there is no output matrix", (False, True)),
        IgnoredKey("problem_type label2id", "how it was trained; id2label says the same"),
    ),
)

SPEC = Architecture(
    name="qwen3", runtimes=("llama.cpp",),
    display_name="Qwen3",
    hf_classes=(
        "Qwen3ForCausalLM",
        "Qwen3Model",
        "StepVLForConditionalGeneration",
        "LightOnOcrForConditionalGeneration",
        "Qwen3ASRForConditionalGeneration",
    ),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        HF,
        *half.of(HF, "qwen3"),
        *half.headless(HF, "Qwen3Model"),
        CLASSIFIER,
        *embeddings.rerankers(HF),
    ),
    recipe={"rope": "halves"},
)
