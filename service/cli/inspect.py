"""The command that shows what a file holds: inspect."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ggferry.formats.files.local_files import Named
from ggferry.service.cli.options import HeadedCommand, access_of, offers, tell
from ggferry.service.cli.terminal import print_json_object

commands = typer.Typer(rich_markup_mode=None)


class InspectCommand(HeadedCommand):
    """A command whose --tokens may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a lone --tokens the value that means all of them."""
        after = [*args[1:], "-"]
        spread = [
            [each, ":"] if each == "--tokens" and next_[:1] == "-" else [each]
            for each, next_ in zip(args, after, strict=True)
        ]
        return super().parse_args(ctx, [each for group in spread for each in group])


@commands.command(cls=InspectCommand)
@offers("inspect")
def inspect(
    file: Annotated[str, typer.Argument(parser=Named, help="Any model container ggferry knows; a path or a URL.")],
    full: Annotated[bool, typer.Option("--full", help="Arrays and long texts of the metadata whole.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Only the metadata.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="Only the tensors.")] = False,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="[A:B]", help="Only the tokens, or those from id A up to B.")
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Only the chat template, as it is.")] = False,
    hexadecimal: Annotated[bool, typer.Option("--hex", help="Only an annotated dump of the header's bytes.")] = False,
    sizes: Annotated[bool, typer.Option("--sizes", help="Only the bytes by type and use, and the memory.")] = False,
    context: Annotated[
        list[int] | None, typer.Option("--context", min=1, help="A context length for the memory; repeatable.")
    ] = None,
    cache_type: Annotated[
        list[str] | None, typer.Option("--cache-type", help="A type of its cache: f16, q8_0, …; repeatable.")
    ] = None,
    **given: Any,
) -> None:
    """Show what a file holds, without reading its tensor data: all of it, or the parts that are asked for."""
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
    from ggferry.service.cli.describe import describe
    from ggferry.service.cli.files import sections

    types = sections.cache_types(cache_type)
    asked = [name for name, wanted in (
        ("metadata", keys), ("tensors", tensors), ("tokens", tokens), ("templates", template), ("hex", hexadecimal),
        ("sizes", sizes),
    ) if wanted]  # fmt: skip
    with access_of(file, given, tensors=False) as path:
        checkpoint = open_checkpoint(path, given["arch"])
        facts = describe(checkpoint, full, plain=False)
        if not asked or sizes:
            facts["sizes"] = sections.sizes(checkpoint)
            facts["memory"] = sections.memory(checkpoint, context or (), types)
        facts |= sections.parts(checkpoint, tokens, template, hexadecimal)
        checkpoint.close()
    if given["as_json"]:
        basics = ("container", "version", "files", *(("memory",) if sizes else ()))
        print_json_object({name: facts[name] for name in (*basics, *asked)} if asked else facts)
        return
    for line in sections.lines(facts, asked, full):
        tell(line)
