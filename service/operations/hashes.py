"""Digest the tensors of a model, and compare digests with a manifest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated

from ggferry.converters.conversion.options import Kind
from ggferry.formats.errors import UsageError
from ggferry.formats.files.sources import known_by
from ggferry.service.operation import (
    AsJson,
    Cache,
    FollowRedirects,
    ReportProgress,
    StrPath,
    argument,
    declare,
    library_function,
    open_source,
)
from ggferry.support.progress import Phase, silent
from ggferry.support.records import dataclass

if TYPE_CHECKING:
    from ggferry.converters.analysis.differences.hashes import Checked, Digest


@dataclass(frozen=True, slots=True)
class HashRequest:
    """What is digested, and how."""

    path: Annotated[StrPath, argument("A model of any container; a path or a URL.")]
    algorithm: Annotated[
        str | Sequence[str],
        declare(Kind.TEXTS,
                "sha256 (the default), blake3, sha1, xxh64 or uuid; repeatable.",
                "--algorithm", "-a", metavar="NAME",
                python="'sha256', 'blake3', 'sha1', 'xxh64' or 'uuid'."),
    ] = "sha256"
    _: KW_ONLY
    cache: Cache = None
    progress: ReportProgress = silent


@dataclass(frozen=True, slots=True)
class HashCommand(HashRequest):
    """Digest every tensor, and all together: little-endian data without padding, in llama-gguf-hash's manifest.

    Metadata, alignment, byte order and shards make no difference; to the digest of all, the order of the tensors does.
    """

    _: KW_ONLY
    layers: Annotated[
        bool, declare(Kind.FLAG, "Only the digest of all tensors together.", "--no-layer", negated=True)
    ] = True
    check: Annotated[
        StrPath | None,
        declare(Kind.TEXT, "Compare with a manifest that hash printed, by its strongest algorithm.", "--check", "-c",
                metavar="MANIFEST"),
    ] = None
    follow_redirects: FollowRedirects = False
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class HashResult:
    """The digests of a model.

    Attributes:
        path: The model.
        digests: Of each tensor, in the order of the file, then of all together.
    """

    path: str
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class ManifestResult:
    """A model compared with a manifest.

    Attributes:
        path: The model.
        checked: What was compared.
    """

    path: str
    checked: Checked


def algorithms(request: HashRequest) -> Sequence[str]:
    """Return the algorithms that a request names."""
    return (request.algorithm,) if isinstance(request.algorithm, str) else request.algorithm


def digest(request: HashRequest, *, layers: bool = True) -> HashResult:
    """Return the digests of all tensors together, and with `layers` of each tensor. Raises as `run`."""
    from ggferry.converters.analysis.differences.hashes import digests
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint

    with open_source(request.path, request.cache) as path:
        checkpoint = open_checkpoint(path)
        try:
            total = sum(ref.nbytes for ref in checkpoint.tensors.values())
            with path.staged(request.progress)(Phase.CHECKING, total) as progress:
                found = tuple(digests(checkpoint, algorithms(request), tensors=layers, progress=progress))
            path.check_unchanged()
            return HashResult(known_by(checkpoint.path), found)
        finally:
            checkpoint.close()


def compare_with_manifest(request: HashRequest, manifest: StrPath, algorithm: str | None = None) -> ManifestResult:
    """Compare a model with a manifest, by an algorithm of its, or the strongest. Raises as `run`."""
    from ggferry.converters.analysis.differences.hashes import check, read_manifest
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
    from ggferry.formats.files.named_texts import text_of

    name = os.fspath(manifest)
    with open_source(request.path, request.cache) as path:
        checkpoint = open_checkpoint(path)
        try:
            declared = read_manifest(text_of(name), name, checkpoint.tensors)
            total = sum(ref.nbytes for ref in checkpoint.tensors.values())
            with path.staged(request.progress)(Phase.CHECKING, total) as progress:
                return ManifestResult(known_by(checkpoint.path), check(checkpoint, declared, algorithm, progress))
        finally:
            checkpoint.close()


def run(request: HashRequest) -> dict[str | None, str]:
    """Digest every tensor of a model, and all together, as `ggferry hash` does.

    Returns:
        Tensor → digest; under None the digest of all, in the order of the file. Metadata, alignment, byte order and
        shards make no difference.

    Raises:
        UsageError: There is no such digest, or several are named.
        GgferryError: As `inspect`.

    Example:
        >>> ggferry.hashes("model.gguf")["output_norm.weight"][:8]
        '53a4d0a0'
    """
    if len(algorithms(request)) != 1:
        raise UsageError("algorithm", found=", ".join(algorithms(request)), expected="one")
    return {each.tensor: each.hex for each in digest(request).digests}


hashes = library_function("hashes", HashRequest, run)
