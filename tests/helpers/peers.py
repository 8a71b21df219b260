"""GGUF files that other programs wrote and that we make again, byte for byte, from what they were made of.

Such a file is kept as a record, NAME.gguf.json: its metadata, and in order name, type, shape and sha256 of every
tensor. The tensors' bytes are those of our own conversion of the same source to the same types; the sha256 of each
tensor and of the whole file say whether they are the other program's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.formats.gguf.values import Value, ValueType
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.quant.codec import block_type

COMPUTED = ("rope_freqs.weight",)
"""Tensors whose last bit is the order of operations': their bytes stand in the record."""

Record = dict[str, Any]


def is_record(path: Path) -> bool:
    """Whether a file is a record, and not one of the other JSON files."""
    return path.name.endswith(".gguf.json")


def record_of(path: Path, source: str, outtype: str, imatrix: str | None = None) -> Record:
    """What is kept of the GGUF at `path`, which another program made of `source` (and `imatrix`) as `outtype`."""
    found = open_gguf(str(path))
    tensors = []
    for name, ref in found.tensors.items():
        data = found.files[0].read(ref.spans[0].offset, ref.nbytes)
        entry = {"name": name, "type": ref.type.name, "shape": ref.shape, "sha256": hashlib.sha256(data).hexdigest()}
        tensors.append(entry | ({"data": _text(data)} if name in COMPUTED else {}))
    return {
        "source": source,
        "outtype": outtype,
        "imatrix": imatrix,
        "size": path.stat().st_size,
        "sha256": _digest(path),
        "alignment": found.alignment,
        "metadata": {key: _packed(value) for key, value in found.metadata.items()},
        "tensors": tensors,
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _text(data: bytes) -> str:
    return base64.b64encode(bytes(data)).decode()


def _packed(value: Value) -> list[Any]:
    """[type, data] or ["ARRAY", type of the items, data]; bytes in base64, for one normalizer is 230 KB of them."""
    if value.items is None:
        return [value.type.name, value.data]
    return ["ARRAY", value.items.name, _text(value.data) if value.items is ValueType.UINT8 else list(value.data)]


def _unpacked(kind: str, *rest: Any) -> Value:
    if kind != "ARRAY":
        return Value(ValueType[kind], rest[0])
    items, data = ValueType[rest[0]], rest[1]
    return Value(ValueType.ARRAY, tuple(base64.b64decode(data) if items is ValueType.UINT8 else data), items)


def metadata_of(record: Record) -> dict[str, Value]:
    return {key: _unpacked(*value) for key, value in record["metadata"].items()}


def write_again(record: Record, made: str, path: Path) -> None:
    """The other program's file, its tensors' bytes taken from `made`, our conversion.

    Fails with the first tensor that is not what the other program wrote.
    """
    ours, tensors = open_gguf(made), []
    for entry in record["tensors"]:
        data = base64.b64decode(entry["data"]) if "data" in entry else None
        if data is None:
            ref = ours.tensors[entry["name"]]
            data = ours.files[0].read(ref.spans[0].offset, ref.nbytes)
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], f"{entry['name']} is not what the other tool wrote"
        tensors.append((entry["name"], block_type(entry["type"]), tuple(entry["shape"]), data))
    write_gguf(path, metadata_of(record), tensors, alignment=record["alignment"])
    assert _digest(path) == record["sha256"], f"{path.name} is not the other tool's file"


@dataclass(frozen=True)
class Peers:
    """Files of other programs by their name: as they stand, or made again in `folder`."""

    folder: Path
    witness: Callable[[str], Path]

    def __call__(self, name: str) -> Path:
        """The path of `name`, such as hf/out/llama/llama.f32.gguf."""
        path = self.witness(name)
        return self._made(name, json.loads(path.read_text())) if is_record(path) else path

    def _made(self, name: str, record: Record) -> Path:
        target = self.folder / name
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        mine = target.with_name(f"{os.getpid()}-{target.name}")  # the workers of pytest-xdist share the folder
        source, matrix = self._source(record["source"]), record["imatrix"] and str(self.witness(record["imatrix"]))
        request = Request(source, f"{mine}.ours.gguf", Options(outtype=record["outtype"]), imatrix=matrix, level="none")
        made = convert(request)[0].path
        write_again(record, made, mine)
        for left in (made, f"{made}.receipt.json"):
            os.unlink(left)
        os.replace(mine, target)
        return target

    def _source(self, name: str) -> str:
        return str(self(name) if name.endswith(".gguf") else self.witness(name))
