"""ModernBERT: rotary positions with one base for windows and one for the blocks that see all; no biases.

The first block has no norm of its own. A window reaches half of `local_attention` to either side. Sources: transformers
`modeling_modernbert.py`; llama.cpp `src/models/modern-bert.cpp`, `conversion/bert.py`, `_encoder`.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _encoder as encoder
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.roles import block, roles

_HF = "transformers' default"

HPARAMS = (
    *encoder.SIZES, *encoder.ALL_HEADS, common.N_FF,
    HParam("eps", "attention.layer_norm_epsilon", common.F32, {"hf": "norm_eps|layer_norm_eps"},
           defaults=(Default(1e-5, _HF, dialect="hf"),)),
    encoder.BOTH_SIDES,
    HParam("rope_base", "rope.freq_base", common.F32,
           {"hf": "rope_parameters.full_attention.rope_theta|global_rope_theta"},
           defaults=(Default(160000.0, _HF, dialect="hf"), Default(10000.0, "the default of readers of GGUF")),
           check="rope_base > 1"),
    HParam("rope_base_swa", "rope.freq_base_swa", common.F32,
           {"hf": "rope_parameters.sliding_attention.rope_theta|local_rope_theta"},
           defaults=(Default(10000.0, _HF, dialect="hf"),), implied="rope_base", check="rope_base_swa > 1"),
    # Blocks with a window are never stretched: GGUF has no key for it.
    HParam("rope_kind_swa", None, common.STRING,
           {"hf": "rope_parameters.sliding_attention.rope_type|rope_scaling.rope_type"}, words={"default": "default"},
           required=False),
    encoder.WHOLE_HEADS_TURN, *encoder.SCALING,
    HParam("n_swa", "attention.sliding_window", fields={"hf": "local_attention"}, absent=0, unrepresentable=0,
           defaults=(Default(128, _HF, dialect="hf"),)),
    HParam("period_declared", None, fields={"hf": "global_attn_every_n_layers"}, required=False,
           defaults=(Default(3, _HF, dialect="hf"),)),
    common.LAYER_WINDOWS,
    # The key holds a number, or a list where the blocks have no period.
    HParam("window_period", "attention.sliding_window_pattern", derive=encoder.period, required=False, shared=True),
    HParam("swa_layers", "attention.sliding_window_pattern", common.BOOL, derive=encoder.windowed, length="n_layer",
           implied=encoder.by_period, required=False, shared=True),
    common.N_WINDOWS,
    HParam("activation_word", "hidden_activation", common.STRING, {"hf": "hidden_activation"}, required=False,
           words={"gelu": "gelu", "silu": "silu", "swish": "silu", **gpt.GELU_WORDS},
           defaults=(Default("gelu", _HF, dialect="hf"),)),
    HParam("activation", None, common.STRING, derive=encoder.activation),
    *encoder.ZERO_BIASES, *embeddings.POOLING, *embeddings.LABELS, encoder.CLASSIFIER_POOLING,
    HParam("activation_stated", None, common.STRING, {"hf": "classifier_activation"}, required=False),
    HParam("classifier_activation", "classifier.activation", common.STRING, derive=encoder.classifier_activation,
           required=False),
)

ROLES = roles(
    tensors.linear("token_embd", "n_vocab n_embd", "embeddings.tok_embeddings"),
    tensors.norm("token_embd_norm", "embeddings.norm"),
    tensors.norm("output_norm", "final_norm"),
    block(
        tensors.norm("attn_norm", "attn_norm", when="n > 0"),
        tensors.fused_attention("attn.Wqkv", "attn.Wo", rows="3*n_embd", columns="n_embd"),
        tensors.norm("ffn_norm", "mlp_norm"),
        tensors.linear("ffn_up", "2*n_ff n_embd", "mlp.Wi"),
        tensors.linear("ffn_down", "n_embd n_ff", "mlp.Wo"),
        layer="layers.{n}.",
    ),
    tensors.linear("cls", "n_embd n_embd", "head.dense", when="classifies == 1"),
    tensors.norm("cls.norm", "head.norm", when="classifies == 1"),
    tensors.linear("cls.output", "n_labels n_embd", "classifier", bias=True, when="classifies == 1"),
)

_LANGUAGE = embeddings.language_heads("head.*", "decoder.*")
_IGNORED_KEYS = (
    IgnoredKey("classifier_bias", "there is none", (False,)),
    embeddings.IGNORED_KEYS,
    IgnoredKey("tie_word_embeddings decoder_bias sparse_pred*", "of the head that predicts masked tokens"),
    IgnoredKey("problem_type label2id", "how it was trained; id2label says the same"),
    IgnoredKey("cls_token_id sep_token_id mask_token_id", "read with the tokenizer"),
    IgnoredKey("deterministic_flash_attn reference_compile repad_logits_with_grad", "how it is computed, not what"),
    IgnoredKey("initializer_cutoff_factor *_dropout", "of training"),
    IgnoredKey("position_embedding_type", "they turn", ("absolute", "rope", "sans_pos")),
)
_RENAMES = (("model.", ""),)

SPEC = Architecture(
    name="modern-bert", runtimes=("llama.cpp",),
    display_name="ModernBERT",
    hf_classes=("ModernBertModel", "ModernBertForMaskedLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect(
            "hf",
            drops=tuple(Drop(drop.pattern, drop.reason, when="classifies == 0") for drop in _LANGUAGE),
            fixed={"causal": False, "classifies": False},
            renames=_RENAMES,
            caveats=(*rope.CAVEATS, encoder.ONE_KIND),
            ignored_keys=_IGNORED_KEYS,
        ),
        Dialect(
            "classifier",
            names="hf",
            fields="hf",
            classes=("ModernBertForSequenceClassification",),
            fixed={"causal": False, "classifies": True, "pooling": embeddings.RANK},
            renames=_RENAMES,
            caveats=(*rope.CAVEATS, encoder.ONE_KIND),
            ignored_keys=_IGNORED_KEYS,
        ),
    ),
    recipe={"norm": "layer", "rope": "halves", "qkv": "fused", "ffn": "fused", "activation": "gelu",
            "classifier": "gelu", "rows": "states"},
)
