"""Keys of models without attention: what they have no use for and llama.cpp asks of every model."""

from ggferry.converters.schema.architecture import Default, HParam

NO_LIMIT = HParam(
    "n_ctx", "context_length",
    defaults=(Default(1048576, "a recurrent model has no limit; convert_hf_to_gguf writes this number"),),
)
NO_HEADS = HParam(
    "n_head", "attention.head_count",
    defaults=(Default(0, "no attention, but llama.cpp does not load a model without the key"),),
)
ONE_SHIFT = HParam(
    "n_shifts", "token_shift_count",
    defaults=(
        Default(1, "only the time mix reads the token before", dialect="hf"), Default(2, "what readers take"),
    ),
)
NO_FF = HParam(
    "n_ff", "feed_forward_length",
    defaults=(Default(0, "no feed-forward half, but llama.cpp does not load a model without the key"),),
)
