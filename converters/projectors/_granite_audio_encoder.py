"""Roles of Granite Speech's audio encoder: a conformer, and a Q-Former behind it."""

from ggferry.converters.projectors import _conformer as conformer
from ggferry.converters.projectors import _qformer as qformer
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.parts import Reshape, Split, Squeeze
from ggferry.converters.schema.roles import block, roles


def features(values: Values) -> int:
    """Return of how many earlier layers the states are laid beside the last ones."""
    return len(values.get("a_feature_layers") or ())


ENDS = roles(
    """
    a.input_projection.weight : a_n_embd a_n_mels  | hf encoder.input_linear.weight
    a.input_projection.bias   : a_n_embd           | hf encoder.input_linear.bias
    a.enc_ctc_out.weight      : a_classes a_n_embd | hf encoder.out.weight
    a.enc_ctc_out.bias        : a_classes          | hf encoder.out.bias
    a.enc_ctc_out_mid.weight  : a_n_embd a_classes | hf encoder.out_mid.weight
    a.enc_ctc_out_mid.bias    : a_n_embd           | hf encoder.out_mid.bias
    a.proj_query f32          : 1 a_proj_window/a_proj_downsample a_n_embd | hf projector.query
    a.proj_norm.weight f32    : a_n_embd           | hf projector.qformer.layernorm.weight
    a.proj_norm.bias          : a_n_embd           | hf projector.qformer.layernorm.bias
    a.proj_linear.weight      : a_projection a_n_embd | hf projector.linear.weight
    a.proj_linear.bias        : a_projection       | hf projector.linear.bias
    """
)

BLOCKS = block(
    """
    ffn_norm.weight f32        : a_n_embd                 | hf ff1.pre_norm.weight
    ffn_norm.bias              : a_n_embd                 | hf ff1.pre_norm.bias
    ffn_up.weight              : a_n_ff a_n_embd          | hf ff1.up_proj.weight
    ffn_up.bias                : a_n_ff                   | hf ff1.up_proj.bias
    ffn_down.weight            : a_n_embd a_n_ff          | hf ff1.down_proj.weight
    ffn_down.bias              : a_n_embd                 | hf ff1.down_proj.bias
    ln1.weight f32             : a_n_embd                 | hf attn.pre_norm.weight
    ln1.bias                   : a_n_embd                 | hf attn.pre_norm.bias
    attn_q.weight              : a_n_embd a_n_embd        | hf attn.to_q.weight
    attn_k.weight              : a_n_embd a_n_embd        | hf attn.to_kv.weight @keys
    attn_v.weight              : a_n_embd a_n_embd        | hf attn.to_kv.weight @values
    attn_out.weight            : a_n_embd a_n_embd        | hf attn.to_out.weight
    attn_out.bias              : a_n_embd                 | hf attn.to_out.bias
    attn_rel_pos_emb f32       : 2*a_max_pos+1 a_n_embd/a_n_head | hf attn.rel_pos_emb.weight
    norm_conv.weight f32       : a_n_embd                 | hf conv.norm.weight
    norm_conv.bias             : a_n_embd                 | hf conv.norm.bias
    conv_pw1.weight            : 2*a_inner a_n_embd       | hf conv.up_conv.weight @wide
    conv_pw1.bias              : 2*a_inner                | hf conv.up_conv.bias
    conv_dw.weight f32         : a_inner a_kernel         | hf conv.depth_conv.conv.weight @each
    """,
    conformer.folded("conv.batch_norm", "a_inner"),
    """
    conv_pw2.weight            : a_n_embd a_inner         | hf conv.down_conv.weight @narrow
    conv_pw2.bias              : a_n_embd                 | hf conv.down_conv.bias
    ffn_norm_1.weight f32      : a_n_embd                 | hf ff2.pre_norm.weight
    ffn_norm_1.bias            : a_n_embd                 | hf ff2.pre_norm.bias
    ffn_up_1.weight            : a_n_ff a_n_embd          | hf ff2.up_proj.weight
    ffn_up_1.bias              : a_n_ff                   | hf ff2.up_proj.bias
    ffn_down_1.weight          : a_n_embd a_n_ff          | hf ff2.down_proj.weight
    ffn_down_1.bias            : a_n_embd                 | hf ff2.down_proj.bias
    ln2.weight f32             : a_n_embd                 | hf post_norm.weight
    ln2.bias                   : a_n_embd                 | hf post_norm.bias
    """,
    name="a.blk.{n}.",
    layer="encoder.layers.{n}.",
    keys=Split("0", "a_n_embd"),
    values=Split("a_n_embd", "2*a_n_embd"),
    wide=Reshape(("2*a_inner", "a_n_embd"), back=("2*a_inner", "a_n_embd", "1")),
    narrow=Reshape(("a_n_embd", "a_inner"), back=("a_n_embd", "a_inner", "1")),
    each=Squeeze(1),
)

QUERIES = qformer.blocks(
    "a.proj_blk.{n}.", "projector.qformer.encoder.layer.{n}.", "a_n_embd", "a_states", "a_proj_ff"
)
