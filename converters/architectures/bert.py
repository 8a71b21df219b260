"""BERT and its kin DistilBERT, RoBERTa, XLM-RoBERTa and CamemBERT: encoders for embeddings, and classifiers of texts.

A head that predicts masked tokens is dropped. DistilBERT's classifier is not read: llama.cpp has no word for its
activation. Sources: `_bert`, `_embeddings`; transformers `modeling_roberta.py`, `modeling_distilbert.py`.
"""

from dataclasses import replace

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, HParam, IgnoredKey
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.roles import also, block, roles, varied
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

# bert.cpp, before GGUF (docs/legacy/bert.md).
HEADER = HeaderLayout(
    name="bert.cpp",
    containers=(("ggml", None),),
    header=Struct(
        "bert.cpp header",
        """
        n_vocab         i32  1..MAX_GGML_VOCAB
        n_max_tokens    i32  1..MAX_WIDTH   rows of the position embedding
        n_embd          i32  1..MAX_WIDTH
        n_intermediate  i32  1..MAX_WIDTH
        n_head          i32  1..MAX_HEADS
        n_layer         i32  1..MAX_LAYERS
        ftype           i32  0..3           F32, F16, Q4_0, Q4_1; the tensors' own types decide
        """,
    ),
    names=("encoder.layer.*.attention.self.query.weight",),
    vocab=VocabLayout(scored=False, texts="wordpiece"),
    quantization=0,
)

HPARAMS = (
    *bert.SIZES, bert.CAUSAL,
    *(
        replace(param, defaults=(
            Default(1, "bert.cpp takes the mean of a text's states; the file does not say it", dialect="ggml"),
        )) if param.name == "pooling" else param
        for param in embeddings.POOLING
    ),
    *embeddings.LABELS,
    replace(gpt.GELU, fields={"hf": "hidden_act|activation"}),
    HParam("positions", None, common.STRING, {"hf": "position_embedding_type"}, words={"absolute": "absolute"},
           required=False),
    HParam("decoder", None, common.BOOL, {"hf": "is_decoder"}, words={False: False}, required=False),
)

_BERT = roles(
    bert.EMBEDDING,
    "position_embd.weight f32 : n_ctx n_embd | hf embeddings.position_embeddings.weight",
    block(
        tensors.linear("attn_q", "n_embd n_embd", "attention.self.query", bias=True),
        tensors.linear("attn_k", "n_embd n_embd", "attention.self.key", bias=True),
        tensors.linear("attn_v", "n_embd n_embd", "attention.self.value", bias=True),
        tensors.linear("attn_output", "n_embd n_embd", "attention.output.dense", bias=True),
        tensors.norm("attn_output_norm", "attention.output.LayerNorm", bias=True),
        tensors.plain("", ("intermediate.dense", "output.dense"), bias=True),
        tensors.norm("layer_output_norm", "output.LayerNorm", bias=True),
        layer="encoder.layer.{n}.",
    ),
    embeddings.classifier("pooler.dense", "classifier"),
)
_ROBERTA = varied(
    _BERT, "roberta", "hf",
    """
    position_embd.weight embeddings.position_embeddings.weight @positions
    cls.weight           classifier.dense.weight
    cls.bias             classifier.dense.bias
    cls.output.weight    classifier.out_proj.weight
    cls.output.bias      classifier.out_proj.bias
    """,
    positions=Split("first_position", "n_positions"),
)
ROLES = also(
    _ROBERTA,
    "distil",
    """
    token_embd.weight               embeddings.word_embeddings.weight
    token_embd_norm.weight          embeddings.LayerNorm.weight
    token_embd_norm.bias            embeddings.LayerNorm.bias
    position_embd.weight            embeddings.position_embeddings.weight
    blk.{n}.attn_q.weight           transformer.layer.{n}.attention.q_lin.weight
    blk.{n}.attn_q.bias             transformer.layer.{n}.attention.q_lin.bias
    blk.{n}.attn_k.weight           transformer.layer.{n}.attention.k_lin.weight
    blk.{n}.attn_k.bias             transformer.layer.{n}.attention.k_lin.bias
    blk.{n}.attn_v.weight           transformer.layer.{n}.attention.v_lin.weight
    blk.{n}.attn_v.bias             transformer.layer.{n}.attention.v_lin.bias
    blk.{n}.attn_output.weight      transformer.layer.{n}.attention.out_lin.weight
    blk.{n}.attn_output.bias        transformer.layer.{n}.attention.out_lin.bias
    blk.{n}.attn_output_norm.weight transformer.layer.{n}.sa_layer_norm.weight
    blk.{n}.attn_output_norm.bias   transformer.layer.{n}.sa_layer_norm.bias
    blk.{n}.ffn_up.weight           transformer.layer.{n}.ffn.lin1.weight
    blk.{n}.ffn_up.bias             transformer.layer.{n}.ffn.lin1.bias
    blk.{n}.ffn_down.weight         transformer.layer.{n}.ffn.lin2.weight
    blk.{n}.ffn_down.bias           transformer.layer.{n}.ffn.lin2.bias
    blk.{n}.layer_output_norm.weight transformer.layer.{n}.output_layer_norm.weight
    blk.{n}.layer_output_norm.bias  transformer.layer.{n}.output_layer_norm.bias
    """,
)

_CLASSIFIED = IgnoredKey("problem_type label2id", "how it was trained; id2label says the same")
_UNUSED = IgnoredKey("label2id problem_type", "of a classifier, which is not here")
ENCODER = Dialect(
    "hf",
    fields="hf",
    drops=(
        *(replace(drop, when="classifies == 0") for drop in bert.POOLER),
        *bert.BUFFERS,
        *embeddings.language_heads("cls.predictions.*", "cls.seq_relationship.*", "lm_head.*"),
    ),
    fixed={"causal": False, "classifies": False},
    renames=(("bert.", ""), ("roberta.", ""), ("camembert.", ""), ("distilbert.", "")),
    ignored_keys=(*bert.IGNORED_KEYS, _UNUSED),
)
CLASSIFIER = replace(
    ENCODER,
    name="classifier",
    names="hf",
    classes=("BertForSequenceClassification",),
    drops=bert.BUFFERS,
    fixed={"causal": False, "classifies": True, "pooling": embeddings.RANK},
    ignored_keys=(*bert.IGNORED_KEYS, _CLASSIFIED),
)

SPEC = Architecture(
    name="bert", runtimes=("llama.cpp",),
    display_name="BERT",
    hf_classes=("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        ENCODER,
        CLASSIFIER,
        Dialect("ggml", names="hf", fixed=ENCODER.fixed),
        replace(
            ENCODER,
            name="roberta",
            classes=(
                "RobertaModel",
                "RobertaForMaskedLM",
                "XLMRobertaModel",
                "XLMRobertaForMaskedLM",
                "CamembertModel",
                "CamembertForMaskedLM",
            ),
            fixed={**ENCODER.fixed, "after_padding": True},
        ),
        replace(
            CLASSIFIER,
            name="roberta classifier",
            names="roberta",
            classes=(
                "RobertaForSequenceClassification",
                "XLMRobertaForSequenceClassification",
                "CamembertForSequenceClassification",
            ),
            fixed={**CLASSIFIER.fixed, "after_padding": True},
        ),
        replace(
            ENCODER,
            name="distil",
            classes=("DistilBertModel", "DistilBertForMaskedLM"),
            drops=(*bert.BUFFERS, *embeddings.language_heads("vocab_*")),
            fixed={**ENCODER.fixed, "n_types": 0},
            ignored_keys=(*ENCODER.ignored_keys, IgnoredKey("sinusoidal_pos_embds", "how the positions began")),
        ),
    ),
    recipe={"computation": "bert", "norm": "layer", "rope": "none", "ffn": "plain", "activation": "gelu"},
    headers=(HEADER,),
)
