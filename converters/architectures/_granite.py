"""What the Granite family shares: scales on embeddings, scores, residuals and logits, and its own experts.

Sources: llama.cpp `src/models/granite{,-moe,-hybrid}.cpp`, `conversion/granite.py`; transformers
`modeling_granite{,moe,moeshared,moehybrid}.py`. Gate and up of an expert, and of the network that all tokens pass, are
one matrix in Hugging Face's files, gate first.
"""

from ggferry.converters.architectures._tensors import linear, tensor
from ggferry.converters.schema.architecture import Default, HParam, IgnoredKey, Role
from ggferry.converters.schema.derivations import Values, ordered_readers
from ggferry.converters.schema.layouts.parts import Pick, Split
from ggferry.formats.gguf.values import ValueType

F32, BOOL = ValueType.FLOAT32, ValueType.BOOL
_ONE = (Default(1.0, "transformers' default", dialect="hf"),)

SCALES = (
    HParam("attn_scale", "attention.scale", F32, {"hf": "attention_multiplier"}, absent=0.0, defaults=_ONE,
           unrepresentable=0.0),
    HParam("embedding_scale", "embedding_scale", F32, {"hf": "embedding_multiplier"}, absent=1.0, unrepresentable=0.0),
    HParam("residual_scale", "residual_scale", F32, {"hf": "residual_multiplier"}, absent=1.0, unrepresentable=0.0),
    HParam("logit_scale", "logit_scale", F32, {"hf": "logits_scaling"}, defaults=_ONE, unrepresentable=0.0),
)
# What llama.cpp takes for a switch of rotary positions in this family.
ROTATES = HParam(
    "rope_layers", "rope.scaling.finetuned", ValueType.BOOL, {"hf": "position_embedding_type"},
    words={"rope": True, "nope": False}, absent=True,
)
ATTENDS = HParam(
    "attends", None, BOOL, {"hf": "layer_types|layers_block_type"}, length="n_layer", required=False,
    words={"attention": True, "full_attention": True},
)


def row_numbers(values: Values) -> tuple[int, ...]:
    """deepstack_mapping: for each block the number of the rows of a picture that it reads, -1 for none.

    Rows are numbered in the order of the blocks; the first stand in place of embeddings, and are read by none again.
    """
    blocks, count = [block for block, _, _ in ordered_readers(values)], values["n_layer"]
    if blocks[-1] >= count:
        raise ValueError(f"rows of a picture for the blocks {blocks} of {count}")
    return tuple(blocks.index(n) if n and n in blocks else -1 for n in range(count))


PICTURES = (
    HParam("row_pairs", None, F32, {"hf": "deepstack_layer_map"}, length="n_pairs", flat=True, required=False),
    HParam("n_pairs", None, derive=lambda values: len(values["row_pairs"]), required=False),
    HParam("corner_states", None, F32, {"hf": "spatial_vision_layer"}, required=False,
           defaults=(Default(-1, "what transformers' code has", when="0 < n_pairs", dialect="hf"),)),
    HParam("corner_blocks", None, fields={"hf": "spatial_target_layers"}, length="n_corners", required=False,
           defaults=(Default((12, 15, 18, 21), "what transformers' code has", when="0 < n_pairs", dialect="hf"),)),
    HParam("n_corners", None, derive=lambda values: len(values["corner_blocks"]), required=False),
    HParam("row_numbers", "deepstack_mapping", ValueType.INT32, derive=row_numbers, length="n_layer", least=-1,
           required=False),
)
"""Of a Granite 4 Vision: which blocks read rows of a picture."""
NOT_MAMBA = IgnoredKey("mamba_* time_step_limit", "no block is a state space")


def dense_width(values: Values) -> int:
    """feed_forward_length: of an expert where there are some, else of the network that stands alone."""
    alone = not values["n_expert"] and "ff_shared" in values
    return int(values["ff_shared"] if alone else values["ff_stated"])


def shared_width(values: Values) -> int:
    """expert_shared_feed_forward_length, where experts have a network beside them."""
    return int(values["ff_shared"]) if values["n_expert"] else 0


FUSED = """
blk.{n}.ffn_gate.weight model.layers.{n}.shared_mlp.input_linear.weight @gate
blk.{n}.ffn_up.weight   model.layers.{n}.shared_mlp.input_linear.weight @up
blk.{n}.ffn_down.weight model.layers.{n}.shared_mlp.output_linear.weight
"""
"""The network that stands alone where a hybrid has no experts."""
GATE, UP = Split(0, "n_ff"), Split("n_ff", "2 * n_ff")


def fused_gated(width: str, suffix: str = "", *, when: str = "") -> tuple[Role, ...]:
    """Return the network that all tokens pass, `width` wide. `suffix`: of GGUF's names."""
    source = "shared_mlp.input_linear"
    return (
        *linear(f"ffn_gate{suffix}", f"{width} n_embd", source, Split(0, width), when=when),
        *linear(f"ffn_down{suffix}", f"n_embd {width}", "shared_mlp.output_linear", when=when),
        *linear(f"ffn_up{suffix}", f"{width} n_embd", source, Split(width, f"2 * {width}"), when=when),
    )


def experts(*, when: str = "") -> tuple[Role, ...]:
    """Return the router and the experts."""
    source = "block_sparse_moe."
    joint = f"{source}input_linear.weight"
    gate = Pick("n_expert", 0, "n_ff", stacked=True)
    up = Pick("n_expert", "n_ff", "2 * n_ff", stacked=True)
    return (
        tensor("ffn_gate_inp.weight", "n_expert n_embd", f"{source}router.layer.weight", f32=True, when=when),
        tensor("ffn_gate_exps.weight", "n_expert n_ff n_embd", joint, gate, when=when),
        tensor("ffn_down_exps.weight", "n_expert n_embd n_ff", f"{source}output_linear.weight", when=when),
        tensor("ffn_up_exps.weight", "n_expert n_ff n_embd", joint, up, when=when),
    )
