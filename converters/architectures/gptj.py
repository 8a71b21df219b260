"""GPT-J and CodeGen: attention and feed-forward side by side behind one norm, the first dimensions of each head turned
in pairs.

Source: gguf-spec.md "GPT-J" for the keys, gguf-py's table for the names, transformers `modeling_gptj.py` for the graph.
llama.cpp knows the name and has no graph.
"""

from dataclasses import replace

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gpt as gpt
from ggferry.converters.architectures import _rope as rope
from ggferry.converters.architectures import _tensors as tensors
from ggferry.converters.schema.architecture import Architecture, Default, Dialect, Drop, HParam, IgnoredKey
from ggferry.converters.schema.layouts.base import Then
from ggferry.converters.schema.layouts.order import Rearrange
from ggferry.converters.schema.layouts.parts import Split, Transpose
from ggferry.converters.schema.roles import block, roles, varied
from ggferry.formats.fields import Struct
from ggferry.formats.reader import HeaderLayout, VocabLayout

# Both classes compute with this base whatever keys of it a configuration has (`create_sinusoidal_positions`).
BASE = replace(rope.BASE, fields={}, defaults=(Default(10000.0, "the class has no other base"),))
HPARAMS = (
    *gpt.SIZES, gpt.N_HEAD_KV,
    HParam("n_rot", "rope.dimension_count", fields={"hf": "rotary_dim", "ggml": "n_rot"},
           check="n_rot % 2 == 0 and 0 < n_rot and n_rot <= head_dim"),
    BASE, common.TIED, gpt.GELU_TANH,
)

ROLES = roles(
    gpt.embedding(),
    "output.bias : n_vocab | hf lm_head.bias",
    block(
        gpt.attention_norm(),
        tensors.attention("attn.", ("q_proj", "k_proj", "v_proj", "out_proj"), width_v="head_dim"),
        tensors.plain(names=("fc_in", "fc_out"), bias=True),
        layer=gpt.LAYER,
    ),
)
# Before 29 March 2023 (ggml acd4aeee) all matrices but fc_out lay turned.
ROLES = varied(
    ROLES, "ggml-turned", "hf",
    """
    blk.{n}.attn_q.weight      transformer.h.{n}.attn.q_proj.weight @rotated
    blk.{n}.attn_k.weight      transformer.h.{n}.attn.k_proj.weight @rotated
    blk.{n}.attn_v.weight      transformer.h.{n}.attn.v_proj.weight @rotated
    blk.{n}.attn_output.weight transformer.h.{n}.attn.out_proj.weight @rotated
    blk.{n}.ffn_up.weight      transformer.h.{n}.mlp.fc_in.weight @rotated
    """,
    rotated=Transpose(),
)

# CodeGen: queries, values and keys of four groups of heads, one for each core it was trained on.
_PARTS = Rearrange("(core part d) -> (part core d)", (("core", 4), ("part", 3)))
ROLES = varied(
    ROLES, "codegen", "hf",
    """
    blk.{n}.attn_q.weight transformer.h.{n}.attn.qkv_proj.weight @queries
    blk.{n}.attn_k.weight transformer.h.{n}.attn.qkv_proj.weight @keys
    blk.{n}.attn_v.weight transformer.h.{n}.attn.qkv_proj.weight @values
    """,
    queries=Then(_PARTS, Split(0, "n_embd")),
    keys=Then(_PARTS, Split("2*n_embd", "3*n_embd")),
    values=Then(_PARTS, Split("n_embd", "2*n_embd")),
)

HEADER = HeaderLayout(
    name="gptj",
    containers=gpt.GGML_CONTAINERS,
    header=Struct(
        "GPT-J header",
        """
        n_vocab  i32  1..MAX_GGML_VOCAB  tokens, and rows of the embedding
        n_ctx    i32  1..            positions
        n_embd   i32  1..MAX_WIDTH   columns of the embedding
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   rotated part of a head
        ftype    i32  0..            quantization version * 1000 + GGML_FTYPE; the tensors' own types decide
        """,
    ),
    names=("transformer.h.*.attn.q_proj.weight",),
    vocab=VocabLayout("again", pre="gpt-2"),
    quantization=0,
)

SPEC = Architecture(
    name="gptj",
    display_name="GPT-J",
    hf_classes=("GPTJForCausalLM", "CodeGenForCausalLM"),
    hparams=HPARAMS,
    roles=ROLES,
    dialects=(
        Dialect("hf", drops=gpt.DROPS, ignored_keys=(IgnoredKey("rotary scale_attn_weights", "always", (True,)),)),
        Dialect(
            "codegen",
            fields="hf",
            classes=("CodeGenForCausalLM",),
            conventions={"qkv": "shards"},
            drops=(*gpt.DROPS, Drop("*.attn.causal_mask", "a buffer: the causal mask", follows=True)),
            ignored_keys=(IgnoredKey("rotary scale_attn_weights", "always", (True,)),),
        ),
        Dialect(
            "ggml-turned",
            conventions={"transposed": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up")},
            fields="ggml",
            shaped=("transformer.h.0.mlp.fc_in.weight", "n_embd", "4*n_embd"),
        ),
        Dialect("ggml", names="hf", drops=gpt.DROP_MASKS),
    ),
    recipe={**gpt.RECIPE, "rope": "pairs", "qkv": "separate", "residual": "parallel"},
    runtimes=(),
    headers=(HEADER,),
)
