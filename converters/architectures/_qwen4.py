"""What only Qwen4-Exp has: blocks of tokens chosen by averaged keys, and embeddings of hashed sequences of tokens.

Sources: transformers `{configuration,modeling}_qwen4_exp.py`; llama.cpp `src/models/qwen4exp.cpp`,
`conversion/qwen4exp.py`. A sequence of up to `ngram_size` tokens is hashed to a row of a table, by several heads: each
has a range of rows of its own, as long as a prime number. Multipliers and ranges are tensors of a checkpoint, which
transformers loads; where they are absent, it computes them as here.
"""

from dataclasses import replace
from typing import Any

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _gated_delta as delta
from ggferry.converters.architectures import _nextn as nextn
from ggferry.converters.architectures import _qwen35 as qwen35
from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Caveat, Default, HParam, Role
from ggferry.converters.schema.derivations import Values, multipliers_of
from ggferry.converters.schema.layouts.parts import Split
from ggferry.converters.schema.layouts.values import ADD_ONE
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType

BOOL, UINT64 = ValueType.BOOL, ValueType.UINT64
SEED = 1234
"""transformers' default."""
MOST_ROWS, MOST_HEADS = (1 << 31) - 1, 512
"""llama.cpp counts rows in int32, and 64 heads at most; the search for primes ends."""


def ratios(values: Values) -> tuple[int, ...]:
    """attention.compress_ratios: how many tokens are one key of the indexer, in blocks that attend."""
    return tuple(0 if linear_attention else values["block_tokens"] for linear_attention in values["recurrent"])


def block_tokens(values: Values) -> int:
    """The one number of tokens that blocks of tokens have. Raises ValueError where there are several."""
    found = {ratio for ratio in values["ratio"] if ratio}
    if len(found) > 1:
        raise ValueError(f"blocks of {' and of '.join(map(str, sorted(found)))} tokens")
    return found.pop() if found else 0


def embedded_layers(values: Values) -> tuple[int, ...] | None:
    """ple.layers: the blocks with hashed embeddings, counted from zero; a configuration counts from one."""
    found = sorted(set(values["ple_stated"]))
    if not found:
        return None
    if found[0] < 1:
        raise ValueError("ple_layer_ids counts blocks from one")
    return tuple(n - 1 for n in found)


def _modules(values: Values) -> int:
    """How many blocks have hashed embeddings."""
    return len(values.get("ple_layers") or values.get("ple_stated") or ())


def _layer(values: Values) -> int:
    """The block with hashed embeddings. Raises ValueError for one that attends: only linear attention keeps states."""
    if not values["ple_layers"]:
        raise ValueError("ple.layers names no block")
    found, recurrent = int(values["ple_layers"][0]), values["recurrent"]
    if found < len(recurrent) and not recurrent[found]:
        raise ValueError(f"hashed embeddings in block {found}, which attends")
    return found


def _declared(values: Values) -> int:
    return len(values["ple_stated"])


def hash_end(values: Values) -> int | None:
    """ple.eos_token_id: the token before which no sequence begins, the first one of several."""
    listed = values["eos_listed"]
    return int(listed[0] if isinstance(listed, tuple) else listed) if values["n_ple"] else None


def _ends(values: Values) -> int:
    listed = values["eos_listed"]
    return len(listed) if isinstance(listed, tuple) else 1


def where_hashed(name: str, values: Values) -> int | None:
    """What the configuration states by this name, where there are hashed embeddings."""
    return int(values[name]) if values["n_ple"] else None


def sequence_length(values: Values) -> int | None:
    """ple.ngram_size."""
    return where_hashed("ngram_stated", values)


def sequence_heads(values: Values) -> int | None:
    """ple.heads_per_ngram."""
    return where_hashed("ngram_heads_stated", values)


def hash_kernel(values: Values) -> int | None:
    """ple.conv_kernel."""
    return where_hashed("ple_kernel_stated", values)


def hash_picture(values: Values) -> int | None:
    """ple.image_token_id, which stands for the tokens that a picture has not."""
    return where_hashed("picture_token", values)


def hash_heads(values: Values) -> int | None:
    """How many rows of the table are one token's embedding. Raises ValueError for more than there can be."""
    found = (values["ngram_size"] - 1) * values["heads_per_ngram"]
    if not 0 < found <= MOST_HEADS:
        raise ValueError(f"{found} heads of sequences of tokens")
    return int(found)


def hash_width(values: Values) -> int | None:
    """embedding_length_per_layer_input: how wide a row of the table is."""
    whole, heads = values.get("ple_width_stated", values["n_embd"]), values["ngram_heads"]
    if whole % heads:
        raise ValueError(f"{heads} heads do not share {whole} columns")
    return int(whole // heads)


def hash_columns(values: Values) -> int:
    """How wide a token's embedding is."""
    return int(values["ngram_width"] * values["ngram_heads"])


def multipliers(values: Values) -> tuple[int, ...] | None:
    """ple.layer_multipliers, of the seed that is stated. Raises ValueError for longer sequences than there can be."""
    if values["ngram_size"] > MOST_HEADS + 1:
        raise ValueError(f"sequences of {values['ngram_size']} tokens")
    return multipliers_of(values.get("seed", SEED), values["n_vocab"], values["ngram_size"])


def _prime_from(number: int) -> int:
    while number < 2 or any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


def head_sizes(values: Values) -> tuple[int, ...] | None:
    """ple.head_vocab_sizes: the first primes from the number that is stated on. Raises ValueError beyond int32."""
    found, first = list[int](), int(values["ngram_base"])
    for _ in range(values["ngram_heads"]):
        if first * values["ngram_heads"] > MOST_ROWS:
            raise ValueError(f"{values['ngram_heads']} heads with {first} rows each")
        found.append(_prime_from(first))
        first = found[-1] + 1
    return tuple(found)


def head_offsets(values: Values) -> tuple[int, ...] | None:
    """ple.head_offsets: where the rows of each head begin."""
    sizes = values["head_sizes"]
    return tuple(sum(sizes[:head]) for head in range(len(sizes)))


def least_rows(values: Values) -> int:
    """How many rows of the table can be asked for."""
    return int(max(a + b for a, b in zip(values["head_offsets"], values["head_sizes"], strict=True)))


_ONLY = "llama.cpp's graph has no other, and GGUF no key for it"
_HASH = "*.ple.ple_embedding."
EMBEDDINGS = (
    HParam("ple_stated", None, fields={"hf": "ple_layer_ids"}, length="n_ple_stated", required=False),
    HParam("n_ple_stated", None, derive=_declared, required=False),
    HParam("ple_layers", "ple.layers", derive=embedded_layers, length="n_ple", required=False),
    HParam("n_ple", None, derive=_modules, check="n_ple <= 1"),
    HParam("ple_layer", None, derive=_layer, required=False, check="ple_layer < n_layer"),
    HParam("ngram_stated", None, fields={"hf": "ngram_size"}, required=False),
    HParam("ngram_heads_stated", None, fields={"hf": "heads_per_ngram"}, required=False),
    HParam("ple_kernel_stated", None, fields={"hf": "ple_conv_kernel_size"}, required=False),
    HParam("ple_width_stated", None, fields={"hf": "ple_embed_dim"}, required=False),
    HParam("eos_listed", None, fields={"hf": "eos_token_id"}, length="n_eos", allow_scalar=True, required=False),
    HParam("n_eos", None, derive=_ends, required=False),
    HParam("picture_token", None, fields={"hf": "image_token_id"}, required=False),
    HParam("seed", None, fields={"hf": "seed"}, required=False),
    HParam("ngram_base", None, fields={"hf": "ngram_vocab_size_base"}, required=False),
    HParam("ngram_divisor", None, fields={"hf": "make_ngram_vocab_size_divisible_by"}, required=False),
    HParam("ngram_parts", None, fields={"hf": "split_ngram_parts"}, required=False),
    HParam("ngram_size", "ple.ngram_size", derive=sequence_length, required=False, check="1 < ngram_size"),
    HParam("heads_per_ngram", "ple.heads_per_ngram", derive=sequence_heads, required=False),
    HParam("ngram_heads", None, derive=hash_heads, required=False),
    HParam("ple_kernel", "ple.conv_kernel", derive=hash_kernel, required=False, check="0 < ple_kernel"),
    HParam("ple_eos", "ple.eos_token_id", derive=hash_end, required=False),
    HParam("ple_picture", "ple.image_token_id", derive=hash_picture, required=False),
    HParam("ngram_width", "embedding_length_per_layer_input", derive=hash_width, required=False),
    HParam("ple_width", None, derive=hash_columns, required=False),
    HParam("multipliers", "ple.layer_multipliers", UINT64, tensors=f"{_HASH}layer_multipliers", derive=multipliers,
           length="ngram_size", required=False),
    HParam("head_sizes", "ple.head_vocab_sizes", UINT64, tensors=f"{_HASH}ngram_heads_vocab_sizes", derive=head_sizes,
           length="ngram_heads", required=False, least=1),
    HParam("head_offsets", "ple.head_offsets", UINT64, tensors=f"{_HASH}ngram_heads_offsets", derive=head_offsets,
           length="ngram_heads", required=False),
    HParam("least_rows", None, derive=least_rows, required=False, check=f"least_rows <= {MOST_ROWS}"),
    HParam("ngram_rows", None, required=False, check="least_rows <= ngram_rows"),
)
OF_HASHES = tuple(param.name for param in EMBEDDINGS if param.key is None)
CHOOSING = (
    HParam("index_heads", "attention.indexer.head_count", fields={"hf": "indexer_n_heads"}, check="0 < index_heads"),
    HParam("index_keys", None, fields={"hf": "indexer_kv_heads"}, check="index_keys == 1",
           defaults=(Default(1, "all heads of queries have one"),)),
    HParam("index_dim", "attention.indexer.key_length", fields={"hf": "indexer_head_dim"}, check="n_rot <= index_dim"),
    HParam("index_top_k", "attention.indexer.top_k", fields={"hf": "indexer_budget"}, check="0 < index_top_k"),
    HParam("block_tokens", None, fields={"hf": "indexer_compress_ratio"}, derive=block_tokens,
           check="0 < block_tokens and index_top_k % block_tokens == 0"),
    HParam("ratio", "attention.compress_ratios", derive=ratios, length="n_blocks"),
)
_OTHERWISE: dict[str, dict[str, Any]] = {
    "recurrent_listed": {"words": {"linear_attention": True, "full_attention": False, "indexed_attention": False}},
}


def hparams() -> tuple[HParam, ...]:
    """Return the hparams of Qwen3.5's mixture, and Qwen4-Exp's."""
    shared = tuple(replace(param, **_OTHERWISE.get(param.name, {})) for param in qwen35.HPARAMS)
    streams = (
        HParam("n_streams", "hyper_connection.count", fields={"hf": "hc_count"}, check="1 < n_streams"),
        HParam("hc_rank", "hyper_connection.low_rank", fields={"hf": "hc_lowrank"}, check="0 < hc_rank"),
        HParam("delta_gate", None, ValueType.STRING, {"hf": "output_gate_type"}, check="delta_gate == 'sigmoid'",
               words={"sigmoid": "sigmoid", "silu": "silu"},
               defaults=(Default("silu", "as hidden_act", dialect="hf"), Default("sigmoid", _ONLY, dialect="gguf"))),
        HParam("expert_norm", None, BOOL, {"hf": "norm_topk_prob"}, words={True: True}, required=False),
    )
    return (*shared, *delta.EXPERTS, common.JOINED, *streams, *CHOOSING, *EMBEDDINGS)


def connection(name: str, source: str, *, spreads: bool = True) -> tuple[Role, ...]:
    """Return what reads a mixture of the streams, and, where a branch is behind it, what it gives to each of them."""
    width = "n_streams*n_embd"
    return (
        *norm(f"{name}_norm", f"{source}.hc_norm", width=width, layout=ADD_ONE),
        *linear(f"{name}_down", f"hc_rank {width}", f"{source}.input_mix_weight_down"),
        *linear(f"{name}_up", f"{width} hc_rank", f"{source}.input_mix_weight_up"),
        *(linear(f"{name}_inject", f"n_streams {width}", f"{source}.block_inject_weight") if spreads else ()),
    )


def further() -> tuple[Role, ...]:
    """Return what a block that predicts further tokens has besides: it reads the streams, and mixes them at its end.

    Names: SGLang `models/qwen4_exp_mtp.py`; llama.cpp `conversion/qwen4exp.py`.
    """
    return (
        *nextn.two_matrices("fc_embedding", "fc_hidden"),
        *roles(
            (
                *norm("nextn.enorm", "pre_fc_norm_embedding", layout=ADD_ONE),
                *norm("nextn.hnorm", "pre_fc_norm_hidden", width="n_streams*n_embd", layout=ADD_ONE),
                *connection("nextn.hc_head", "hyper_connection_mixer", spreads=False),
            ),
            when="n >= n_layer",
        ),
    )


_OF_ONE = ("fc_embedding", "fc_hidden", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "hyper_connection_mixer")
_BLOCKS = "model.layers.{n}."
APPENDED = tuple(
    one
    for at in ("mtp.", "model.mtp.")
    for one in ((f"{at}layers.{{n}}.", _BLOCKS), *((f"{at}{name}.", _BLOCKS, f"{name}.") for name in _OF_ONE))
)
EXPORTED = (
    *((f"{_BLOCKS}{name}.", f"mtp.{name}.", "n >= n_layer") for name in _OF_ONE),
    (_BLOCKS, "mtp.layers.0.", "n >= n_layer"),
)
WHOLE_NORM = Caveat(
    "n_nextn > 0",
    "the block that predicts further tokens reads streams which are normalized all together, as SGLang has it; "
    "llama.cpp normalizes each by itself: other proposals, the same answers",
    differs_in="llama.cpp",
)


def indexer(when: str) -> tuple[Role, ...]:
    """Return what chooses blocks of tokens: a checkpoint has queries and the one key in one matrix."""
    joint, queries = "self_attn.indexer.index_qk_proj", "index_heads*index_dim"
    return (
        *linear("indexer.q_proj", f"{queries} n_embd", joint, Split("0", queries), when=when),
        *linear("indexer.k_proj", "index_dim n_embd", joint, Split(queries, f"{queries}+index_dim"), when=when),
        *norm("indexer.q_norm", "self_attn.indexer.q_layernorm", width="index_dim", layout=ADD_ONE, when=when),
        *norm("indexer.k_norm", "self_attn.indexer.k_layernorm", width="index_dim", layout=ADD_ONE, when=when),
    )


CAVEATS = (
    Caveat("block_tokens == 1", "blocks of one token; llama.cpp asks for two or more", unsupported_by="llama.cpp"),
    Caveat("ple_width != n_embd",
           "the embeddings of sequences of tokens are {ple_width} wide and not {n_embd}, as llama.cpp takes them to be",
           unsupported_by="llama.cpp"),
    Caveat("ngram_size > 8 or ngram_heads > 64", "llama.cpp knows sequences of up to 8 tokens and up to 64 heads",
           unsupported_by="llama.cpp"),
)
