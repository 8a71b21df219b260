"""What the RWKV generations share: BlinkDL's names and Hugging Face's, norms, and the feed-forward half of a block
("channel mix").

A BlinkDL `.pth` is a state dict without a configuration: sizes are those of its tensors, the rest is what the training
code fixes. Names of GGUF: llama.cpp's for RWKV-6 and 7, which this project also gives RWKV-4 (docs/recurrent.md).
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Default, Dialect, HParam
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.layouts.base import SAME, Layout
from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import Roles, block, roles
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.limits import MAX_LAYERS

F32 = ValueType.FLOAT32
VECTOR = Reshape(("n_embd",), back=(1, 1, "n_embd"))  # (1, 1, n) in most checkpoints, (n,) in some

N_VOCAB = common.N_VOCAB
N_EMBD = HParam("n_embd", "embedding_length", fields={"hf": "hidden_size", "ggml": "n_embd"})
N_LAYER = common.N_LAYER
N_FF = common.N_FF
# transformers' RwkvModel norms its last output with torch's default whatever the configuration says: only that fits.
EPS = HParam(
    "eps", "attention.layer_norm_epsilon", F32, {"hf": "layer_norm_epsilon|norm_eps"}, words={1e-5: 1e-5},
    defaults=(Default(1e-5, "torch's layer_norm, which RWKV calls without another"),),
)
DROP_TIED = replace(common.DROP_TIED, pattern="head.weight")
HEAD_SIZE = HParam(
    "head_size", "wkv.head_size", fields={"hf": "head_size|head_dim"}, check="0 < head_size and n_embd % head_size == 0"
)

# Of the columns, `hf` is that of RwkvForCausalLM and Rwkv6ForCausalLM.
FRAME = roles("""
token_embd.weight              : n_vocab n_embd | hf rwkv.embeddings.weight | blinkdl emb.weight
token_embd_norm.weight f32     : n_embd         | hf rwkv.blocks.0.pre_ln.weight | blinkdl blocks.0.ln0.weight
token_embd_norm.bias           : n_embd         | hf rwkv.blocks.0.pre_ln.bias | blinkdl blocks.0.ln0.bias
output_norm.weight f32         : n_embd         | hf rwkv.ln_out.weight | blinkdl ln_out.weight
output_norm.bias               : n_embd         | hf rwkv.ln_out.bias | blinkdl ln_out.bias
output.weight when=tied == 0     : n_vocab n_embd | hf head.weight | blinkdl head.weight
blk.{n}.attn_norm.weight f32   : n_embd         | hf rwkv.blocks.{n}.ln1.weight | blinkdl blocks.{n}.ln1.weight
blk.{n}.attn_norm.bias         : n_embd         | hf rwkv.blocks.{n}.ln1.bias | blinkdl blocks.{n}.ln1.bias
blk.{n}.attn_norm_2.weight f32 : n_embd         | hf rwkv.blocks.{n}.ln2.weight | blinkdl blocks.{n}.ln2.weight
blk.{n}.attn_norm_2.bias       : n_embd         | hf rwkv.blocks.{n}.ln2.bias | blinkdl blocks.{n}.ln2.bias
""")

LOW_RANKS_6 = ("time_mix_w1", "time_mix_w2", "time_mix_decay_w1", "time_mix_decay_w2")
LOW_RANKS_7 = tuple(f"time_mix_{name}{number}" for name in "wavg" for number in (1, 2))
"""Low-rank matrices that checkpoints keep with a column for each output."""
TIME_MIX = {"hf": "rwkv.blocks.{n}.attention.", "blinkdl": "blocks.{n}.att."}
BLINKDL = Dialect("blinkdl", fixed={"tied": False})


def channel_mix(hf: tuple[str, str], blinkdl: tuple[str, str], value: Layout = SAME) -> Roles:
    """Return the feed-forward half of RWKV-4 and 6; `hf`, `blinkdl`: what each calls the shares of the token before in
    keys and receptances; `value`: the layout of its last matrix."""
    return block(
        f"""
        channel_mix_key.weight        : n_ff n_embd   | hf,blinkdl key.weight
        channel_mix_receptance.weight : n_embd n_embd | hf,blinkdl receptance.weight
        channel_mix_value.weight      : n_embd n_ff   | hf value.weight @value | blinkdl value.weight
        channel_mix_lerp_k.weight     : n_embd        | hf {hf[0]} @vector | blinkdl {blinkdl[0]} @vector
        channel_mix_lerp_r.weight     : n_embd        | hf {hf[1]} @vector | blinkdl {blinkdl[1]} @vector
        """,
        layer={"hf": "rwkv.blocks.{n}.feed_forward.", "blinkdl": "blocks.{n}.ffn."},
        value=value, vector=VECTOR,
    )


def rescale_period(values: Values) -> int:
    """Blocks after which RWKV-6 halves its stream; more than there can be where it never does."""
    return int(values.get("rescale_every") or MAX_LAYERS)
