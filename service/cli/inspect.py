"""The command that shows what a file holds: inspect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import HeadedCommand, takes, tell
from ggferry.service.cli.terminal import print_json_object
from ggferry.service.operation import open_source
from ggferry.service.operations.inspect import InspectCommand

commands = typer.Typer(rich_markup_mode=None)


class TokensCommand(HeadedCommand):
    """A command whose --tokens may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a lone --tokens the value that means all of them."""
        after = [*args[1:], "-"]
        spread = [
            [each, ":"] if each == "--tokens" and next_[:1] == "-" else [each]
            for each, next_ in zip(args, after, strict=True)
        ]
        return super().parse_args(ctx, [each for group in spread for each in group])


@commands.command(cls=TokensCommand)
@takes(InspectCommand)
def inspect(request: InspectCommand) -> None:
    """Print what a file holds, or the parts that are requested."""
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
    from ggferry.service.cli.describe import describe
    from ggferry.service.cli.files import sections

    if request.json_array:
        request = replace(request, as_json=True, full=True)
    types, parts = sections.cache_types(request.cache_type), request.parts
    with open_source(request.path, tensors=False) as path:
        checkpoint = open_checkpoint(path, request.arch)
        facts = describe(checkpoint, request.full, plain=False)
        if not parts or request.sizes:
            facts["sizes"] = sections.sizes(checkpoint)
            facts["memory"] = sections.memory(checkpoint, request.context, types)
        facts |= sections.parts(checkpoint, request.tokens, request.template, request.hexadecimal)
        checkpoint.close()
    if request.data_offset or request.data_alignment:
        _tell_places(request, facts)
        return
    if request.as_json:
        basics = ("container", "version", "files", *(("memory",) if request.sizes else ()))
        print_json_object({name: facts[name] for name in (*basics, *parts)} if parts else facts)
        return
    if request.markdown:
        from ggferry.service.cli.files import markdown

        for line in markdown.lines(facts, str(request.path)):
            tell(line)
        return
    for line in sections.lines(facts, parts, request.full):
        tell(line)


def _tell_places(request: InspectCommand, facts: Mapping[str, Any]) -> None:
    """Print where the data of a GGUF file begins, and how it is aligned, as gguf-dump does. Raises UsageError."""
    if facts["container"] != "gguf":
        raise UsageError("--data-offset and --data-alignment are for GGUF files", found=facts["container"])
    if request.data_offset:
        tell(str(facts["header"]["data_offset"]))
    if request.data_alignment:
        tell(str(facts["alignment"]))
