"""DeepSeek's sparse attention: an indexer beside latent attention, which chooses what is inspected.

Sources: llama.cpp `src/models/{deepseek32,glm-dsa}.cpp`; transformers `modeling_{deepseek_v32,glm_moe_dsa}.py`.
"""

from ggferry.converters.architectures._tensors import linear, norm
from ggferry.converters.schema.architecture import Caveat, Default, HParam, Role
from ggferry.converters.schema.derivations import Values
from ggferry.formats.gguf.values import ValueType

BOOL, STRING = ValueType.BOOL, ValueType.STRING


def full_indexers(values: Values) -> tuple[bool, ...]:
    """attention.indexer.types: which blocks choose for themselves; the others take what the last one chose."""
    if "index_pattern" in values:
        return tuple(letter == "F" for letter in values["index_pattern"])
    every, offset = max(values["index_every"], 1), values["index_offset"]
    return tuple(max(n - offset + 1, 0) % every == 0 for n in range(values["n_layer"]))


SHARED = (
    HParam("index_pattern", None, STRING, {"hf": "index_topk_pattern"}, required=False),
    HParam("index_every", None, fields={"hf": "index_topk_freq"}, required=False,
           defaults=(Default(1, "transformers' default", dialect="hf"),)),
    HParam("index_offset", None, fields={"hf": "index_skip_topk_offset"}, required=False,
           defaults=(Default(2, "transformers' default", dialect="hf"),)),
    HParam("index_full", "attention.indexer.types", BOOL, {"hf": "indexer_types"}, length="n_layer",
           words={"full": True, "shared": False}, derive=full_indexers, required=False),
)
HPARAMS = (
    HParam("indexed", None, BOOL, {"hf": "layer_types"}, length="n_layer", words={"indexed_attention": True},
           required=False),
    HParam("index_heads", "attention.indexer.head_count", fields={"hf": "index_n_heads"}),
    HParam("index_dim", "attention.indexer.key_length", fields={"hf": "index_head_dim"}, check="n_rot <= index_dim"),
    HParam("index_top_k", "attention.indexer.top_k", fields={"hf": "index_topk"}, check="0 < index_top_k"),
)
WIDTH = Caveat(
    "index_dim % 64 != 0",
    "the indexer's heads are {index_dim} wide; llama.cpp turns them by Hadamard matrices of 64 and stops",
    unsupported_by="llama.cpp",
)


def indexer(source: str = "self_attn.indexer.", *, when: str = "") -> tuple[Role, ...]:
    """Return the tensors of the indexer of a block."""
    return (
        *norm("indexer.k_norm", f"{source}k_norm", width="index_dim", bias=True, when=when),
        *linear("indexer.proj", "index_heads n_embd", f"{source}weights_proj", when=when),
        *linear("indexer.attn_k", "index_dim n_embd", f"{source}wk", when=when),
        *linear("indexer.attn_q_b", "index_heads*index_dim q_rank", f"{source}wq_b", when=when),
    )
