"""Files of a URL for a worker that looks at them: it asks this process for their bytes, and has no credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ggferry.formats.packed.scratch import Scratch
from ggferry.service.sources.siblings import files_of
from ggferry.service.storage.broker import revive
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.ranged_file import HEADER_BLOCK
from ggferry.service.storage.stores import is_remote, local_path
from ggferry.service.storage.urls import Access, configure_access


@contextmanager
def staged(source: str, access: Access) -> Iterator[tuple[str, Mapping[str, Any], Callable[[Any], Any]]]:
    """Yield a path for a source, what a worker needs to read there, and what puts URLs for paths in its answer.

    A path of this machine is yielded as it is.
    """
    with staged_all((source,), access) as (paths, mount, named):
        yield paths[0], mount, named


@contextmanager
def staged_all(
    sources: Sequence[str], access: Access, block: int = HEADER_BLOCK
) -> Iterator[tuple[list[str], Mapping[str, Any], Callable[[Any], Any]]]:
    """Yield the same of several sources; what is fetched comes in ranges of `block` bytes."""
    if not any(map(is_remote, sources)):
        yield [*sources], {}, lambda answer: answer
        return
    configure_access(access)
    scratch = Scratch()
    mirror = Mirror(scratch.path)
    try:
        paths = [_stage(mirror, each, block) if is_remote(each) else each for each in sources]
        yield paths, mirror.serve(), lambda answer: _named(answer, mirror)
    finally:
        mirror.close()
        scratch.close()


def _stage(mirror: Mirror, source: str, block: int) -> str:
    """Put the files of a URL into the mirror, and return the path that stands for it."""
    name, found = files_of(local_path(source))
    for each in found:
        if each.bytes < 0:
            raise revive(each.trouble or {"message": each.reason}, each.path)
    mirror.stage(found, block=block)
    return mirror.path_of(name)


def _named(answer: Any, mirror: Mirror) -> Any:
    """Return plain data with the URL of each mirrored path in its place."""
    if isinstance(answer, dict):
        return {_named(key, mirror): _named(value, mirror) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_named(each, mirror) for each in answer]
    return mirror.url_of(answer) if isinstance(answer, str) else answer
