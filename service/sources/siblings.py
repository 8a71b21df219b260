"""Which files of a store belong to the one that a URL names: its shards, its parts, the small files beside it.

A store that is asked for one file need not be able to list a folder, so the others are asked for by the names they
would have.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ggferry.formats.checkpoint_folder.sidecars import sidecar_names
from ggferry.formats.errors import AmbiguousError, GgferryError, NotFoundError, RefusedError
from ggferry.formats.limits import MAX_JSON, MAX_PARTS, MAX_SHARDS
from ggferry.service.storage.stores import Found, join, listing, read_whole, stat

INDEX = ".index.json"
FILES = 20_000
"""Files of one model's folder at most: more are an archive, which `plan` reads."""
AT_ONCE = 16  # files asked for at a time
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<tail>\.\w+)", re.ASCII)
_OF_SEVERAL = re.compile(r"\.metadata|.+\.distcp|.*_(model|optim)_states\.pt", re.ASCII)
"""Files of torch.distributed.checkpoint and of DeepSpeed: which others there are only a list of the folder says."""
_PART = re.compile(r"(?P<stem>.+)\.(?P<number>\d\d)(?P<tail>\.\w+)", re.ASCII)


def files_of(url: str) -> tuple[str, tuple[Found, ...]]:
    """Return the name of what a URL means, a file or a folder, and the files that belong to it.

    Raises NotFoundError where nothing is there, RefusedError for a folder of more than FILES files, and what a store
    raises.
    """
    found = []
    for each in listing(url):
        found.append(each)
        if len(found) > FILES:
            hint = "name the folder of a model, or use ggferry plan for an archive"
            raise RefusedError(f"more than {FILES} files below it", path=url, hint=hint)
    if not found:
        raise NotFoundError("no such file or directory", path=url)
    own = [each for each in found if each.path.rstrip("/") == url.rstrip("/")]
    if not own:
        near = [each for each in found if _near(each.path, url)]
        return url, (*near, *_above(url.rstrip("/"), near))
    if _OF_SEVERAL.fullmatch(posixpath.basename(url.partition("?")[0])):
        others = [own[0], *_in_its_folder(url)]
        return url, (*others, *_above(posixpath.dirname(url.partition("?")[0]), others))
    return url, (own[0], *_existing(_named(url)))


def _above(folder: str, found: Sequence[Found]) -> list[Found]:
    """Return the small files in the folder above that of a trainer's checkpoint, where it has no configuration."""
    names = {posixpath.basename(each.path) for each in found if posixpath.dirname(each.path) == folder}
    if "config.json" in names or not any(map(_OF_SEVERAL.fullmatch, names)):
        return []
    return _existing([[join(posixpath.dirname(folder), name) for name in sidecar_names()]])


def _in_its_folder(url: str) -> Iterator[Found]:
    """Yield the other files of a checkpoint whose files name no others. Raises RefusedError where none is listed."""
    folder, others = posixpath.dirname(url.partition("?")[0]), 0
    try:
        for each in listing(f"{folder}/"):
            if each.path != url and posixpath.dirname(each.path) == folder:
                others += 1
                yield each
    except GgferryError as error:
        found: str | None = str(error)
    else:
        found = None
    if not others:
        hint = "fetch the folder, and name the local copy"
        message = "one file of a checkpoint in several, in a folder that the server does not list"
        raise RefusedError(message, path=url, found=found, hint=hint)


def _near(path: str, folder: str) -> bool:
    """Return whether a file is in a folder or in one of the folders in it, as the parts of one model are."""
    return path.startswith(f"{folder.rstrip('/')}/") and path[len(folder) :].strip("/").count("/") <= 1


def _named(url: str) -> Iterator[Sequence[str]]:
    """Yield groups of URLs; a group is asked for until one is missing, if it has no end."""
    folder, name = posixpath.split(url.partition("?")[0])
    shard, part = _SHARD.fullmatch(name), _PART.fullmatch(name)
    if shard is not None and int(shard["count"]) <= MAX_SHARDS:
        stem, tail, total = shard["stem"], shard["tail"], shard["count"]
        numbers = (f"{number:05}" for number in range(1, int(total) + 1) if f"{number:05}" != shard["number"])
        yield [join(folder, f"{stem}-{number}-of-{total}{tail}") for number in numbers]
        yield [join(folder, f"{stem}{tail}{INDEX}")]
    if name.endswith(INDEX):
        yield [join(folder, each) for each in _indexed(url)]
    if part is not None:
        yield _Endless(folder, f"{part['stem']}.{{:02}}{part['tail']}", int(part["number"]))
    if not name.endswith(".gguf"):
        yield [join(folder, each) for each in sidecar_names() if each != name]
        if re.search(r"\.bin(\.\d+)?$", name):
            yield _Endless(folder, re.sub(r"\.\d+$", "", name) + ".{}", 0)


class _Endless(list[str]):
    """The names of numbered parts: as many as there are, and no more than a model can have.

    A server that has an answer for every path has one for every number.
    """

    def __init__(self, folder: str, pattern: str, own: int) -> None:
        super().__init__()
        self.folder, self.pattern, self.own = folder, pattern, own

    def existing(self) -> Iterator[Found]:
        first = 0 if "{:02}" in self.pattern else 1
        for number in range(first, MAX_PARTS + 1):
            if number == self.own and "{:02}" in self.pattern:
                continue
            url = join(self.folder, self.pattern.format(number))
            found = _stat(url)
            if found is None:
                return
            if number == MAX_PARTS:
                raise AmbiguousError(
                    "more numbered parts than a model has: the server may have an answer for every path",
                    path=url,
                    expected=f"at most {MAX_PARTS}",
                    hint="fetch the files, and name the local copy",
                )
            yield found


def _existing(groups: Iterable[Sequence[str]]) -> list[Found]:
    found: list[Found] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for group in groups:
            more = group.existing() if isinstance(group, _Endless) else pool.map(_stat, group)
            found += [each for each in more if each is not None]
    return found


def _stat(url: str) -> Found | None:
    try:
        return stat(url)
    except NotFoundError:
        return None


def _indexed(url: str) -> list[str]:
    """Return the plain names of files that an index states; reading it properly comes later, and says what is wrong."""
    try:
        names = json.loads(read_whole(url, MAX_JSON))["weight_map"].values()
        plain = {name for name in names if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name, re.ASCII)}
        return sorted(plain)[:MAX_SHARDS]
    except (GgferryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
