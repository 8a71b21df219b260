"""Towers of which one block is read, or several: the last ones need not be among them."""

from dataclasses import replace

from ggferry.converters.projectors import _clip as clip
from ggferry.converters.schema.architecture import Caveat, Default, Drop, HParam
from ggferry.converters.schema.derivations import Derivation, Values
from ggferry.formats.gguf.values import ValueType
from ggferry.formats.limits import MAX_LAYERS

_BEHIND = "of a block behind the last one whose states are read"


def numbered(values: Values) -> tuple[int, ...]:
    """Return behind how many blocks states are read: a negative feature layer is counted from the end."""
    layers, count = values["feature_layers"], values["n_blocks"]
    declared = layers if isinstance(layers, tuple) else (layers,)
    found = tuple(int(layer) if layer >= 0 else count + 1 + int(layer) for layer in declared)
    listed = [int(layer) for layer in declared] if len(declared) != 1 else int(declared[0])
    if any(not 0 <= number <= count for number in found) or not max(found, default=0):
        raise ValueError(f"feature layer {listed} of {count} blocks")
    if sorted(set(found)) != [*found]:
        raise ValueError(f"feature layers {listed} of {count} blocks: llama.cpp lays them side by side in their order")
    return found


def _declared(values: Values) -> int:
    layers = values["feature_layers"]
    return len(layers) if isinstance(layers, tuple) else 1


def read(values: Values) -> int:
    """Return of how many blocks states are read."""
    return len(values["v_feature_layer"])


def deepest(values: Values) -> int:
    """Return the number of blocks that are computed."""
    return numbered(values)[-1]


def unread(values: Values) -> tuple[int, ...]:
    """Return for every block whether it is behind all whose states are read."""
    last = deepest(values)
    return tuple(int(block >= last) for block in range(min(values["n_blocks"], MAX_LAYERS)))


def alone(values: Values) -> int:
    """Return the number of blocks that are computed where the states of one alone are read."""
    found = numbered(values)
    if len(found) != 1:
        raise ValueError(f"states of {len(found)} blocks side by side: GGUF has no place for it in this projector")
    return found[0]


LAST = Default(-1.0, "the last block's", dialect="hf")


SELECTED = HParam(
    "selected",
    None,
    clip.STRING,
    {"hf": "vision_feature_select_strategy"},
    words={"default": "patches"},
    required=False,
)
"""Which rows of a tower are read: those of patches, without the first one of CLIP's class."""


def feature_layer(
    places: str = "vision_feature_layer", count: Derivation = alone, usual: tuple[Default, ...] = ()
) -> tuple[HParam, ...]:
    """Return the hparams of a tower that need not be read to its end.

    Args:
        places: Where a configuration states which states are read.
        count: Derives the number of blocks.
        usual: What is read where nothing says it.
    """
    return (
        HParam("n_blocks", None, fields={"hf": "vision_config.num_hidden_layers"}, required=False),
        HParam(
            "feature_layers",
            None,
            clip.F32,
            {"hf": places},
            length="n_features",
            allow_scalar=True,
            required=False,
            defaults=usual,
        ),
        HParam("n_features", None, derive=_declared, required=False),
        HParam("n_layer", None, derive="n_blocks", required=False),
        HParam("unread_blocks", None, derive=unread, length="n_layer", required=False),
        replace(clip.V_N_LAYER, fields={}, derive=count),
    )


def appended(layer: str) -> Drop:
    """Return the drop of the tensors of blocks that nothing reads; `layer` is how they are called, with {n}."""
    return Drop(f"{layer}*", _BEHIND, when="unread_blocks == 1")


LATE = Caveat(
    "",
    "llama.cpp (b11549) leaves the first patch of a picture out and hands on the class token as the last one",
    differs_in="llama.cpp",
)


def sizes(values: Values) -> tuple[int, ...]:
    """Return the sizes of pictures that are cut into tiles, width before height."""
    flat, side = values["grid_sizes"], values["v_image_size"]
    if len(flat) % 2 or any(edge <= 0 or edge % side for edge in flat):
        raise ValueError(f"image_grid_pinpoints {list(flat)}: not of tiles of {side} pixels")
    return tuple(edge for height, width in zip(flat[::2], flat[1::2], strict=True) for edge in (width, height))


def size_count(values: Values) -> int:
    """Return how many edges the sizes of pictures have."""
    return len(values["grid_sizes"] if "grid_sizes" in values else values["v_grid_sizes"])


def merge_type(values: Values) -> str:
    """Return how llama.cpp calls it that pictures are cut into tiles, and padding is left out."""
    return "spatial_unpad" if values["v_grid_sizes"] else "flat"


NEXT = "LlavaNextForConditionalGeneration"
_USUAL = (336, 672, 672, 336, 672, 672, 1008, 336, 336, 1008)
TILES = (
    HParam("grid_sizes", None, fields={"hf": "image_grid_pinpoints"}, length="n_edges", flat=True, required=False,
           defaults=(Default(_USUAL, "transformers' default", when=f"hf_class == '{NEXT}'", dialect="hf"),)),
    HParam("n_edges", None, derive=size_count, required=False),
    HParam("v_grid_sizes", "vision.image_grid_pinpoints", ValueType.INT32, derive=sizes, length="n_edges",
           required=False),
    HParam("merge_type", "vision.mm_patch_merge_type", clip.STRING, derive=merge_type, required=False),
)
"""The sizes of pictures that LLaVA 1.6 cuts into tiles."""
UNENDED = Caveat(
    "0 < n_edges",
    "llama.cpp (b11549) hands the rows of tiles on one tile after another: it ends no line of patches with "
    "image_newline and leaves the rows of padding, which the model cuts away",
    differs_in="llama.cpp",
)
