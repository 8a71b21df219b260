"""What the RWKV generations share: BlinkDL's names and Hugging Face's, norms, and the feed-forward half of a block
("channel mix").

A BlinkDL `.pth` is a state dict without a configuration: sizes are those of its tensors, the rest is what the training
code fixes. Names of GGUF: llama.cpp's for RWKV-6 and 7, which this project also gives RWKV-4 (docs/recurrent.md).
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Default, Dialect, HParam
from ggferry.converters.schema.layouts import Reshape
from ggferry.formats.gguf.values import ValueType

F32 = ValueType.FLOAT32
VECTOR = Reshape(("n_embd",))  # (1, 1, n) in most checkpoints, (n,) in some

N_VOCAB = common.N_VOCAB
N_EMBD = HParam("n_embd", "embedding_length", fields={"hf": "hidden_size", "ggml": "n_embd"})
N_LAYER = common.N_LAYER
N_FF = common.N_FF
# transformers' RwkvModel norms its last output with torch's default whatever the configuration says: only that fits.
EPS = HParam(
    "eps", "attention.layer_norm_epsilon", F32, {"hf": "layer_norm_epsilon|norm_eps"}, words={1e-5: 1e-5},
    defaults=(Default(1e-5, "torch's layer_norm, which RWKV calls without another"),),
)  # fmt: skip
HEAD_SIZE = HParam(
    "head_size", "wkv.head_size", fields={"hf": "head_size|head_dim"}, check="0 < head_size and n_embd % head_size == 0"
)

# Of the columns, `hf` is that of RwkvForCausalLM and Rwkv6ForCausalLM.
FRAME = """
token_embd.weight              : n_vocab n_embd | hf rwkv.embeddings.weight | blinkdl emb.weight
token_embd_norm.weight f32     : n_embd         | hf rwkv.blocks.0.pre_ln.weight | blinkdl blocks.0.ln0.weight
token_embd_norm.bias           : n_embd         | hf rwkv.blocks.0.pre_ln.bias | blinkdl blocks.0.ln0.bias
output_norm.weight f32         : n_embd         | hf rwkv.ln_out.weight | blinkdl ln_out.weight
output_norm.bias               : n_embd         | hf rwkv.ln_out.bias | blinkdl ln_out.bias
output.weight when=tied==0     : n_vocab n_embd | hf head.weight | blinkdl head.weight
blk.{n}.attn_norm.weight f32   : n_embd         | hf rwkv.blocks.{n}.ln1.weight | blinkdl blocks.{n}.ln1.weight
blk.{n}.attn_norm.bias         : n_embd         | hf rwkv.blocks.{n}.ln1.bias | blinkdl blocks.{n}.ln1.bias
blk.{n}.attn_norm_2.weight f32 : n_embd         | hf rwkv.blocks.{n}.ln2.weight | blinkdl blocks.{n}.ln2.weight
blk.{n}.attn_norm_2.bias       : n_embd         | hf rwkv.blocks.{n}.ln2.bias | blinkdl blocks.{n}.ln2.bias
"""
CHANNEL_MIX = """
blk.{n}.channel_mix_key.weight        : n_ff n_embd   | hf HFkey.weight | blinkdl PTHkey.weight
blk.{n}.channel_mix_receptance.weight : n_embd n_embd | hf HFreceptance.weight | blinkdl PTHreceptance.weight
blk.{n}.channel_mix_value.weight      : n_embd n_ff   | hf HFvalue.weight @output | blinkdl PTHvalue.weight
blk.{n}.channel_mix_lerp_k.weight     : n_embd        | hf HFMIX_k @vector | blinkdl PTHMIX_k @vector
blk.{n}.channel_mix_lerp_r.weight     : n_embd        | hf HFMIX_r @vector | blinkdl PTHMIX_r @vector
""".replace("HF", "rwkv.blocks.{n}.feed_forward.").replace("PTH", "blocks.{n}.ffn.")

BLINKDL = Dialect("blinkdl", given={"tied": False})
