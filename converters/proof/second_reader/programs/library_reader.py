"""Read samples of tensors by the libraries that such files are made with: a program of its own (`process.py`).

Nothing of ggferry is imported: safetensors reads safetensors, torch reads what torch.save wrote (with `weights_only`),
gguf reads GGUF. Questions come as JSON, their length before them, over the socket that is this program's standard
input, with the descriptors of the files; answers go back likewise. With `--places`, for a system that passes no
descriptors (Windows), questions name the places of the files, and answers go to standard output. The program ends with
what it reads from.
"""

from __future__ import annotations

import array
import gc
import hashlib
import json
import math
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

MAX_FILES = 253  # descriptors that one message may carry: SCM_MAX_FD of Linux
ROOM = 3 << 30  # bytes of memory beside the files, which torch maps privately; torch itself takes half a gigabyte
SECONDS = 120  # of CPU for a question
NICE = 5

DONT_NEED = 4  # MADV_DONTNEED of Linux's mman.h

EXPERT = re.compile(r"\.experts\.\d+\.")
Array = Any


class Mapped:
    """Where libraries have mapped a file, whose pages are let go once they were read.

    Where Linux has a file in large pages, as one that was just written, a fault maps up to 2 MiB of it (6.18): three
    samples of each of 200 tensors were 550 MiB of resident memory.
    """

    def __init__(self, fd: int) -> None:
        import ctypes

        self.ranges: list[tuple[Any, Any]] = []
        self.advise: Any = None
        with suppress(OSError, AttributeError, TypeError, ValueError):  # not Linux
            found = os.fstat(fd)
            own = (f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}".encode(), str(found.st_ino).encode())
            with open("/proc/self/maps", "rb") as maps:
                for line in maps:
                    place, _, _, device, inode, *_ = line.split(maxsplit=5)
                    if (device, inode) == own:  # another file's pages may be a library's data, which would be lost
                        start, stop = (int(end, 16) for end in place.split(b"-"))
                        self.ranges.append((ctypes.c_void_p(start), ctypes.c_size_t(stop - start)))
            self.advise = ctypes.CDLL(None).madvise

    def forget(self) -> None:
        """Let the pages go; the next read finds them in the system's cache."""
        if self.advise is not None:
            for start, size in self.ranges:
                self.advise(start, size, DONT_NEED)


class File:
    """A file as its library reads it: names, shapes and types of its tensors, and parts of their rows."""

    library = ""
    mapped: Mapped

    def names(self) -> list[str]:
        raise NotImplementedError

    def facts(self, name: str) -> tuple[str, list[int]]:
        """Return type and shape, outermost axis first."""
        raise NotImplementedError

    def part(self, name: str, index: tuple[int, ...], first: int, last: int) -> bytes:
        """Return the bytes of elements (of blocks, where the type has them) `first:last` of one row."""
        raise NotImplementedError


class Safetensors(File):
    """A file of safetensors, of which the library maps what it is asked for."""

    def __init__(self, path: str) -> None:
        import ml_dtypes
        import numpy
        import safetensors

        for kind in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):  # the library looks for them among numpy's own
            setattr(numpy, kind, getattr(ml_dtypes, kind))
        self.library = f"safetensors {safetensors.__version__}"
        self.file: Any = safetensors.safe_open(path, framework="numpy")

    def names(self) -> list[str]:
        return list(self.file.keys())

    def facts(self, name: str) -> tuple[str, list[int]]:
        found = self.file.get_slice(name)
        return found.get_dtype(), found.get_shape()

    def values(self, name: str, *places: slice) -> Array:
        """Return a part of a tensor as an array of its own type."""
        return self.file.get_slice(name)[places] if places else self.file.get_tensor(name)

    def part(self, name: str, index: tuple[int, ...], first: int, last: int) -> bytes:
        places = (*(slice(i, i + 1) for i in index), slice(first, last))
        whole = not self.file.get_slice(name).get_shape()
        found: bytes = self.values(name, *(() if whole else places)).tobytes()
        return found


class Torch(File):
    """What torch.save wrote, as torch loads it where it may run nothing."""

    kinds: ClassVar[dict[str, str]] = {
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "float64": "F64",
        "int8": "I8",
        "uint8": "U8",
        "int16": "I16",
        "int32": "I32",
        "int64": "I64",
        "bool": "BOOL",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e8m0fnu": "F8_E8M0",
    }

    def __init__(self, path: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.library = f"torch {torch.__version__.partition('+')[0]}"
        self.tensors: dict[str, Any] = {}
        self._collect(torch.load(path, map_location="cpu", mmap=True, weights_only=True), "", torch.Tensor)
        # hqq keeps a dictionary for each module, of 2023 with another one in it ('meta')
        levels = [name.split("\0") for name in self.tensors]
        self.modules = any(len(keys) > 1 and "." in keys[0] and "." not in keys[-1] for keys in levels)

    def _collect(self, value: Any, name: str, kind: type) -> None:
        if isinstance(value, kind):
            self.tensors[name] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                self._collect(inner, f"{name}\0{key}" if name else str(key), kind)
        elif isinstance(value, list | tuple):
            for number, inner in enumerate(value):
                self._collect(inner, f"{name}\0{number}" if name else str(number), kind)

    def names(self) -> list[str]:
        """Return the last parts of the names: a state dict may lie in a dictionary with other things."""
        return [self._name(key) for key in self.tensors]

    def _name(self, key: str) -> str:
        if self.modules:
            return ".".join(part for part in key.split("\0") if part != "meta")
        return key.rpartition("\0")[2]

    def _find(self, name: str) -> Any:
        found = [value for key, value in self.tensors.items() if self._name(key) == name]
        found = found or [value for key, value in self.tensors.items() if key.replace("\0", ".") == name]
        if len(found) != 1:
            raise KeyError(name)
        return found[0].detach()

    def facts(self, name: str) -> tuple[str, list[int]]:
        found = self._find(name)
        return self.kinds.get(str(found.dtype).removeprefix("torch."), str(found.dtype)), list(found.shape)

    def values(self, name: str, *places: slice) -> Array:
        import torch

        found = self._find(name)[places] if places else self._find(name)
        kind = str(found.dtype).removeprefix("torch.")
        if kind in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
            import ml_dtypes

            whole = found.contiguous().reshape(-1).view(torch.uint8).numpy()
            return whole.view(getattr(ml_dtypes, kind)).reshape(tuple(found.shape))
        return found.contiguous().numpy()

    def part(self, name: str, index: tuple[int, ...], first: int, last: int) -> bytes:
        places = (*(slice(i, i + 1) for i in index), slice(first, last))
        whole = not self._find(name).dim()
        found: bytes = self.values(name, *(() if whole else places)).tobytes()
        return found


class Gguf(File):
    """A GGUF file, as the package gguf reads it; the texts of its vocabulary are stepped over."""

    def __init__(self, path: str) -> None:
        gguf, version = package_gguf()

        class Reader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
            """The package's reader, which would make an array of numpy of every token: seconds for a large one."""

            def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
                kind = gguf.GGUFValueType(raw_type)
                if kind is not gguf.GGUFValueType.ARRAY:
                    return super()._get_field_parts(orig_offs, raw_type)
                order = ">" if self.endianess is gguf.GGUFEndian.BIG else "<"
                inner, count = struct.unpack_from(f"{order}IQ", self.data, orig_offs)
                read, at = struct.Struct(f"{order}Q").unpack_from, orig_offs + 12
                scalar = self.gguf_scalar_to_np.get(gguf.GGUFValueType(inner))
                if scalar is not None:
                    at += count * scalar().itemsize
                elif inner == gguf.GGUFValueType.STRING:
                    for _ in range(count):
                        at += 8 + read(self.data, at)[0]
                else:
                    return super()._get_field_parts(orig_offs, raw_type)
                return at - orig_offs, [], [], [kind]

        self.library = f"gguf {version}"
        self.reader = Reader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def names(self) -> list[str]:
        return list(self.tensors)

    def facts(self, name: str) -> tuple[str, list[int]]:
        found = self.tensors[name]
        return found.tensor_type.name, [int(size) for size in reversed(found.shape)]

    def part(self, name: str, index: tuple[int, ...], first: int, last: int) -> bytes:
        import numpy

        gguf, _ = package_gguf()
        found = self.tensors[name]
        nbytes = gguf.GGML_QUANT_SIZES[found.tensor_type][1]
        rows = found.data.view(numpy.uint8).reshape(*found.data.shape[:-1], -1)
        kept: bytes = rows[index][first * nbytes : last * nbytes].tobytes()
        return kept


def package_gguf() -> tuple[Any, str]:
    """Return the package gguf and its version, without what it imports for tokenizers, which takes a second."""
    from importlib.metadata import version

    sys.modules.setdefault("mistral_common", None)  # type: ignore[arg-type]
    import gguf

    return gguf, version("gguf")


def renamed(request: dict[str, Any]) -> dict[str, Any]:
    """Return what the package gguf calls tensors that we call otherwise, and how many it calls as we do."""
    gguf, version = package_gguf()
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    if request["architecture"] not in kinds:
        return {"library": f"gguf {version}", "alike": 0, "otherwise": []}
    names = gguf.get_tensor_name_map(kinds[request["architecture"]], request["blocks"])
    alike, otherwise = 0, []
    for theirs, ours in request["names"]:
        plain = EXPERT.sub(".experts.", theirs)
        found = None
        text = plain.partition("language_model.")[2]
        for short in (plain, f"model.{text}", text):  # a text model in a model that also sees
            found = found or names.get_name(short, try_suffixes=(".weight", ".bias"))
        alike += found == ours
        if found is not None and found != ours:
            otherwise.append([theirs, ours, found])
    return {"library": f"gguf {version}", "alike": alike, "otherwise": otherwise[:64]}


def opened(path: str) -> File:
    """Return the file as the library reads it that its first bytes name. Raises ValueError for another kind."""
    with open(path, "rb") as file:
        head = file.read(16)
    if head.startswith(b"PK\3\4"):
        return Torch(path)
    if head.startswith(b"GGUF"):
        return Gguf(path)
    if head[8:].lstrip(b" \t\r\n").startswith(b"{"):
        return Safetensors(path)
    raise ValueError("no library for such a file")


def sampled(file: File, pieces: list[list[Any]]) -> Iterator[list[Any]]:
    """Yield type, shape and digest of each tensor: the bytes of its samples, one after another.

    `pieces`: name, and the samples, each the index of a row and the range of its elements.
    """
    for name, samples in pieces:
        file.mapped.forget()
        try:
            kind, shape = file.facts(name)
            digest = hashlib.blake2b(digest_size=16)
            for index, first, last in samples:
                digest.update(file.part(name, tuple(index), first, last))
            yield [kind, list(shape), digest.hexdigest()]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            yield [f"{type(error).__name__}: {error}"[:200]]
        except Exception as error:  # the library's own class, which needs no import
            yield [f"{type(error).__name__}: {error}"[:200]]


class Named:
    """The tensors of several files by name, for the formulas of `dequantize`."""

    def __init__(self, files: list[File]) -> None:
        self.files = {name: file for file in files if not isinstance(file, Gguf) for name in file.names()}

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.files[name].facts(name)[1])

    def kind(self, name: str) -> str:
        return self.files[name].facts(name)[0]

    def __call__(self, name: str, *places: slice) -> Array:
        return self.files[name].values(name, *places)  # type: ignore[attr-defined]


def dequantized(files: list[File], request: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the values of parts of matrices, as lists of numbers, or what was wrong."""
    from dequantize import rows  # type: ignore[import-not-found]

    named = Named(files)
    for name, first, last, left, right in request["matrices"]:
        for file in files:
            file.mapped.forget()
        try:
            found = rows(named, request["scheme"], request["settings"], name, first, last, left, right)
            flat = found.astype("<f4").reshape(-1)
            yield [array.array("f", flat.tobytes()).tolist() if math.prod(found.shape) else []]
        except Exception as error:
            yield [f"{type(error).__name__}: {error}"[:200]]


def identity(place: str) -> list[int]:
    """Return what tells a file from others, and from what it was before."""
    with open(place, "rb") as file:
        found = os.fstat(file.fileno())
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def answered(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Return the answer to one question."""
    answer: dict[str, Any] = {"files": []}
    files: list[File] = []
    places = [f"/dev/fd/{fd}" for fd in fds] or request["places"]
    for place, fd, pieces in zip(places, fds or [-1] * len(places), request["files"], strict=True):
        try:
            file = opened(place)
        except Exception as error:
            answer["files"].append({"error": f"{type(error).__name__}: {error}"[:200]})
            continue
        files.append(file)
        file.mapped = Mapped(fd)
        own = {name for name, _ in pieces}
        more = [name for name in file.names() if name not in own]
        answer["files"].append(
            {
                "library": file.library,
                "tensors": list(sampled(file, pieces)),
                "more": more[:8],
                "others": len(more),
                "identity": identity(place),
            }
        )
    if request["names"]:
        answer["names"] = renamed(request)
    if request["matrices"]:
        answer["matrices"] = list(dequantized(files, request))
    return answer


def limit(sizes: int) -> None:
    """Cap memory and time for one question, where the system has such limits."""
    if resource is None:
        return
    for what, most in ((resource.RLIMIT_DATA, ROOM + sizes), (resource.RLIMIT_CPU, int(os.times()[0]) + SECONDS)):
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, hard))


class Passed:
    """Questions and files over a socket."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=0)
        self.answers = self.socket.makefile("wb")
        self.questions = self.socket.makefile("rb", buffering=0)

    def head(self) -> tuple[bytes, list[int]]:
        """Return the first bytes of a question, and the files that came with them."""
        head, fds, _, _ = socket.recv_fds(self.socket, 8, MAX_FILES)
        while head and len(head) < 8 and (more := self.socket.recv(8 - len(head))):
            head += more
        return head, fds


class Piped:
    """Questions over standard input, answers over standard output, which nothing else may write to."""

    def __init__(self) -> None:
        self.questions = sys.stdin.buffer
        self.answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def head(self) -> tuple[bytes, list[int]]:
        return self.questions.read(8), []


def received(connection: Any) -> tuple[bytes, list[int]]:
    """Return the next question and its files; nothing once the other side has gone."""
    head, fds = connection.head()
    if len(head) < 8:
        return b"", fds
    (size,) = struct.unpack("<Q", head)
    data = bytearray()
    while len(data) < size:
        more = connection.questions.read(min(size - len(data), 1 << 20))
        if not more:
            return b"", fds
        data += more
    return bytes(data), fds


def main() -> None:
    """Answer questions until nobody asks."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, AttributeError):  # Windows has no such call
        os.nice(NICE)
    connection = Piped() if "--places" in sys.argv else Passed()
    while True:
        data, fds = received(connection)
        if not data:
            return
        request = json.loads(data)
        sys.path[:] = [os.path.dirname(os.path.abspath(__file__)), *request["path"]]
        limit(request["bytes"])
        answer = json.dumps(answered(request, fds)).encode()
        for fd in fds:
            os.close(fd)
        gc.collect()  # files that a library has mapped cannot be deleted on Windows
        connection.answers.write(struct.pack("<Q", len(answer)) + answer)
        connection.answers.flush()


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:  # a Rust panic is no Exception
        os.write(2, f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        os._exit(1)
