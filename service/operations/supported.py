"""List what is supported: families of models, types."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.service.operation import AsJson, StrPath, declare
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.supported import Coverage


@dataclass(frozen=True, slots=True)
class ArchitecturesCommand:
    """List the families of models: name in GGUF, name, runtimes, classes of transformers."""

    _: KW_ONLY
    coverage: Annotated[
        StrPath | None,
        declare(Kind.FILE, "Class names, of a text or a JSON file: which of them are read.", metavar="FILE"),
    ] = None
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class TypesCommand:
    """List the values of --outtype and the types of blocks, with their bits per weight and runtimes."""

    _: KW_ONLY
    as_json: AsJson = False


def coverage_of(path: StrPath) -> Coverage:
    """Return which of the class names that a text or a JSON file lists are read. Raises as reading it does."""
    from ggferry.converters.supported import class_names, coverage, lists_mmproj_classes
    from ggferry.formats.files.named_texts import text_of
    from ggferry.formats.json_files.text import parse_json

    name = os.fspath(path)
    text = text_of(name)
    document = parse_json(text.encode(), name) if text.lstrip()[:1] in ("{", "[") else text.split()
    return coverage(class_names(document, name), lists_mmproj_classes(document))
