"""What gpt-oss cannot do without."""

from ggferry.converters.schema.derivations import Values


def biased(values: Values) -> int:
    """Return 1 where attention has biases. Raises ValueError where the configuration says that it has none."""
    if not values["attention_bias"]:
        raise ValueError(
            "attention_bias is false: transformers then leaves out the biases of attention, whatever the checkpoint "
            "holds, and llama.cpp does not load a gpt-oss without them; true, if the model was trained with them"
        )
    return 1
