"""LLaMA: Meta's 1 and 2, and every model that shares their graph.

Sources: facts/legacy-llama.md §2–4 (headers, names, what is absent), gguf-spec.md "LLaMA", llama.cpp's
`src/models/llama.cpp` for the graph. Meta, GGML and GGUF store Q and K rows as interleaved rotary pairs, Hugging Face
as halves: only the latter is permuted.
"""

from ggferry.converters.layout import heads_halves_to_pairs
from ggferry.converters.spec import Architecture, Default, Dialect, HParam, Remark, roles
from ggferry.formats.fields import Struct
from ggferry.formats.gguf_values import ValueType
from ggferry.formats.reader import HeaderLayout

_LLAMA2 = r"(?i)llama[-_. ]?(v)?2(?![0-9])"
_GQA = "n_head_kv < n_head"

HEADER = HeaderLayout(
    name="llama",
    containers=(("ggml", None), ("ggmf", 1), ("ggjt", 1), ("ggjt", 2), ("ggjt", 3)),
    header=Struct(
        "LLaMA header",
        """
        n_vocab  i32  1..MAX_VOCAB   tokens, and rows of tok_embeddings
        n_embd   i32  1..MAX_WIDTH   columns of tok_embeddings
        n_mult   i32  1..MAX_WIDTH   n_ff was rounded up to a multiple of it
        n_head   i32  1..MAX_HEADS   query heads
        n_layer  i32  1..MAX_LAYERS  blocks
        n_rot    i32  0..MAX_WIDTH   obsolete; 64 in files of 10 March 2023 whatever the model
        ftype    i32  0..18          llama_ftype; the tensors' own types decide
        """,
    ),
    names=("tok_embeddings.weight", "layers.*.attention.w[qkvo].weight", "layers.*.feed_forward.w[123].weight"),
    embedding="tok_embeddings.weight",
    column_split=("tok_embeddings.weight", "*.attention.wo.weight", "*.feed_forward.w2.weight"),
)

HPARAMS = (
    HParam("n_vocab", "vocab_size", fields={"ggml": "n_vocab", "gguf": "llama.vocab_size"}),
    HParam(
        "n_ctx",
        "context_length",
        fields={"gguf": "llama.context_length"},
        defaults=(
            Default(4096, "grouped-query attention in a legacy file: LLaMA-2, trained on 4096 tokens", when=_GQA),
            Default(4096, "the name says LLaMA-2, trained on 4096 tokens", named=_LLAMA2),
            Default(2048, "LLaMA-1 was trained on 2048 tokens; legacy files do not store it"),
        ),
    ),
    HParam("n_embd", "embedding_length", fields={"ggml": "n_embd", "gguf": "llama.embedding_length"}),
    HParam("n_layer", "block_count", fields={"ggml": "n_layer", "gguf": "llama.block_count"}),
    HParam("n_ff", "feed_forward_length", fields={"gguf": "llama.feed_forward_length"}),
    HParam("n_head", "attention.head_count", fields={"ggml": "n_head", "gguf": "llama.attention.head_count"}),
    HParam("n_head_kv", "attention.head_count_kv", fields={"gguf": "llama.attention.head_count_kv"}),
    HParam("head_dim", None, fields={"gguf": "llama.attention.key_length"}, derive="n_embd / n_head"),
    HParam("n_rot", "rope.dimension_count", fields={"gguf": "llama.rope.dimension_count"}, derive="head_dim"),
    HParam(
        "eps",
        "attention.layer_norm_rms_epsilon",
        ValueType.FLOAT32,
        fields={"gguf": "llama.attention.layer_norm_rms_epsilon"},
        defaults=(
            Default(1e-5, "grouped-query attention in a legacy file: LLaMA-2, trained with 1e-5", when=_GQA),
            Default(1e-5, "the name says LLaMA-2, trained with 1e-5", named=_LLAMA2),
            Default(1e-6, "LLaMA-1 was trained with 1e-6, and llama.cpp used it from 19 March to 24 July 2023"),
        ),
    ),
    HParam(
        "rope_base",
        "rope.freq_base",
        ValueType.FLOAT32,
        fields={"gguf": "llama.rope.freq_base"},
        defaults=(Default(10000.0, "the base of LLaMA-1 and LLaMA-2; legacy files do not store it"),),
    ),
)

ROLES = roles(
    """
    token_embd.weight               : n_vocab n_embd             | meta tok_embeddings.weight
    output_norm.weight f32          : n_embd                     | meta norm.weight
    output.weight                   : n_vocab n_embd             | meta output.weight
    blk.{n}.attn_norm.weight f32    : n_embd                     | meta layers.{n}.attention_norm.weight
    blk.{n}.attn_q.weight           : n_head*head_dim n_embd     | meta layers.{n}.attention.wq.weight
    blk.{n}.attn_k.weight           : n_head_kv*head_dim n_embd  | meta layers.{n}.attention.wk.weight
    blk.{n}.attn_v.weight           : n_head_kv*head_dim n_embd  | meta layers.{n}.attention.wv.weight
    blk.{n}.attn_output.weight      : n_embd n_head*head_dim     | meta layers.{n}.attention.wo.weight
    blk.{n}.ffn_norm.weight f32     : n_embd                     | meta layers.{n}.ffn_norm.weight
    blk.{n}.ffn_gate.weight         : n_ff n_embd                | meta layers.{n}.feed_forward.w1.weight
    blk.{n}.ffn_down.weight         : n_embd n_ff                | meta layers.{n}.feed_forward.w2.weight
    blk.{n}.ffn_up.weight           : n_ff n_embd                | meta layers.{n}.feed_forward.w3.weight
    """,
    q=heads_halves_to_pairs("n_head"),
    k=heads_halves_to_pairs("n_head_kv"),
)

_N_FF = "(8 * n_embd // 3 + header_n_mult - 1) // header_n_mult * header_n_mult"
_META_WIDTHS = " and ".join(f"n_embd != {width}" for width in (4096, 5120, 6656, 8192))

REMARKS = (
    Remark(
        f"header_n_mult == 256 and header_n_head * 128 == n_embd and header_n_head == n_head and {_META_WIDTHS}",
        "attention.head_count={n_head} is n_embd / 128, which is what convert.py wrote from 14 April to 22 June 2023 "
        "without knowing; no tensor can confirm it: --hparam attention.head_count=N if the model has another number",
    ),
    Remark(
        f"{_N_FF} != n_ff",
        "the header's n_mult={header_n_mult} does not lead to the feed-forward width of the tensors, {n_ff}: "
        "the tensors' is taken",
    ),
    Remark("header_n_rot != n_rot", "the header's n_rot={header_n_rot} is obsolete: {n_rot} = n_embd / n_head is taken"),
)

SPEC = Architecture(
    name="llama",
    display_name="LLaMA",
    hparams=HPARAMS,
    roles=ROLES,
    dialects={"ggml": Dialect("ggml", names="meta", remarks=REMARKS), "gguf": Dialect("gguf")},
    recipe={"norm": "rms", "rope": "pairs", "ffn": "gated", "activation": "silu"},
    headers=(HEADER,),
)
