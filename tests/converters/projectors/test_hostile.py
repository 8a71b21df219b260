"""Whatever number the configuration of what sees or hears holds, the answer is a result or one of our errors, in one
line, without the time or the memory that the number claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.forward.evaluate import fixed_inputs, forward
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.understand import understand_projector
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError, OutOfRangeError
from helpers.mobilenetv5 import GEMMA_3N
from helpers.tiny_audio_encoders import AUDIO_ENCODERS
from helpers.vision_encoders import VISION_ENCODERS

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.unix]
TOWERS: dict[str, Callable[[Path], Any]] = {
    **{name: lambda folder, eye=eye: eye.saved(folder, eye.tiny()) for name, eye in VISION_ENCODERS.items()},
    **AUDIO_ENCODERS,
}
QUICK = ("qwen2.5vl_merger", "pixtral")
"""One whose window and one whose number of blocks once took all memory and time."""


def numbers(config: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of whole numbers, without those of the text model and of tokens."""
    for key, value in config.items():
        if isinstance(value, dict) and key not in ("text_config", "rope_parameters"):
            yield from numbers(value, (*before, key))
        elif type(value) is int and not key.endswith(("_token_id", "_token_index")):
            yield (*before, key)


def answer(checkpoint: Checkpoint) -> str:
    """What is said of a model; empty where its rows are computed."""
    try:
        graph = understand_projector(checkpoint)
        assert graph is not None
        forward(graph, ())
    except GgferryError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TOWERS])
def test_numbers_larger_than_any_memory(name: str, tmp_path: Path) -> None:
    import resource  # not on Windows

    TOWERS[name](tmp_path / "hf")
    checkpoint = open_checkpoint(str(tmp_path / "hf"))
    assert answer(checkpoint) == ""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    places = [*numbers(dict(checkpoint.metadata))]
    assert places
    for place in places:
        config = dict(checkpoint.metadata)
        inner = config
        for key in place[:-1]:
            inner[key] = dict(inner[key])
            inner = inner[key]
        inner[place[-1]] = 2**32 - 2
        assert reduce(getitem, place, config) == 2**32 - 2
        assert "\n" not in answer(replace(checkpoint, metadata=config)), place
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB


@pytest.mark.parametrize("edge", [256, 768, 1 << 20])
def test_a_picture_that_convolutions_read_is_bounded_by_its_pixels(edge: int, tmp_path: Path) -> None:
    """Gemma 3n's file has 256 × 256 patches whatever the picture; published models read 768 × 768 pixels."""
    eye = replace(GEMMA_3N, preprocessor={"size": {"height": edge, "width": edge}})
    graph = understand_projector(open_checkpoint(str(eye.saved(tmp_path / "hf"))))
    assert graph is not None
    if edge > 768:
        with pytest.raises(OutOfRangeError, match=rf"image_size.*{edge} × {edge} pixels"):
            fixed_inputs(graph)
    else:
        assert [values.shape for _, values in fixed_inputs(graph)] == [(3, edge, edge)]
