"""Role lines of the families that took their names from Megatron: GPT-NeoX, BLOOM, Falcon.

LAYER and ATTN stand for an architecture's prefixes, BIASED for the condition under which its linear layers have biases.
"""

from ggferry.converters.architectures import _gpt as gpt

FIRST_NORM = """
blk.{n}.attn_norm.weight f32 : n_embd | hf LAYER.input_layernorm.weight
blk.{n}.attn_norm.bias       : n_embd | hf LAYER.input_layernorm.bias
"""
ATTENTION = """
blk.{n}.attn_qkv.weight         : QKV n_embd             | hf LAYER.ATTN.query_key_value.weight @qkv
blk.{n}.attn_qkv.bias BIASED    : QKV                    | hf LAYER.ATTN.query_key_value.bias @qkv
blk.{n}.attn_output.weight      : n_embd n_head*head_dim | hf LAYER.ATTN.dense.weight
blk.{n}.attn_output.bias BIASED : n_embd                 | hf LAYER.ATTN.dense.bias
""".replace("QKV", gpt.QKV)
SECOND_NORM = """
blk.{n}.ffn_norm.weight f32 FLAG : n_embd | hf LAYER.post_attention_layernorm.weight
blk.{n}.ffn_norm.bias FLAG       : n_embd | hf LAYER.post_attention_layernorm.bias
"""
FFN = """
blk.{n}.ffn_up.weight           : n_ff n_embd            | hf LAYER.mlp.dense_h_to_4h.weight
blk.{n}.ffn_up.bias BIASED      : n_ff                   | hf LAYER.mlp.dense_h_to_4h.bias
blk.{n}.ffn_down.weight         : n_embd n_ff            | hf LAYER.mlp.dense_4h_to_h.weight
blk.{n}.ffn_down.bias BIASED    : n_embd                 | hf LAYER.mlp.dense_4h_to_h.bias
"""
