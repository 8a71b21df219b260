"""From a picture in a file to normalized pixels, `(3, height, width)`.

How large a picture becomes is a rule of its family (`FITS`), after transformers' `image_processing_*.py`: each rule
names its own. Mean and deviation are those of the mmproj file. Pillow decodes and resizes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.formats.checkpoint_folder.sidecars import PREPROCESSOR
from ggferry.formats.errors import CorruptError, UnsupportedError, UsageError
from ggferry.formats.files.local_files import Named, open_file
from ggferry.support.heavy import np
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from PIL import Image

    Sizes = Mapping[str, Any]

BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers, which preprocessor_config.json states as `resample`."""
CHANNELS, WHITE = 3, 255
MOST_STRETCHED = 200
"""How many times as wide as high a picture may be (`smart_resize`)."""
MOST_PIXELS = 1 << 28
WHOLE_ONLY = "the picture as a whole alone was computed: this family also cuts pictures into tiles"


@dataclass(frozen=True, slots=True)
class Fit:
    """How pictures of a family come to their size.

    Attributes:
        resize: Returns the picture as the tower wants it, of a picture, this rule, the tower's sizes and its
            processor's settings.
        resample: How pixels are interpolated, where the processor's settings do not say it.
        limits: Least and most pixels, where neither file nor settings say it.
        undone: What the family's processor also does, and this does not.
    """

    resize: Callable[[Image.Image, Fit, Sizes, Sizes], Image.Image]
    resample: int = BICUBIC
    limits: tuple[int, int] = (0, 0)
    undone: str = ""


def _resized(picture: Image.Image, rule: Fit, settings: Sizes, height: int, width: int) -> Image.Image:
    if not 0 < height * width <= MOST_PIXELS:
        raise UsageError("a picture of this size", found=f"{height} × {width}", expected=f"1 to {MOST_PIXELS} pixels")
    declared = settings.get("resample", rule.resample)
    return picture.resize((width, height), declared if declared in range(6) else rule.resample)


def _square(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """Stretch to a square (gemma3, got_ocr2)."""
    return _resized(picture, rule, settings, sizes["image_size"], sizes["image_size"])


def _middle(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """Make the shorter edge as long as a square's, and cut the square out of the middle (clip)."""
    side = sizes["image_size"]
    width, height = picture.size
    long = int(side * max(width, height) / min(width, height))
    picture = _resized(picture, rule, settings, *((side, long) if height <= width else (long, side)))
    top, left = (picture.height - side) // 2, (picture.width - side) // 2
    return picture.crop((left, top, left + side, top + side))


def _padded(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """Make the longer edge as long as a square's, and fill the rest with the mean of colors (janus)."""
    from PIL import Image

    side, least = sizes["image_size"], int(settings.get("min_size") or 14)
    scale = side / max(picture.size)
    height, width = (max(round(edge * scale), least) for edge in (picture.height, picture.width))
    picture = _resized(picture, rule, settings, height, width)
    square = Image.new("RGB", (max(picture.size),) * 2, tuple(int(part * WHITE) for part in sizes["mean"]))
    square.paste(picture, ((square.width - width) // 2, (square.height - height) // 2))
    return square


def _longest(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """Shrink until the longer edge fits, then up to whole squares of patches (pixtral)."""
    size = settings.get("size")
    declared = size.get("longest_edge") if isinstance(size, Mapping) else size
    most, unit = int(declared or sizes["image_size"]), _unit(sizes)
    ratio = max(1.0, picture.height / most, picture.width / most)
    height, width = (math.floor(edge / ratio) for edge in (picture.height, picture.width))
    return _resized(picture, rule, settings, *((edge - 1) // unit * unit + unit for edge in (height, width)))


def _smart(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """Keep the proportions, in whole squares of patches, between two numbers of pixels (qwen2_vl)."""
    return _between(picture, rule, sizes, settings, picture.height, picture.width)


def _smart_film(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """As `_smart`, where the limits count both frames of a film (glm4v)."""
    height, width, unit = picture.height, picture.width, _unit(sizes)
    if min(height, width) < unit:
        scale = max(unit / height, unit / width)
        height, width = int(height * scale), int(width * scale)
    return _between(picture, rule, sizes, settings, height, width, frames=2)


def _smart_least(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """As `_smart`, where no edge is shorter than a square of patches (paddleocr_vl)."""
    height, width, unit = picture.height, picture.width, _unit(sizes)
    if height < unit:
        height, width = unit, round(width * unit / height)
    if width < unit:
        height, width = round(height * unit / width), unit
    return _between(picture, rule, sizes, settings, height, width)


def _between(
    picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes, height: int, width: int, frames: int = 1
) -> Image.Image:
    if max(height, width) > MOST_STRETCHED * min(height, width):
        raise UsageError("the edges of a picture", found=f"{height} × {width}", expected=f"1 to {MOST_STRETCHED}")
    unit, (least, most) = _unit(sizes), _limits(rule, sizes, settings)
    high, wide = (round(edge / unit) * unit for edge in (height, width))
    if frames * high * wide > most:
        by = math.sqrt(frames * height * width / most)
        high, wide = (max(unit, math.floor(edge / by / unit) * unit) for edge in (height, width))
    elif frames * high * wide < least:
        by = math.sqrt(least / (frames * height * width))
        high, wide = (math.ceil(edge * by / unit) * unit for edge in (height, width))
    return _resized(picture, rule, settings, high, wide)


def _limits(rule: Fit, sizes: Sizes, settings: Sizes) -> tuple[int, int]:
    """Return the least and the most pixels: of the processor's settings, of the file, of the family."""
    size = settings.get("size")
    edges = size if isinstance(size, Mapping) else {}
    return (
        int(settings.get("min_pixels") or edges.get("shortest_edge") or sizes.get("min_pixels") or rule.limits[0]),
        int(settings.get("max_pixels") or edges.get("longest_edge") or sizes.get("max_pixels") or rule.limits[1]),
    )


def _budget(picture: Image.Image, rule: Fit, sizes: Sizes, settings: Sizes) -> Image.Image:
    """Keep the proportions, in whole squares of patches, as large as a number of them allows (gemma4)."""
    unit, most = _unit(sizes), int(settings.get("max_soft_tokens") or 280)
    scale = math.sqrt(most * unit**2 / (picture.height * picture.width))
    high, wide = (math.floor(edge * scale / unit) * unit for edge in (picture.height, picture.width))
    if not high and wide:
        high, wide = unit, min(picture.width // picture.height, most) * unit
    elif not wide and high:
        high, wide = min(picture.height // picture.width, most) * unit, unit
    return _resized(picture, rule, settings, high, wide)


def _unit(sizes: Sizes) -> int:
    """Return the edge of a square of patches that become one row."""
    return int(sizes["patch_size"]) * int(sizes.get("merge") or 1)


_QWEN = Fit(_smart, limits=(56 * 56, 28 * 28 * 1280))
_QWEN_3 = Fit(_smart, limits=(65536, 16777216))
FITS: Mapping[str, Fit] = {
    "gemma3": Fit(_square, BILINEAR),
    "gemma3nv": Fit(_square, BILINEAR),
    "internvl": Fit(_square, undone=WHOLE_ONLY),
    "cohere2v": Fit(_square, undone=WHOLE_ONLY),
    "granite4_vision": Fit(_square, undone=WHOLE_ONLY),
    "mlp": Fit(_middle),
    "janus_pro": Fit(_padded),
    "pixtral": Fit(_longest),
    "lightonocr": Fit(_longest),
    "qwen2vl_merger": _QWEN,
    "qwen2.5vl_merger": _QWEN,
    "qwen2.5o": _QWEN,
    "exaone4_5": _QWEN,
    "qwen3vl_merger": _QWEN_3,
    "qwen3vl_merger+qwen3a": _QWEN_3,
    "dots_ocr": Fit(_smart, limits=(56 * 56, 11289600)),
    "hunyuanvl": Fit(_smart, limits=(512 * 512, 2048 * 2048)),
    "paddleocr": Fit(_smart_least, limits=(384 * 384, 1536 * 1536)),
    "glm4v": Fit(_smart_film, limits=(112 * 112, 28 * 28 * 15000)),
    "gemma4v": Fit(_budget),
    "gemma4v+gemma4a": Fit(_budget),
    "gemma4uv+gemma4ua": Fit(_budget),
}
"""Projector → rule. The others cut every picture into tiles, or place it in a frame of their own."""


def pixels_of_file(path: str, graph: ModelGraph, sizes: Sizes) -> tuple[np.ndarray, str]:
    """Return what a tower reads of a picture, and what its family's processor also does, or ''.

    Args:
        path: A file that Pillow reads.
        graph: The mmproj file, or the vision part of a checkpoint.
        sizes: The tower's sizes (`Model.tower`).

    Returns:
        float32 `(3, height, width)`, normalized.

    Raises:
        UnsupportedError: The family's pictures are prepared otherwise, or Pillow is not installed.
        CorruptError: The file is no picture that Pillow reads.
        UsageError: A picture of such edges has no size in this family.
    """
    tiled = graph.architecture.projector == "mlp" and bool(sizes.get("grid_sizes"))  # LLaVA 1.6
    rule = FITS.get("internvl" if tiled else graph.architecture.projector)
    if rule is None:
        raise UnsupportedError(
            "how this family brings pictures to size is not computed here",
            path=graph.checkpoint.path,
            found=graph.architecture.projector,
            hint="--pixels X.npy takes normalized pixels, 3 × height × width",
        )
    settings = graph.checkpoint.metadata.get(PREPROCESSOR)
    settings = settings if isinstance(settings, Mapping) else {}
    picture = _opened(path)
    if settings.get("do_resize", True):
        picture = rule.resize(picture, rule, sizes, settings)
    flat = np.asarray(picture, np.float32).transpose(2, 0, 1) / WHITE
    mean, std = (np.array(sizes[name], np.float32).reshape(CHANNELS, 1, 1) for name in ("mean", "std"))
    return np.ascontiguousarray((flat - mean) / std, np.float32), rule.undone


def _opened(path: str) -> Image.Image:
    """Return the picture in a file, of three colors, upright as the file says. Raises as `pixels_of_file`."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UnsupportedError(
            "pictures are decoded by Pillow, which is not installed", path=path, hint="pip install 'ggferry[pictures]'"
        ) from None
    try:
        with open(open_file(Named(path)), "rb") as file, Image.open(file) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"{picture.width} × {picture.height} pixels")
            upright: Image.Image = ImageOps.exif_transpose(picture)
            return upright.convert("RGB")
    except (
        OSError,
        ValueError,
        SyntaxError,
        TypeError,
        LookupError,
        EOFError,
        ArithmeticError,
        MemoryError,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        raise CorruptError(f"not a picture that Pillow reads: {str(error)[:80]}", path=path) from None
