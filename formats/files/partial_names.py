"""The names of unfinished files: `.OUT.ggferry-<16 hex digits>.partial`, in the folder of OUT.

docs/decisions/partials.md says why.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator

from ggferry.formats.errors import of_os
from ggferry.support.platform import here

NAME_MAX = 255  # bytes, of every file system in use but a few that encrypt names
PARTIAL = re.compile(r"\.(?P<target>.+)\.ggferry-(?P<token>[0-9a-f]{16})\.partial", re.DOTALL)
_ADDED = len("..ggferry-.partial") + 16


def is_partial(path: str) -> bool:
    """Return whether a file has the name of an unfinished output of ggferry."""
    return PARTIAL.fullmatch(os.path.basename(path)) is not None


def longest_name(folder: str) -> int:
    """Return how many bytes the name of a file in `folder` may have."""
    return here.longest_name(folder)


def shortened(name: str, longest: int) -> str:
    """Return as much of the end of `name` as leaves room for what a partial's name adds; the end tells shards apart."""
    while len(os.fsencode(name)) > longest - _ADDED:
        name = name[1:]
    return name


def partial_path(target: str, token: str) -> str:
    """Return the path under which `target` grows."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{shortened(name, longest_name(folder))}.ggferry-{token}.partial")


def new_token() -> str:
    """Return 16 random hex digits."""
    return os.urandom(8).hex()


class Leftovers:
    """The unfinished outputs of ggferry in one folder, by the target they were to become."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._longest = longest_name(folder)
        self._found: dict[str, list[str]] = defaultdict(list)
        for name in sorted(os.listdir(folder or os.curdir)):
            if match := PARTIAL.fullmatch(name):
                self._found[match["target"]].append(os.path.join(folder, name))

    def of(self, target: str) -> list[str]:
        """Return the paths of the unfinished files of `target`."""
        return self._found.get(shortened(os.path.basename(target), self._longest), [])

    def ending(self, suffix: str) -> Iterator[str]:
        """Yield the paths of the unfinished files of all targets whose names end so."""
        for target, paths in self._found.items():
            if target.endswith(suffix):
                yield from paths


def leftovers(folder: str) -> Leftovers:
    """Return the unfinished files in `folder`. Raises what `of_os` makes of a failure to list it."""
    try:
        return Leftovers(folder)
    except OSError as error:
        raise of_os(error, "cannot be listed", folder or os.curdir) from None
