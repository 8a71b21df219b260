"""From a path to a Checkpoint: every reader, every architecture's header layouts, and nothing heavier.

Kept apart from `load` so that `ggferry inspect` pays for no graph, no tokenizer and no numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ggferry.converters.spec import Architecture
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import HeaderLayout, find_reader
from ggferry.quant.registry import scan


@cache
def architectures() -> Mapping[str, Architecture]:
    """Every architecture by name."""
    return {spec.name: spec for spec in scan("ggferry.converters.arch", "SPEC")}


def header_layouts() -> tuple[HeaderLayout, ...]:
    """The GGML-era header layouts of all architectures, to hand to the readers."""
    return tuple(layout for spec in architectures().values() for layout in spec.headers)


def open_checkpoint(path: str) -> Checkpoint:
    """Open `path` with the reader that claims it. Raises one of `formats.errors`."""
    reader, _ = find_reader(path)
    return reader.open(path, header_layouts())
