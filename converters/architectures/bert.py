"""BERT, as models of embeddings use it: the encoder without a head. Sources: `_bert`."""

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import block, roles

HPARAMS = (
    *bert.SIZES, bert.CAUSAL, *bert.POOLING, bert.POOLING_TYPE,
    HParam("activation", None, common.STRING, {"hf": "hidden_act"}, words={"gelu": "gelu"}, required=False),
    HParam("positions", None, common.STRING, {"hf": "position_embedding_type"}, words={"absolute": "absolute"},
           required=False),
    HParam("decoder", None, common.BOOL, {"hf": "is_decoder"}, words={False: False}, required=False),
)  # fmt: skip

ROLES = roles(
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
)

SPEC = Architecture(
    name="bert",
    display_name="BERT",
    hf_classes=("BertModel",),
    hparams=HPARAMS,
    roles=ROLES,
    dialects={
        "hf": Dialect(
            "hf", drops=bert.DROPS, given={"causal": False}, renames=(("bert.", ""),), harmless=bert.HARMLESS
        ),
        "gguf": Dialect("gguf"),
    },
    recipe={"computation": "bert", "norm": "layer", "rope": "none", "ffn": "plain", "activation": "gelu"},
)
