"""EuroBERT: LLaMA's block, seeing what follows. Jina's embeddings v5 (nano) are one.

Sources: transformers `modeling_eurobert.py`; llama.cpp `src/models/eurobert.cpp`, `conversion/bert.py`, `_encoder`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, IgnoredKey
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *common.SIZES, common.RMS_EPS, encoder.BOTH_SIDES, rope.BASE, rope.N_ROT, *encoder.SCALING,
    *embeddings.POOLING, encoder.CLASSIFIER_POOLING, *common.BIASES, common.SILU,
)

ROLES = roles(
    tensors.embedding("embed_tokens", "norm", ""),
    block(
        tensors.norm("attn_norm", "input_layernorm"),
        tensors.biased_attention(),
        tensors.norm("ffn_norm", "post_attention_layernorm"),
        tensors.gated(),
        layer="layers.{n}.",
    ),
)

SPEC = Architecture(
    name="eurobert", runtimes=("llama.cpp",),
    display_name="EuroBERT",
    hf_classes=("EuroBertModel", "EuroBertForMaskedLM", "JinaEmbeddingsV5Model"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=(*embeddings.language_heads("lm_head.*"), common.DROP_BUFFERS),
            fixed={"causal": False},
            renames=(("model.", ""),),
            caveats=(*rope.CAVEATS, common.heads_as_wide_as_the_model("eurobert"), common.biased_output("eurobert")),
            ignored_keys=(
                common.UNBIASED, embeddings.IGNORED_KEYS,
                IgnoredKey("tie_word_embeddings mask_token pad_token",
                    "of the output layer, or read with the tokenizer"),
                IgnoredKey("pretraining_tp", "how it was trained"),
                IgnoredKey("mask_token_id", "read with the tokenizer"),
                IgnoredKey("clf_pooling", "of a classifier, which is not here"),
            ),
        ),
    ),
    recipe={"rope": "halves", "rows": "states"},
)
