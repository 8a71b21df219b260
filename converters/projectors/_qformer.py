"""Roles of the blocks of a Q-Former, under the names of BLIP-2: queries attend to themselves, then to states."""

from ggferry.converters.schema.roles import Roles, block


def _attending(gguf: str, hf: str, width: str, states: str) -> str:
    return f"""
        {gguf}_q.weight        : {width} {width}  | hf {hf}.attention.query.weight
        {gguf}_q.bias          : {width}          | hf {hf}.attention.query.bias
        {gguf}_k.weight        : {width} {states} | hf {hf}.attention.key.weight
        {gguf}_k.bias          : {width}          | hf {hf}.attention.key.bias
        {gguf}_v.weight        : {width} {states} | hf {hf}.attention.value.weight
        {gguf}_v.bias          : {width}          | hf {hf}.attention.value.bias
        {gguf}_out.weight      : {width} {width}  | hf {hf}.output.dense.weight
        {gguf}_out.bias        : {width}          | hf {hf}.output.dense.bias
        {gguf}_norm.weight f32 : {width}          | hf {hf}.output.LayerNorm.weight
        {gguf}_norm.bias       : {width}          | hf {hf}.output.LayerNorm.bias
        """


def blocks(name: str, layer: str, width: str, states: str, inner: str) -> Roles:
    """Return the roles of every block.

    Args:
        name: How their names begin in GGUF, with {n}.
        layer: How they begin in a checkpoint.
        width: Of the queries.
        states: The width of what they are asked about.
        inner: The width of the network.
    """
    return block(
        _attending("self_attn", "attention", width, width),
        _attending("cross_attn", "crossattention", width, states),
        f"""
        ffn_up.weight       : {inner} {width} | hf intermediate_query.dense.weight
        ffn_up.bias         : {inner}         | hf intermediate_query.dense.bias
        ffn_down.weight     : {width} {inner} | hf output_query.dense.weight
        ffn_down.bias       : {width}         | hf output_query.dense.bias
        ffn_norm.weight f32 : {width}         | hf output_query.LayerNorm.weight
        ffn_norm.bias       : {width}         | hf output_query.LayerNorm.bias
        """,
        name=name,
        layer=layer,
    )
