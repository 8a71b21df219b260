"""Find the adapters that a receipt names: in the source's folder, beside the source or the output, or here.

A receipt states their last names and scales only; what is found counts if it has the bytes of the receipt's files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.adapters.merge_parts import open_adapter, path_and_scale
from ggferry.converters.conversion.request import Request
from ggferry.formats.errors import CorruptError, GgferryError, NotFoundError
from ggferry.formats.files.digests import digest


def with_adapters_found(
    request: Request, receipt: Mapping[str, Any] | None, output: str
) -> tuple[Request, tuple[str, ...]]:
    """Return the request with the adapters that the receipt of an output names, and a note for each.

    A request that names adapters itself stays as it is.

    Raises:
        NotFoundError: One is in none of these places, or has other bytes there.
        CorruptError: The receipt's list of adapters is none.
    """
    declared = receipt["options"].get("lora") if receipt else None
    if request.lora or not declared or receipt is None:
        return request, ()
    if not isinstance(declared, list) or not all(isinstance(text, str) for text in declared):
        raise CorruptError("the receipt's options: lora is not a list of texts", path=output, found=declared)
    files = receipt.get("source", {}).get("files", ())
    digests = [record.get("blake3") for record in files if isinstance(record, Mapping)]
    beside = (os.path.dirname(os.path.abspath(each)) for each in (request.source, output))
    folders = list(dict.fromkeys((request.source, *beside, os.curdir)))
    found: list[str] = []
    for text in reversed(declared):  # the receipt lists their files in order, behind those of the base
        place, count = _found(text, folders, digests, output)
        found.insert(0, place)
        digests = digests[: len(digests) - count]
    return replace(request, lora=tuple(found)), tuple(f"--lora {place}: found by the receipt" for place in found)


def _found(text: str, folders: Sequence[str], digests: Sequence[object], output: str) -> tuple[str, int]:
    """Return PATH:SCALE of the adapter of that name whose files have the last of these digests, and their number.

    Raises NotFoundError where there is none.
    """
    name, scale = path_and_scale(text)
    plain = name == os.path.basename(name) and name not in ("", os.curdir, os.pardir)
    places = [os.path.join(folder, name) for folder in folders] if plain else []
    there = [place for place in places if os.path.exists(place)]
    for place in there:
        own = _digests(place)
        if own and own == list(digests[-len(own) :]):
            return f"{place}:{scale:g}", len(own)
    raise NotFoundError(
        f"the adapter {name!r}, with which the output was made",
        path=output,
        found=f"other bytes in {', '.join(there)}" if there else None,
        expected=f"in {', '.join(folders)}",
        hint=f"--lora PATH:{scale:g}",
    )


def _digests(place: str) -> list[object]:
    """Return the digests of an adapter's files; none of what cannot be read as one."""
    try:
        adapter = open_adapter(place, named=False).checkpoint
    except GgferryError:
        return []
    try:
        return [digest(file) for file in adapter.files]
    finally:
        adapter.close()
