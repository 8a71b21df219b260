"""BERT, as models of embeddings use it: the encoder without a head. Sources: `_bert`."""

from ggferry.converters.architectures import _bert as bert
from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Architecture, Dialect, HParam
from ggferry.converters.schema.roles import roles

HPARAMS = (
    *bert.SIZES, bert.CAUSAL, *bert.POOLING, bert.POOLING_TYPE,
    HParam("activation", None, common.STRING, {"hf": "hidden_act"}, words={"gelu": "gelu"}, required=False),
    HParam("positions", None, common.STRING, {"hf": "position_embedding_type"}, words={"absolute": "absolute"},
           required=False),
    HParam("decoder", None, common.BOOL, {"hf": "is_decoder"}, words={False: False}, required=False),
)  # fmt: skip

ROLES = roles(
    bert.EMBEDDING
    + """
    position_embd.weight f32            : n_ctx n_embd  | hf embeddings.position_embeddings.weight
    blk.{n}.attn_q.weight               : n_embd n_embd | hf LAYER.attention.self.query.weight
    blk.{n}.attn_q.bias                 : n_embd        | hf LAYER.attention.self.query.bias
    blk.{n}.attn_k.weight               : n_embd n_embd | hf LAYER.attention.self.key.weight
    blk.{n}.attn_k.bias                 : n_embd        | hf LAYER.attention.self.key.bias
    blk.{n}.attn_v.weight               : n_embd n_embd | hf LAYER.attention.self.value.weight
    blk.{n}.attn_v.bias                 : n_embd        | hf LAYER.attention.self.value.bias
    blk.{n}.attn_output.weight          : n_embd n_embd | hf LAYER.attention.output.dense.weight
    blk.{n}.attn_output.bias            : n_embd        | hf LAYER.attention.output.dense.bias
    blk.{n}.attn_output_norm.weight f32 : n_embd        | hf LAYER.attention.output.LayerNorm.weight
    blk.{n}.attn_output_norm.bias       : n_embd        | hf LAYER.attention.output.LayerNorm.bias
    blk.{n}.ffn_up.weight               : n_ff n_embd   | hf LAYER.intermediate.dense.weight
    blk.{n}.ffn_up.bias                 : n_ff          | hf LAYER.intermediate.dense.bias
    blk.{n}.ffn_down.weight             : n_embd n_ff   | hf LAYER.output.dense.weight
    blk.{n}.ffn_down.bias               : n_embd        | hf LAYER.output.dense.bias
    blk.{n}.layer_output_norm.weight f32 : n_embd       | hf LAYER.output.LayerNorm.weight
    blk.{n}.layer_output_norm.bias      : n_embd        | hf LAYER.output.LayerNorm.bias
    """.replace("LAYER", "encoder.layer.{n}")
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
