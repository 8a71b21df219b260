"""Make a command's source argument, a path or a URL, a path: `local_source`.

A URL is mirrored in a temporary folder (`service.storage.mirror`): a name for every file that belongs to the model,
the small ones with their bytes, the weights empty. Whoever opens weights gets them from the store, by ranges of the
version that was listed, each fetched once and kept on the disk as far as `--cache` allows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ggferry.formats.errors import GgferryError, TransientError
from ggferry.formats.files.local_files import Named
from ggferry.formats.packed.holding import holding
from ggferry.support.progress import Stage

if TYPE_CHECKING:
    from ggferry.service.sources.remote import Remote

CACHE = 64 << 30
"""Bytes of a remote model that are kept on the disk while it is read, unless `--cache` says otherwise."""


class LocalSource(Named):
    """The path of a source, and for a URL what is known of it.

    Attributes:
        url: The URL, without what is secret in it; None for a path.
    """

    url: str | None = None
    _remote: Remote | None = None

    def check_unchanged(self) -> None:
        """Raise ChangedError when a remote file is no longer the one that was listed. A path is checked elsewhere."""
        if self._remote is not None:
            self._remote.check()

    def staged(self, stage: Stage) -> Stage:
        """Return a stage that downloads what the cache has room for before the first phase that reads tensors."""
        remote = self._remote
        return stage if remote is None else remote.staged(stage)


def _of_ollama(source: str) -> LocalSource | None:
    """Return the manifest of a model of Ollama's, by its name or its path; None for another source."""
    from ggferry.formats.ollama.names import SCHEME, parse_name
    from ggferry.formats.ollama.store import find_manifest, located

    path = find_manifest(parse_name(source)) if source.startswith(SCHEME) else source
    place = None if "://" in path else located(path)
    if place is None:
        return None
    found = LocalSource(path)
    found.url = f"{SCHEME}{place[1]}"  # outputs do not go beside it, into the store
    return found


@contextmanager
def local_source(source: str, *, tensors: bool = True, cache: int = CACHE) -> Iterator[LocalSource]:
    """Yield a path for what a command was given as its source; what takes paths today takes it as it is.

    A path is yielded unchanged. For `https://`, `s3://`, `hf://owner/name[@revision][/file]` and whatever else fsspec
    reaches, the path stands for the file or folder within the context, and errors that leave the context name URLs.
    Use `formats.files.sources.known_by` for showing a path to people.

    Args:
        source: A path, or the URL of a file or of a model's folder.
        tensors: Whether tensor data may be read. Otherwise only headers are fetched, in small blocks, and small files
            when they are opened; nothing outlives the context.
        cache: Bytes that may be kept on the disk. What an attempt that ended with an error had fetched is there for the
            next one, for a week.

    Raises:
        GgferryError: NotFoundError, AccessError, UnreachableError, ChangedError or UnsupportedError: what the store
            says, or does not support.
    """
    with holding():
        yield from _local_source(source, tensors, cache)


def _local_source(source: str, tensors: bool, cache: int) -> Iterator[LocalSource]:
    if "://" not in source and "manifests" not in source:  # said first, so that a path costs no import
        yield LocalSource(source)
        return
    if (stored := _of_ollama(source)) is not None:
        yield stored
        return
    from ggferry.formats.packed.scratch import Scratch, sweep
    from ggferry.service.sources.remote import Remote
    from ggferry.service.storage.stores import is_remote, local_path

    if not is_remote(source):
        yield LocalSource(local_path(source))
        return
    url = local_path(source)
    sweep()
    scratch = Scratch()
    remote = Remote(url, os.path.join(scratch.path, "from"), tensors, cache)
    done = False
    try:
        path = LocalSource(remote.open())
        path.url, path._remote = url, remote
        yield path
        done = True
    except GgferryError as error:
        if error.path is not None:
            error.path = remote.mirror.url_of(error.path)
        if isinstance(error, TransientError) and error.hint is None and (left := remote.left_behind()):
            error.hint = f"{left:,} bytes of it are kept on this disk for another try, for a week"
        raise
    finally:
        remote.close(done=done)
        scratch.close()
