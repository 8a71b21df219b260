"""NeoBERT: RMS norms, rotary pairs, and queries, keys and values of each head beside one another in one matrix.

llama.cpp wants all queries, then all keys, then all values; its own converter leaves them as they are. No published
package has the class, so llama.cpp alone witnesses it. Sources: chandar-lab's `model.py`; llama.cpp
`src/models/neo-bert.cpp`, `conversion/bert.py`, `_encoder`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.order import heads_to_qkv
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    common.N_VOCAB, HParam("n_ctx", "context_length", fields={"hf": "max_length|max_position_embeddings"}),
    *encoder.SIZES[2:], *encoder.ALL_HEADS,
    HParam("n_ff", "feed_forward_length"),  # two thirds of intermediate_size, rounded up to a multiple of 8
    HParam("eps", "attention.layer_norm_rms_epsilon", common.F32, {"hf": "norm_eps"},
           defaults=(Default(1e-5, "chandar-lab's default", dialect="hf"),)),
    encoder.BOTH_SIDES,
    HParam("rope_base", "rope.freq_base", common.F32,
           defaults=(Default(10000.0, "the only one of chandar-lab's code"),), check="rope_base > 1"),
    encoder.WHOLE_HEADS_TURN, encoder.NO_SCALING, *embeddings.MODES, *embeddings.LABELS,
    HParam("pooling", "pooling_type", derive="@pooling_type",
           defaults=(Default(2, "NeoBERT's embeddings are states of the first token", when="classifies == 0"),),
           required=False),
    HParam("rms", None, common.BOOL, {"hf": "rms_norm"}, words={True: True}, required=False),
    HParam("rotary", None, common.BOOL, {"hf": "rope"}, words={True: True}, required=False),
    HParam("activation", None, common.STRING, {"hf": "hidden_act"}, words={"SwiGLU": "silu", "swiglu": "silu"},
           required=False),
)

ROLES = roles(
    tensors.linear("token_embd", "n_vocab n_embd", "encoder"),
    tensors.norm("enc.output_norm", "layer_norm"),
    block(
        tensors.norm("attn_norm", "attention_norm"),
        tensors.fused_attention("qkv", "wo", rows="3*n_embd", columns="n_embd", layout=heads_to_qkv("n_head")),
        tensors.norm("ffn_norm", "ffn_norm"),
        tensors.linear("ffn_up", "2*n_ff n_embd", "ffn.w12"),
        tensors.linear("ffn_down", "n_embd n_ff", "ffn.w3"),
        layer="transformer_encoder.{n}.",
    ),
    embeddings.classifier("dense", "classifier"),
)

_ENCODER = {"causal": False, "classifies": False, "rope_scaling": "none"}
_IGNORED_KEYS = (
    embeddings.IGNORED_KEYS,
    IgnoredKey("intermediate_size dim_head head_dim", "the tensors say it"),
    IgnoredKey("problem_type label2id", "how it was trained; id2label says the same"),
    IgnoredKey("flash_attention kwargs* classifier_* dropout* embedding_init_range decoder_init_range", "of training"),
    IgnoredKey("tie_word_embeddings trust_remote_code", "of its own code, which is never run"),
)
_RENAMES = (("model.", ""),)
_BUFFERS = (Drop("freqs_cis", "a buffer: rotary angles follow from the rotary base", follows=True),)

SPEC = Architecture(
    name="neo-bert", runtimes=("llama.cpp",),
    display_name="NeoBERT",
    hf_classes=("NeoBERT", "NeoBERTLMHead"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            conventions={"qkv": "grouped"},
            drops=(*embeddings.language_heads("decoder.*"), *_BUFFERS),
            fixed=_ENCODER,
            renames=_RENAMES,
            ignored_keys=_IGNORED_KEYS,
        ),
        Dialect(
            "classifier",
            names="hf",
            fields="hf",
            conventions={"qkv": "grouped"},
            drops=_BUFFERS,
            classes=("NeoBERTForSequenceClassification",),
            fixed={**_ENCODER, "classifies": True, "pooling": embeddings.RANK},
            renames=_RENAMES,
            ignored_keys=_IGNORED_KEYS,
        ),
    ),
    recipe={"rope": "pairs", "qkv": "fused", "ffn": "fused", "output_norm": "encoder", "rows": "states"},
)
