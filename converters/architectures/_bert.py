"""Table pieces of BERT and what came of it.

Sources: transformers `configuration_bert.py`, `configuration_nomic_bert.py`; nomic-ai's `configuration_hf_nomic_bert`;
llama.cpp `src/models/bert.cpp`, `nomic-bert.cpp` and convert_hf_to_gguf for keys and names.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures import _embeddings as embeddings
from ggferry.converters.schema.architecture import Default, Drop, HParam, IgnoredKey
from ggferry.converters.schema.derivations import Values
from ggferry.converters.schema.roles import roles
from ggferry.formats.gguf.values import ValueType


def first_position(values: Values) -> int:
    """Return the row of a checkpoint's position embeddings that belongs to the first token."""
    values["n_positions"]  # GGUF keeps no others
    return values["padding"] + 1 if values.get("after_padding") else 0


# The second names are those of nomic-ai's own configurations (transformers saves its own configuration beside tensors
# of either naming), and of DistilBERT's.
SIZES = (
    HParam("n_vocab", "vocab_size", fields={"hf": "vocab_size", "ggml": "n_vocab"}),
    # nomic-ai's n_positions is how far a scaling of its own code stretches: llama.cpp has what it was trained on, too.
    HParam("n_positions", None, required=False,
           fields={"hf": "max_position_embeddings|max_trained_positions|n_positions", "ggml": "n_max_tokens"}),
    HParam("n_ctx", "context_length", derive="n_positions - first_position",
           check="n_ctx == n_positions - first_position"),
    HParam("n_embd", "embedding_length", fields={"hf": "hidden_size|n_embd|dim", "ggml": "n_embd"}),
    HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers|n_layer|n_layers", "ggml": "n_layer"}),
    HParam("n_ff", "feed_forward_length",
           fields={"hf": "intermediate_size|n_inner|hidden_dim", "ggml": "n_intermediate"}),
    HParam("n_head", "attention.head_count", fields={"hf": "num_attention_heads|n_head|n_heads", "ggml": "n_head"},
           check="0 < n_head and n_embd % n_head == 0"),
    HParam("eps", "attention.layer_norm_epsilon", common.F32,
           {"hf": "layer_norm_eps|layer_norm_epsilon"},
           defaults=(Default(1e-12, "BERT's"),)),
    HParam("n_types", None, fields={"hf": "type_vocab_size"},
           defaults=(Default(2, "transformers' default", dialect="hf"),), required=False),
    # RoBERTa counts positions from the one behind its padding's: the rows before belong to no token.
    HParam("padding", None, ValueType.INT32, fields={"hf": "pad_token_id"}, required=False, least=-1, null=-1),
    HParam("after_padding", None, common.BOOL, required=False),
    HParam("first_position", None, derive=first_position, required=False),
)
CAUSAL = HParam("causal", "attention.causal", common.BOOL, absent=True)

EMBEDDING = roles("""
token_embd.weight                       : n_vocab n_embd | hf embeddings.word_embeddings.weight
token_types.weight f32 when=n_types > 0 : n_types n_embd | hf embeddings.token_type_embeddings.weight
token_embd_norm.weight f32              : n_embd         | hf embeddings.LayerNorm.weight
token_embd_norm.bias                    : n_embd         | hf embeddings.LayerNorm.bias
""")

IGNORED_KEYS = (
    embeddings.IGNORED_KEYS,
    IgnoredKey("tie_word_embeddings", "of the output layer, which is not here"),
    IgnoredKey("directionality pooler_*", "of the pooler, which embeddings do not use"),
)
POOLED = "transformers' pooled output, which embeddings do not use"
POOLER = (Drop("pooler.dense.weight", POOLED), Drop("pooler.dense.bias", POOLED))
BUFFERS = (
    Drop("embeddings.position_ids", "a buffer: the numbers of the positions in order", follows=True),
    Drop("*.inv_freq", "a buffer: rotary frequencies follow from the rotary base", follows=True),
)
DROPS = (*POOLER, *BUFFERS)
