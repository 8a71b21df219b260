"""What only Falcon derives."""

from ggferry.converters.architectures._gpt import query_groups
from ggferry.converters.schema.derivations import Values


def falcon_groups(values: Values) -> int:
    """attention.head_count_kv: the number that is stated counts in the new decoder only (transformers
    `FalconAttention`)."""
    if values["new_decoder"]:
        return int(values.get("groups_stated", values["n_head"]))
    return query_groups(values)


def rotary_base(values: Values) -> float | None:
    """rope.freq_base; none where ALiBi takes the place of rotation."""
    return None if values.get("max_alibi") else float(values["rope_base_stated"])
