"""Roles of NVIDIA NeMo's FastConformer, under its own names.

Source: NeMo `conformer_encoder.py`; llama.cpp `conversion/gemma.py` (ConformerAudioModel), `conversion/lfm2.py`, and
what clip.cpp asks of such a file.
"""

from ggferry.converters.schema.layouts.parts import Reshape, Squeeze
from ggferry.converters.schema.layouts.towers import NormFactor, NormShift
from ggferry.converters.schema.roles import Roles, block, roles


def folded(source: str, width: str) -> Roles:
    """Return the factor and the shift of the batch norm that a checkpoint calls `source`."""
    first, last = f"{source}.weight", f"{source}.running_var"
    return roles(
        f"""
        conv_norm.weight f32 : {width} | hf {first} {last} @factor
        conv_norm.bias f32   : {width} | hf {source}.bias {first} {source}.running_mean {last} @shift
        """,
        factor=NormFactor(),
        shift=NormShift(),
    )


CONVOLUTIONS = roles(
    """
    a.conv1d.0.weight f32   : a_wide 1 3 3      | hf conv.0.weight
    a.conv1d.0.bias f32     : a_wide 1 1        | hf conv.0.bias @shaped
    a.conv1d.2.weight f32   : a_wide 1 3 3      | hf conv.2.weight
    a.conv1d.2.bias f32     : a_wide 1 1        | hf conv.2.bias @shaped
    a.conv1d.3.weight f32   : a_wide a_wide 1 1 | hf conv.3.weight
    a.conv1d.3.bias f32     : a_wide 1 1        | hf conv.3.bias @shaped
    a.conv1d.5.weight f32   : a_wide 1 3 3      | hf conv.5.weight
    a.conv1d.5.bias f32     : a_wide 1 1        | hf conv.5.bias @shaped
    a.conv1d.6.weight f32   : a_wide a_wide 1 1 | hf conv.6.weight
    a.conv1d.6.bias f32     : a_wide 1 1        | hf conv.6.bias @shaped
    a.pre_encode.out.weight : a_n_embd a_wide*((((a_n_mels+1)//2+1)//2+1)//2) | hf out.weight
    a.pre_encode.out.bias   : a_n_embd          | hf out.bias
    """,
    under={"hf": "conformer.pre_encode."},
    shaped=Reshape(("a_wide", "1", "1"), back=("a_wide",)),
)

BLOCKS = block(
    """
    ffn_norm.weight f32   : a_n_embd            | hf norm_feed_forward1.weight
    ffn_norm.bias         : a_n_embd            | hf norm_feed_forward1.bias
    ffn_up.weight         : a_inner a_n_embd    | hf feed_forward1.linear1.weight
    ffn_up.bias           : a_inner             | hf feed_forward1.linear1.bias
    ffn_down.weight       : a_n_embd a_inner    | hf feed_forward1.linear2.weight
    ffn_down.bias         : a_n_embd            | hf feed_forward1.linear2.bias
    ln1.weight f32        : a_n_embd            | hf norm_self_att.weight
    ln1.bias              : a_n_embd            | hf norm_self_att.bias
    attn_q.weight         : a_n_embd a_n_embd   | hf self_attn.linear_q.weight
    attn_q.bias           : a_n_embd            | hf self_attn.linear_q.bias
    attn_k.weight         : a_n_embd a_n_embd   | hf self_attn.linear_k.weight
    attn_k.bias           : a_n_embd            | hf self_attn.linear_k.bias
    attn_v.weight         : a_n_embd a_n_embd   | hf self_attn.linear_v.weight
    attn_v.bias           : a_n_embd            | hf self_attn.linear_v.bias
    attn_out.weight       : a_n_embd a_n_embd   | hf self_attn.linear_out.weight
    attn_out.bias         : a_n_embd            | hf self_attn.linear_out.bias
    linear_pos.weight     : a_n_embd a_n_embd   | hf self_attn.linear_pos.weight
    pos_bias_u f32        : a_n_head a_n_embd/a_n_head | hf self_attn.pos_bias_u
    pos_bias_v f32        : a_n_head a_n_embd/a_n_head | hf self_attn.pos_bias_v
    norm_conv.weight f32  : a_n_embd            | hf norm_conv.weight
    norm_conv.bias        : a_n_embd            | hf norm_conv.bias
    conv_pw1.weight       : 2*a_n_embd a_n_embd | hf conv.pointwise_conv1.weight @wide
    conv_pw1.bias         : 2*a_n_embd          | hf conv.pointwise_conv1.bias
    conv_dw.weight f32    : a_n_embd a_kernel   | hf conv.depthwise_conv.weight @each
    conv_dw.bias          : a_n_embd            | hf conv.depthwise_conv.bias
    """,
    folded("conv.batch_norm", "a_n_embd"),
    """
    conv_pw2.weight       : a_n_embd a_n_embd   | hf conv.pointwise_conv2.weight @narrow
    conv_pw2.bias         : a_n_embd            | hf conv.pointwise_conv2.bias
    ffn_norm_1.weight f32 : a_n_embd            | hf norm_feed_forward2.weight
    ffn_norm_1.bias       : a_n_embd            | hf norm_feed_forward2.bias
    ffn_up_1.weight       : a_inner a_n_embd    | hf feed_forward2.linear1.weight
    ffn_up_1.bias         : a_inner             | hf feed_forward2.linear1.bias
    ffn_down_1.weight     : a_n_embd a_inner    | hf feed_forward2.linear2.weight
    ffn_down_1.bias       : a_n_embd            | hf feed_forward2.linear2.bias
    ln2.weight f32        : a_n_embd            | hf norm_out.weight
    ln2.bias              : a_n_embd            | hf norm_out.bias
    """,
    name="a.blk.{n}.",
    layer="conformer.layers.{n}.",
    wide=Reshape(("2*a_n_embd", "a_n_embd"), back=("2*a_n_embd", "a_n_embd", "1")),
    narrow=Reshape(("a_n_embd", "a_n_embd"), back=("a_n_embd", "a_n_embd", "1")),
    each=Squeeze(1),
)
