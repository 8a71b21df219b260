"""Find the same model under several names: by size first, then by samples, then by every byte.

A plan states what is proved.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from ggferry.formats.errors import GgferryError
from ggferry.formats.files.digests import digest
from ggferry.formats.files.sources import Source
from ggferry.service.records.plan_file import CONVERT, DUPLICATE, SKIP, Entry
from ggferry.service.storage.stores import Found

SAMPLES, SAMPLE_BYTES = 8, 16 << 10
FIRST = 2  # samples that are compared first: most files of one size differ there
Open = Callable[[Found], Source]


def mark(entries: Sequence[Entry], open_file: Open, whole: Callable[[Found], bool]) -> list[Entry]:
    """Return the entries with `same_as` and `proof` where their content is that of another entry.

    The content is weights and sidecar files. Only proved duplicates get the verdict: by inode, or by the BLAKE3 of
    every file where `whole` allows reading it. Where samples agree and no more was read, a note says so; `apply` finds
    out, because it digests every source.
    """
    found = list(entries)
    models = [i for i, entry in enumerate(found) if entry.verdict in (CONVERT, SKIP) and entry.files]
    for alike in _split(models, lambda i: _sizes(found[i])):
        for same in _sampled(found, alike, open_file):
            _settle(found, same, open_file, whole)
    return found


def _sampled(found: Sequence[Entry], alike: list[int], open_file: Open) -> list[list[int]]:
    """Return runs of entries whose samples agree, of entries with equal sizes.

    File by file, weights first: they differ where models do, and sidecar files seldom.
    """
    files = {i: _all(found[i]) for i in alike}
    runs = [alike]
    for count in (FIRST, SAMPLES):
        for at in range(len(files[alike[0]])):

            def sample(i: int, at: int = at, count: int = count) -> str:
                return _samples(files[i][at], open_file, count)

            runs = [run for members in runs for run in _split(members, sample)]
    return runs


def _settle(found: list[Entry], same: Sequence[int], open_file: Open, whole: Callable[[Found], bool]) -> None:
    if not all(whole(each) for i in same for each in _all(found[i])):
        name = found[same[0]].source
        for i in same[1:]:
            note = f"samples agree with {name}: probably the same, not proved"
            found[i] = replace(found[i], notes=(*found[i].notes, note))
        return
    seen: dict[tuple[int, int] | str, Hashable] = {}
    for equal in _split(same, lambda i: tuple(_identity(each, open_file, seen) for each in _all(found[i]))):
        first = found[equal[0]]
        for i in equal[1:]:
            entry = found[i]
            linked = _inodes(entry) == _inodes(first) and None not in _inodes(entry)
            proof = "inode" if linked else "blake3"
            verdict = DUPLICATE if entry.verdict == CONVERT else entry.verdict
            words = "a link to" if linked else "the same bytes as"
            reason = f"{words} {first.source}" if verdict == DUPLICATE else entry.reason
            found[i] = replace(
                entry, verdict=verdict, reason=reason, same_as=first.source, proof=proof, output=None, further=()
            )


def _split(items: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Return runs of items with equal keys, without those that stand alone.

    An item that cannot be read stands alone.
    """
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for item in items:
        try:
            classes[key(item)].append(item)
        except (GgferryError, OSError):
            continue
    return [members for members in classes.values() if len(members) > 1]


def _all(entry: Entry) -> tuple[Found, ...]:
    return (*entry.files, *sorted(entry.beside, key=lambda each: os.path.basename(each.path)))


def _sizes(entry: Entry) -> Hashable:
    """Return what duplicates share before anything is read: sizes, sidecar names, and options (of paths, the names)."""
    beside = sorted((os.path.basename(each.path), each.bytes) for each in entry.beside)
    options = [(name, os.path.basename(v) if isinstance(v, str) else str(v)) for name, v in entry.options.items()]
    return tuple(each.bytes for each in entry.files), tuple(beside), tuple(sorted(options))


def _inodes(entry: Entry) -> tuple[tuple[int, int] | None, ...]:
    return tuple(each.inode for each in entry.files)


def _samples(found: Found, open_file: Open, count: int) -> str:
    """Return a digest of so many pieces of a file, evenly spread, the last of them its end."""
    from blake3 import blake3

    state = blake3()
    with open_file(found) as source:  # type: ignore[attr-defined]
        step = max(SAMPLE_BYTES, -(-source.size // count))
        for end in range(source.size, 0, -step):
            begin = max(0, end - SAMPLE_BYTES)
            state.update(source.read(begin, end - begin))
    return str(state.hexdigest())


def _identity(found: Found, open_file: Open, seen: dict[tuple[int, int] | str, Hashable]) -> Hashable:
    """Return the digest of a file; one with several names (links) is read once."""
    key = found.inode or found.path
    if key not in seen:
        with open_file(found) as source:  # type: ignore[attr-defined]
            seen[key] = digest(source)
    return seen[key]
