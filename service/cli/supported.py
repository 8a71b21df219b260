"""The commands that say what is supported: architectures, types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from ggferry.service.cli.options import HeadedCommand, print_json, takes, tell
from ggferry.service.operations.supported import ArchitecturesCommand, TypesCommand, coverage_of

if TYPE_CHECKING:
    from ggferry.converters.supported import Coverage
    from ggferry.service.operations._json_forms import ListedFamilies, ListedTypes

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@takes(ArchitecturesCommand)
def architectures(request: ArchitecturesCommand) -> None:
    """Print a table of the families, or which of the listed classes are read."""
    from ggferry.converters.supported import families

    if request.coverage is not None:
        _show_coverage(coverage_of(request.coverage), request.as_json)
        return
    known = families()
    if request.as_json:
        listed: ListedFamilies = {"architectures": known}
        print_json(listed)
        return
    _table(
        ("architecture", "name", "runs in", "files", "classes of transformers"),
        [
            (
                each.name,
                each.display_name,
                ", ".join(each.runtimes) or "none known",
                "GGML era too" if each.legacy else "",
                ", ".join(each.classes),
            )
            for each in known
        ],
    )


def _show_coverage(found: Coverage, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for name in found.missing:
        tell(f"not read  {name}" + (f": {found.reasons[name]}" if name in found.reasons else ""))
    for name in found.unlisted:
        tell(f"not listed, and read  {name}")
    tell(f"{len(found.read)} of {len(found.listed)} class names are read; {len(found.unlisted)} more are not listed")


@commands.command(cls=HeadedCommand)
@takes(TypesCommand)
def types(request: TypesCommand) -> None:
    """Print a table of the values of --outtype, and one of the blocks."""
    from ggferry.converters.supported import block_types, out_types

    outputs, blocks = out_types(), block_types()
    if request.as_json:
        listed: ListedTypes = {"outtypes": outputs, "blocks": blocks}
        print_json(listed)
        return
    tell("--outtype: bits per weight of a whole Llama-3.1-8B")
    _table(
        ("outtype", "mostly", "bits", "runs in", ""),
        [
            (
                each.name,
                each.main or "as the source",
                f"{each.bits_per_weight:.2f}" if each.bits_per_weight else "",
                ", ".join(each.runtimes),
                "needs --imatrix" if each.needs_imatrix else "",
            )
            for each in outputs
        ],
    )
    tell("")
    tell("blocks: bits per weight of the blocks alone; those without a number are no types of GGUF")
    _table(
        ("block", "number", "bits", "weights", "bytes", "runs in", ""),
        [
            (
                each.name,
                "" if each.ggml_id is None else str(each.ggml_id),
                f"{each.bits_per_weight:g}",
                str(each.elements),
                str(each.bytes),
                ", ".join(each.runtimes),
                f"becomes {each.becomes}" if each.becomes else "" if each.encodes else "read only",
            )
            for each in blocks
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print lines of columns; the last is as wide as its content."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    for row in (head, *rows):
        cells = [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        tell("  ".join(cells).rstrip())
