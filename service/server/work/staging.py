"""Files of a URL for a worker that looks at them: it asks this process for their bytes, and has no credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ggferry.service.sources.siblings import files_of
from ggferry.service.storage.broker import revive
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.scratch import Scratch
from ggferry.service.storage.stores import is_remote, local_path
from ggferry.service.storage.urls import Access, configure_access


@contextmanager
def staged(source: str, access: Access) -> Iterator[tuple[str, Mapping[str, Any], Callable[[Any], Any]]]:
    """Yield a path for a source, what a worker needs to read there, and what puts URLs for paths in its answer.

    A path of this machine is yielded as it is.
    """
    if not is_remote(source):
        yield source, {}, lambda answer: answer
        return
    configure_access(access)
    scratch = Scratch()
    mirror = Mirror(scratch.path)
    try:
        name, found = files_of(local_path(source))
        for each in found:
            if each.bytes < 0:
                raise revive(each.trouble or {"message": each.reason}, each.path)
        mirror.stage(found)
        yield mirror.path_of(name), mirror.serve(), lambda answer: _named(answer, mirror)
    finally:
        mirror.close()
        scratch.close()


def _named(answer: Any, mirror: Mirror) -> Any:
    """Return plain data with the URL of each mirrored path in its place."""
    if isinstance(answer, dict):
        return {_named(key, mirror): _named(value, mirror) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_named(each, mirror) for each in answer]
    return mirror.url_of(answer) if isinstance(answer, str) else answer
