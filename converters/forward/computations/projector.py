"""The mmproj file of a multimodal model: from a picture or a spectrum to rows of the text model.

The rows stand where tokens' embeddings would. The towers are in `converters/forward/towers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ggferry.converters.forward import towers
from ggferry.converters.forward.model import Model, Result
from ggferry.formats.errors import OutOfRangeError, UsageError
from ggferry.formats.limits import MAX_PATCHES, MAX_PIXELS
from ggferry.support.heavy import torch

if TYPE_CHECKING:
    from torch import Tensor

PICTURE, SPECTRUM = "picture", "spectrum"
PREFIXES = {PICTURE: "v_", SPECTRUM: "a_"}
"""What is given → how the short names of its tower's hparams begin."""
RESULT = Result("embeddings", ranked=False, inputs=(PICTURE, SPECTRUM), how="of a fixed input", how_given="as given")
TOKENS = False
"""It reads no tokens."""
MOST_ROWS, MOST_COLUMNS, FRAMES = 16, 12, 200
"""The fixed picture, in patches, where its tower does not say otherwise, and the fixed spectrum."""
CHANNELS = 3


def logits(model: Model, tokens: Sequence[int], progress: Callable[[int], None]) -> Tensor:
    """Return the rows, float32 `(rows, width of the text model)`, of what `model.inputs` gives.

    Where it gives nothing, that is the first fixed input.
    """
    given: Mapping[str, Any] = model.inputs or dict([next(fixed_inputs(model))])
    kind = next(iter(given))
    tower, module = model.tower(PREFIXES[kind]), _module(model, kind)
    values = torch.as_tensor(given[kind], dtype=torch.float32)
    if kind == PICTURE:
        _check_picture(tower, module, tuple(values.shape))
    elif values.ndim != 2 or values.shape[0] != tower.sizes["n_mels"] or not values.shape[1]:
        raise UsageError("a spectrum", found=_edges(values.shape), expected=f"{tower.sizes['n_mels']} × frames")
    try:
        found: Tensor = module.embed(tower, values, progress)
    except IndexError:
        raise UsageError("spectrum is longer than the model's positions", found=_edges(values.shape)) from None
    except RuntimeError as error:  # torch's word for sizes that do not fit
        raise ValueError(f"{error}"[:120]) from None
    return found


def _check_picture(tower: Model, module: ModuleType, shape: tuple[int, ...]) -> None:
    """Raise UsageError for a picture that is not of whole squares of patches, or larger than the table of positions."""
    patch, merge = int(tower.sizes["patch_size"]), int(tower.sizes.get("merge") or 1)
    counts = [edge // patch for edge in shape[1:]]
    if len(shape) != 3 or shape[0] != CHANNELS or not all(count and count % merge == 0 for count in counts):
        expected = f"{CHANNELS} × height × width, both multiples of {patch * merge}"
        raise UsageError("a picture", found=_edges(shape), expected=expected)
    whole = tower.has("v.position_embd") and not tower.sizes.get("n_positions") and not hasattr(module, "patches")
    if whole and max(shape[1:]) > tower.sizes["image_size"]:
        raise UsageError("a picture", found=_edges(shape), expected=f"edges of {tower.sizes['image_size']} or less")


def _edges(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))


def fixed_inputs(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the values of every input on which a proof compares both sides.

    Raises OutOfRangeError where a size of the tower, such as that of a window, makes the picture larger than any is.
    """
    if model.recipe.vision:
        yield PICTURE, fixed_picture(*_edges_of_proof(model))
    if model.recipe.audio:
        tower, module = model.tower(PREFIXES[SPECTRUM]), _module(model, SPECTRUM)
        frames = module.frames(tower) if hasattr(module, "frames") else FRAMES
        yield SPECTRUM, fixed_values(int(tower.sizes["n_mels"]), frames)


def _edges_of_proof(model: Model) -> tuple[int, int]:
    tower, module = model.tower(PREFIXES[PICTURE]), _module(model, PICTURE)
    rows, columns = module.patches(tower) if hasattr(module, "patches") else _patches(tower)
    size, merge = int(tower.sizes["patch_size"]), int(tower.sizes.get("merge") or 1)
    rows, columns = (-(-count // merge) * merge for count in (rows, columns))
    found, most, unit = (rows, columns), MAX_PATCHES, "patches"
    if getattr(module, "CONVOLUTIONS", False):  # what it costs grows with pixels, not with patches squared
        found, most, unit = (rows * size, columns * size), MAX_PIXELS, "pixels"
    if found[0] * found[1] > most:
        sizes = ((name, value) for name, value in tower.sizes.items() if not name.startswith(PREFIXES[PICTURE]))
        large = ", ".join(name for name, value in sizes if isinstance(value, int) and value > MAX_PATCHES)
        raise OutOfRangeError(
            f"the picture of a proof ({large})" if large else "the picture of a proof",
            found=f"{found[0]} × {found[1]} {unit}",
            expected=f"{most} or fewer",
        )
    return rows * size, columns * size


def fixed_picture(height: int, width: int) -> Tensor:
    """Return the float32 picture `(3, height, width)` that stands for one where none is given, normalized already."""
    return fixed_values(CHANNELS * height, width).view(CHANNELS, height, width)


def fixed_values(rows: int, columns: int) -> Tensor:
    """Return float32 values `(rows, columns)` from -1 to 1, the same on every machine.

    Row m, column t is ((7919 m + 104729 t) mod 2048) / 1024 - 1, as in a proof of Whisper.
    """
    m, t = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    return (7919 * m + 104729 * t).remainder(2048).to(torch.float32) / 1024 - 1


def _patches(tower: Model) -> tuple[int, int]:
    across = int(tower.sizes["image_size"]) // int(tower.sizes["patch_size"])
    merge = int(tower.sizes.get("merge") or 1)
    return tuple(max(merge, min(most, across) // merge * merge) for most in (MOST_ROWS, MOST_COLUMNS))  # type: ignore[return-value]


def _module(model: Model, kind: str) -> ModuleType:
    return import_module(f"{towers.__name__}.{model.recipe.vision if kind == PICTURE else model.recipe.audio}")
