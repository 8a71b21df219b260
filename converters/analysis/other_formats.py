"""Files and folders that are no model of ours: what they are, and what turns them into one.

Signatures: git-lfs spec v1 (pointers); onnx.proto (ModelProto: field 1, ir_version); HDF5 and TFLite (flatbuffer
identifier `TFL3`) format documents; CTranslate2 python/ctranslate2/specs/model_spec.py (`_serialize`: version u32,
then the length and the name of the specification); the others are the first bytes that the tools themselves check.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ggferry.formats.ggml.other_programs import is_minigpt4
from ggferry.support.records import dataclass

CONVERTED = "fetch the original checkpoint (safetensors or PyTorch) it was made of, and convert that"


@dataclass(frozen=True, slots=True)
class OtherFormat:
    """What something is.

    Attributes:
        what: In words.
        remedy: What can be done.
        command: The command that does it; '' where there is none.
        damaged: Whether it stands in the place of a model that was to be there.
    """

    what: str
    remedy: str = CONVERTED
    command: str = ""
    damaged: bool = False


Head = Callable[[bytes], bool]


def _starts(*prefixes: bytes) -> Head:
    return lambda head: head.lstrip()[:64].lower().startswith(tuple(prefix.lower() for prefix in prefixes))


def _is_ctranslate2(head: bytes) -> bool:
    version, length = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:6], "little")
    return 1 <= version <= 16 and 4 <= length <= 64 and re.match(rb"[A-Z]\w+Spec\0", head[6 : 6 + length]) is not None


def _is_onnx(head: bytes) -> bool:
    named = re.search(rb"pytorch|onnx|tf2onnx|keras|paddle|skl2onnx|quant", head[:256], re.IGNORECASE)
    begins = head[:1] == b"\x08" and b"\x01" <= head[1:2] <= b"\x0d" and head[2:3] in (b"\x12", b":", b"B")
    return begins and named is not None


_AGAIN = "download it again: this is the answer of a server, not the file"
_UNPACK = "unpack it and examine what is inside"
HEADS: tuple[tuple[Head, OtherFormat], ...] = (
    (_starts(b"version https://git-lfs"), OtherFormat(
        "a git-LFS pointer: the file itself was never downloaded", "fetch the files behind the pointers",
        "git lfs pull", True)),
    (_starts(b"<!doctype html", b"<html", b"<head"),
     OtherFormat("an HTML page saved under a model's name", _AGAIN, "", True)),
    (_starts(b"<?xml"), OtherFormat("an XML document, such as an error of an object store", _AGAIN, "", True)),
    (_starts(b'{"error"', b'{"message"', b'{"detail"'), OtherFormat("an error message in JSON", _AGAIN, "", True)),
    (_starts(b"invalid username or password", b"access to model", b"entry not found", b"not found", b"repository not"),
     OtherFormat("an error message of a hub", _AGAIN, "", True)),
    (lambda head: head[4:8] == b"TFL3", OtherFormat("a TensorFlow Lite model")),
    (_is_ctranslate2, OtherFormat("a CTranslate2 model")),
    (_is_onnx, OtherFormat("an ONNX model")),
    (_starts(b"\x93NUMPY"), OtherFormat("a NumPy array", "save the tensors as safetensors")),
    (_starts(b"7z\xbc\xaf'\x1c"), OtherFormat("a 7-Zip archive", _UNPACK, "7z x FILE")),
    (_starts(b"Rar!"), OtherFormat("a RAR archive", _UNPACK, "unrar x FILE")),
    (_starts(b"\x7fELF"), OtherFormat("a program (ELF)", "this is not a model")),
    (_starts(b"%PDF"), OtherFormat("a PDF document", "this is not a model")),
    (lambda head: head[:4] == b"ggsn",
     OtherFormat("a saved session of llama.cpp", "this is not a model, but what one computed")),
)
"""First bytes → what they are; the first that fits is taken."""

_OPEN = (".part", ".crdownload", ".incomplete", ".aria2", ".download", ".!ut", ".partial", ".tmp")
"""Endings that programs give to downloads at work."""


def of_head(head: bytes, path: str) -> OtherFormat | None:
    """Return what a file that begins with `head` is; None where that is not known."""
    if head and not head.strip(b"\0"):
        what = "nothing but zeros at its beginning: room that a download reserved and never filled"
        return OtherFormat(what, "download it again", "", True)
    return next((found for fits, found in HEADS if fits(head)), None)


def in_part(head: bytes) -> str | None:
    """Return what a file is whose container holds models that are read and others that are not; None for no such."""
    if is_minigpt4(head):
        return "a file of minigpt4.cpp"
    return "an HDF5 file of TensorFlow or Keras" if head.startswith(b"\x89HDF\r\n\x1a\n") else None


def unfinished(path: str) -> bool:
    """Return whether a file has the name of a download at work."""
    return path.lower().endswith(_OPEN)


FOLDERS: tuple[tuple[Callable[[frozenset[str]], bool], OtherFormat], ...] = (
    (lambda names: {"model.bin", "config.json"} <= names and any("vocabulary" in name for name in names),
     OtherFormat("a CTranslate2 model")),
    (lambda names: any(name.endswith(".onnx") for name in names) or "onnx" in names, OtherFormat("an ONNX model")),
    (lambda names: bool({"saved_model.pb"} & names) or any(".ckpt" in name for name in names)
     or ("checkpoint" in names and any(name.endswith(".index") for name in names)), OtherFormat("a TensorFlow model")),
    (lambda names: bool({"manifest.ocdbt", "_CHECKPOINT_METADATA", "_METADATA"} & names),
     OtherFormat("an orbax checkpoint of JAX")),
    (lambda names: any(name.endswith(".weights.h5") for name in names), OtherFormat("a model of Keras 3 or KerasHub")),
    (lambda names: any(name.endswith((".engine", ".plan")) for name in names), OtherFormat("a TensorRT engine")),
    (lambda names: any(name.endswith(".xml") and name[:-4] + ".bin" in names for name in names),
     OtherFormat("an OpenVINO model")),
)
"""Names in a folder → what it is."""


def of_folder(names: frozenset[str]) -> OtherFormat | None:
    """Return what a folder holds by the names in it; None where that is not known."""
    return next((found for fits, found in FOLDERS if fits(names)), None)


SCHEMES = {
    "exl3": "ExLlamaV3's quantization (EXL3)",
    "quip": "QuIP#", "eetq": "EETQ", "higgs": "HIGGS", "vptq": "VPTQ", "spqr": "SpQR",
}
"""`quant_method` of a configuration → its name, of schemes that are not read here."""
