"""Table pieces of BERT and what came of it.

Sources: transformers `configuration_bert.py`, `configuration_nomic_bert.py`; nomic-ai's `configuration_hf_nomic_bert`;
llama.cpp `src/models/bert.cpp`, `nomic-bert.cpp` and convert_hf_to_gguf for keys and names.
"""

from ggferry.converters.architectures import _common as common
from ggferry.converters.schema.architecture import Default, Drop, Harmless, HParam
from ggferry.converters.schema.roles import roles

_POOL = "sentence_transformers_pooling."

# The second names are those of nomic-ai's own configurations; transformers saves its own configuration beside tensors
# of either naming.
SIZES = (
    HParam("n_vocab", "vocab_size", fields={"hf": "vocab_size"}),
    # nomic-ai's n_positions is how far a scaling of its own code stretches: llama.cpp has what it was trained on, too.
    HParam("n_ctx", "context_length",
           fields={"hf": "max_position_embeddings|max_trained_positions|n_positions"}),
    HParam("n_embd", "embedding_length", fields={"hf": "hidden_size|n_embd"}),
    HParam("n_layer", "block_count", fields={"hf": "num_hidden_layers|n_layer"}),
    HParam("n_ff", "feed_forward_length", fields={"hf": "intermediate_size|n_inner"}),
    HParam("n_head", "attention.head_count", fields={"hf": "num_attention_heads|n_head"},
           check="0 < n_head and n_embd % n_head == 0"),
    HParam("eps", "attention.layer_norm_epsilon", common.F32,
           {"hf": "layer_norm_eps|layer_norm_epsilon"},
           defaults=(Default(1e-12, "BERT's"),)),
    HParam("n_types", None, fields={"hf": "type_vocab_size"},
           defaults=(Default(2, "transformers' default", dialect="hf"),), required=False),
)  # fmt: skip
CAUSAL = HParam("causal", "attention.causal", common.BOOL, absent=True)

# How sentence-transformers makes one vector of a text: its Pooling module's configuration.
POOLING = tuple(
    HParam(f"pool_{name}", None, common.BOOL, {"hf": f"{_POOL}pooling_mode_{key}"}, required=False)
    for name, key in (
        ("mean", "mean_tokens"), ("cls", "cls_token"), ("lasttoken", "lasttoken"), ("max", "max_tokens"),
        ("mean_sqrt_len", "mean_sqrt_len_tokens"), ("weightedmean", "weightedmean_tokens"),
    )
)  # fmt: skip
POOLING_TYPE = HParam("pooling", "pooling_type", derive="@pooling_type", required=False)

EMBEDDING = roles("""
token_embd.weight                       : n_vocab n_embd | hf embeddings.word_embeddings.weight
token_types.weight f32 when=n_types > 0 : n_types n_embd | hf embeddings.token_type_embeddings.weight
token_embd_norm.weight f32              : n_embd         | hf embeddings.LayerNorm.weight
token_embd_norm.bias                    : n_embd         | hf embeddings.LayerNorm.bias
""")

HARMLESS = (
    Harmless("tie_word_embeddings", "of the output layer, which is not here"),
    Harmless("directionality pooler_*", "of the pooler, which embeddings do not use"),
    Harmless(f"{_POOL}word_embedding_dimension {_POOL}include_prompt", "pooling takes what there is"),
)
_POOLER = "transformers' pooled output, which embeddings do not use and for which GGUF has no name"
DROPS = (
    Drop("pooler.dense.weight", _POOLER),
    Drop("pooler.dense.bias", _POOLER),
    Drop("embeddings.position_ids", "a buffer: the numbers of the positions in order", follows=True),
    Drop("*.inv_freq", "a buffer: rotary frequencies follow from the rotary base", follows=True),
)
