"""Show what a file holds according to its headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind, option
from ggferry.service.operation import (
    AsJson,
    FollowRedirects,
    StrPath,
    argument,
    declare,
    library_function,
    open_source,
)
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.formats.checkpoint import Checkpoint
    from ggferry.service.library.answers import Inspection


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """What is inspected."""

    path: Annotated[StrPath, argument("Any model container ggferry knows; a path or a URL.")]
    _: KW_ONLY
    arch: Annotated[str | None, option("arch")] = None


@dataclass(frozen=True, slots=True)
class InspectCommand(InspectRequest):
    """Show what a file holds, without reading its tensor data: all of it, or the parts that are requested."""

    _: KW_ONLY
    full: Annotated[bool, declare(Kind.FLAG, "Arrays and long texts of the metadata whole.")] = False
    keys: Annotated[bool, declare(Kind.FLAG, "Only the metadata.", "--keys", "--no-tensors")] = False
    tensors: Annotated[bool, declare(Kind.FLAG, "Only the tensors.")] = False
    tokens: Annotated[
        str | None, declare(Kind.TEXT, "Only the tokens, or those from id A up to B.", metavar="[A:B]")
    ] = None
    template: Annotated[bool, declare(Kind.FLAG, "Only the chat template, as it is.")] = False
    hexadecimal: Annotated[bool, declare(Kind.FLAG, "Only an annotated dump of the header's bytes.", "--hex")] = False
    sizes: Annotated[bool, declare(Kind.FLAG, "Only the bytes by type and use, and the memory.")] = False
    context: Annotated[
        Sequence[int], declare(Kind.NUMBERS,
                "Show the memory at this context length; repeatable (default: 4096, 32768 and the model's own).",
                least=1)
    ] = ()
    cache_type: Annotated[
        Sequence[str], declare(Kind.TEXTS,
                "Show the memory with a KV cache of this type; repeatable (default: f16, q8_0 and q4_0).",
                metavar="TYPE")
    ] = ()
    data_offset: Annotated[bool, declare(Kind.FLAG, "Only the byte at which the tensors of a GGUF file begin.")] = False
    data_alignment: Annotated[bool, declare(Kind.FLAG, "Only the alignment of a GGUF file.")] = False
    json_array: Annotated[bool, declare(Kind.FLAG, "As --json --full.")] = False
    markdown: Annotated[bool, declare(Kind.FLAG, "Metadata and tensors as Markdown tables.")] = False
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False

    @property
    def parts(self) -> list[str]:
        """The parts that are asked for, by their names in JSON; none means all."""
        selected = {
            "metadata": self.keys, "tensors": self.tensors, "tokens": self.tokens, "templates": self.template,
            "hex": self.hexadecimal, "sizes": self.sizes,
        }
        return [name for name, value in selected.items() if value]


def run(request: InspectRequest) -> Inspection:
    """Return what a file or folder holds, according to its headers.

    Returns:
        Container, architecture, metadata and tensors. No tensor data is read.

    Raises:
        GgferryError: NotFoundError, UnsupportedError, CorruptError or one of their subclasses.

    Example:
        >>> ggferry.inspect("old.bin").tensors["output.weight"].type
        'Q4_0_V1'
    """
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with open_source(request.path, tensors=False) as path:
        checkpoint = open_checkpoint(path, request.arch)
        try:
            return _inspection(checkpoint)
        finally:
            checkpoint.close()


def _inspection(checkpoint: Checkpoint) -> Inspection:
    from ggferry.converters.analysis.companion_file import other_half
    from ggferry.converters.model_graph.graph import runtimes_of_file
    from ggferry.converters.understand import understand
    from ggferry.formats.errors import GgferryError
    from ggferry.formats.files.sources import known_by
    from ggferry.service.library.answers import Inspection, TensorFacts, plain
    from ggferry.service.library.conversions import dropped

    try:
        graph = understand(checkpoint, vocab_only=True)
    except GgferryError:
        graph = None
    known = graph if graph is not None and graph.architecture.hparams else None
    return Inspection(
        path=known_by(checkpoint.path),
        container=checkpoint.container,
        version=checkpoint.version,
        era=checkpoint.era,
        architecture=known.architecture.name if known else None,
        runtimes=runtimes_of_file(known, (ref.type for ref in checkpoint.tensors.values())) if known else (),
        files={known_by(file.path): file.size for file in checkpoint.files},
        header=dict(checkpoint.header),
        metadata={key: plain(value) for key, value in checkpoint.metadata.items()},
        tensors={ref.name: TensorFacts(ref.type.name, ref.shape, ref.nbytes) for ref in checkpoint.tensors.values()},
        dropped=dropped(checkpoint.dropped),
        notes=checkpoint.notes,
        other_half=other_half(checkpoint) if known else None,
    )


inspect = library_function("inspect", InspectRequest, run)
