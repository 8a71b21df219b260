"""The commands that say what is supported: architectures, types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, offers, print_json, tell

commands = typer.Typer(rich_markup_mode=None)


@commands.command(cls=HeadedCommand)
@offers("architectures")
def architectures(
    coverage: Annotated[
        str | None,
        typer.Option(
            "--coverage", metavar="FILE", parser=Named,
            help="Class names, of a text or a JSON file: which of them are read.",
        ),
    ] = None,
    **given: Any,
) -> None:  # fmt: skip
    """List the families of models: name in GGUF, name, runtimes, classes of transformers."""
    from dataclasses import asdict

    from ggferry.converters.supported import families

    if coverage is not None:
        _show_coverage(coverage, given["as_json"])
        return
    known = families()
    if given["as_json"]:
        print_json({"architectures": [asdict(each) for each in known]})
        return
    _table(
        ("architecture", "name", "runs in", "files", "classes of transformers"),
        [
            (each.name, each.display_name, ", ".join(each.runtimes) or "none known",
             "GGML era too" if each.legacy else "", ", ".join(each.classes))
            for each in known
        ],
    )  # fmt: skip


def _show_coverage(path: str, as_json: bool) -> None:
    from dataclasses import asdict

    from ggferry.converters.supported import class_names, coverage, is_of_second_files
    from ggferry.formats.files.named_texts import text_of
    from ggferry.formats.json_files.text import parse_json

    text = text_of(path)
    document = parse_json(text.encode(), path) if text.lstrip()[:1] in ("{", "[") else text.split()
    found = coverage(class_names(document, path), is_of_second_files(document))
    if as_json:
        print_json(asdict(found))
        return
    for name in found.missing:
        tell(f"not read  {name}" + (f": {found.reasons[name]}" if name in found.reasons else ""))
    for name in found.unlisted:
        tell(f"not listed, and read  {name}")
    tell(f"{len(found.read)} of {len(found.listed)} class names are read; {len(found.unlisted)} more are not listed")


@commands.command(cls=HeadedCommand)
@offers("types")
def types(**given: Any) -> None:
    """List the values of --outtype and the types of blocks, with their bits per weight and runtimes."""
    from dataclasses import asdict

    from ggferry.converters.supported import block_types, out_types

    asked, blocks = out_types(), block_types()
    if given["as_json"]:
        print_json({"outtypes": [asdict(each) for each in asked], "blocks": [asdict(each) for each in blocks]})
        return
    tell("--outtype: bits per weight of a whole Llama-3.1-8B")
    _table(
        ("outtype", "mostly", "bits", "runs in", ""),
        [
            (each.name, each.main or "as the source", f"{each.bits_per_weight:.2f}" if each.bits_per_weight else "",
             ", ".join(each.runtimes), "needs --imatrix" if each.needs_imatrix else "")
            for each in asked
        ],
    )  # fmt: skip
    tell("")
    tell("blocks: bits per weight of the blocks alone; those without a number are no types of GGUF")
    _table(
        ("block", "number", "bits", "weights", "bytes", "runs in", ""),
        [
            (each.name, "" if each.ggml_id is None else str(each.ggml_id), f"{each.bits_per_weight:g}",
             str(each.elements), str(each.bytes), ", ".join(each.runtimes),
             f"becomes {each.becomes}" if each.becomes else "" if each.encodes else "read only")
            for each in blocks
        ],
    )  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print lines of columns; the last is as wide as its content."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
    for row in (head, *rows):
        cells = [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        tell("  ".join(cells).rstrip())
