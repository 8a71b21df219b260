"""Towers of which several blocks are read (deepstack), and that say how many positions they have."""

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.projectors import _siglip as siglip
from ggferry.converters.schema.architecture import HParam
from ggferry.converters.schema.derivations import Values


def image_size(values: Values) -> int:
    """Return the side of the picture whose patches the table of positions counts."""
    return siglip.side(values["positions"]) * int(values["v_patch_size"])


def flags(values: Values) -> tuple[bool, ...]:
    """Return for each block whether what it returns is merged, too."""
    listed = values.get("deepstack_blocks") or ()
    if sorted(set(listed)) != list(listed) or any(not 0 <= block < values["v_n_layer"] for block in listed):
        raise ValueError(f"deepstack blocks {listed} of {values['v_n_layer']}, in another order than they compute")
    return tuple(block in listed for block in range(values["v_n_layer"]))


def _count(values: Values) -> int:
    return len(values["deepstack_blocks"])


def _end(values: Values) -> int:
    return max((number + 1 for number, merged in enumerate(values["v_deepstack"]) if merged), default=0)


POSITIONS = HParam("positions", None, fields={"hf": "vision_config.num_position_embeddings"}, required=False)
BLOCKS = (
    HParam("deepstack_blocks", None, fields={"hf": "vision_config.deepstack_visual_indexes"}, length="n_deepstack",
           required=False),
    HParam("n_deepstack", None, derive=_count, required=False),
    HParam("v_deepstack", "vision.is_deepstack_layers", clip.BOOL, derive=flags, length="v_n_layer"),
    HParam("deepstack_end", None, derive=_end),
)
