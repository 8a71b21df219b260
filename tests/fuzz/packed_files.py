"""Cases of what lies in several files or in others: training checkpoints, archives with a GGUF file, flat files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from fuzz import files

TRAINING = files.FIXTURES / "training"
DCP = TRAINING / "dcp"
STEPS = tuple(TRAINING / name / "global_step3" for name in ("zero2", "zero3"))


@cache
def partitions() -> tuple[tuple[Path, str], ...]:
    """Return the files of DeepSpeed's checkpoints in `fixtures/`, with their folders."""
    return tuple((folder, path.name) for folder in STEPS for path in sorted(folder.iterdir()))


def pickle_of(path: Path) -> bytes:
    """Return the pickle of a torch file."""
    with zipfile.ZipFile(path) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


def with_pickle(path: Path, data: bytes) -> bytes:
    """Return a torch file with another pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            target.writestr(name, data if name.endswith("data.pkl") else source.read(name))
    return file.getvalue()


def dcp(data: bytes, folder: Path) -> str:
    """Put a `.metadata` beside pieces that are sound; return what is opened."""
    for path in DCP.glob("*.distcp"):
        shutil.copy(path, folder)
    (folder / ".metadata").write_bytes(data)
    return str(folder)


def deepspeed(number: int, data: bytes, folder: Path) -> str:
    """Give one file of a checkpoint another pickle; return what is opened."""
    source, changed = partitions()[number]
    for path in source.iterdir():
        (folder / path.name).write_bytes(with_pickle(path, data) if path.name == changed else path.read_bytes())
    return str(folder)


def seeds_of_partitions() -> Iterator[tuple[int, bytes]]:
    """Yield the number of each file, and its pickle."""
    for number, (folder, name) in enumerate(partitions()):
        yield number, pickle_of(folder / name)


def archives() -> Iterator[bytes]:
    """Yield zip and tar archives, compressed files and a llamafile, each with a small GGUF file."""
    model = files.gguf(3)
    yield from (pack(model) for pack in (gzip.compress, bz2.compress, lzma.compress))
    yield gzip.compress(_tar(tarfile.GNU_FORMAT)(model))
    yield _zip(b"", zipfile.ZIP_DEFLATED)(model)
    for write in (_zip(b""), _zip(b"MZqFpD='\n"), _tar(tarfile.GNU_FORMAT), _tar(tarfile.PAX_FORMAT)):
        yield write(model)


def _zip(before: bytes, how: int = zipfile.ZIP_STORED) -> Callable[[bytes], bytes]:
    def write(model: bytes) -> bytes:
        file = io.BytesIO(before)
        with zipfile.ZipFile(file, "a", how) as archive:
            archive.writestr("m.gguf", model)
            archive.writestr(".args", "-m\nm.gguf\n")
        return file.getvalue()

    return write


def _tar(form: int) -> Callable[[bytes], bytes]:
    def write(model: bytes) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            entry = tarfile.TarInfo("m.gguf")
            entry.size, entry.mtime = len(model), 1.5
            archive.addfile(entry, io.BytesIO(model))
        return file.getvalue()

    return write


def flax() -> Iterator[bytes]:
    """Yield models of Flax: whole arrays, arrays in pieces, and the first bytes of a training's state."""
    for name in ("bert/flax_model.msgpack", "gptneo/flax_model.msgpack", "train-state/checkpoint_0"):
        yield (files.FIXTURES / "flax" / name).read_bytes()[: files.LARGEST]


def hdf5() -> Iterator[bytes]:
    """Yield shards of TensorFlow's, the smallest first."""
    yield from sorted((path.read_bytes() for path in (files.FIXTURES / "tensorflow").glob("mistral/*.h5")), key=len)[:3]


def keras() -> Iterator[bytes]:
    """Yield a model of KerasHub in float32 and one in bfloat16."""
    for name in ("llama-tied", "mistral"):
        yield (files.FIXTURES / "keras" / name / "model.weights.h5").read_bytes()[: files.LARGEST]


def orbax() -> Iterator[bytes]:
    """Yield manifests of orbax's store."""
    for name in ("gemma", "gemma2", "gemma3"):
        yield (files.FIXTURES / "orbax" / name / "manifest.ocdbt").read_bytes()


def flat_files() -> Iterator[bytes]:
    """Yield models of llama2.c and llm.c, those of the latter cut to what is mutated."""
    yield from files.small("llama2c/v2.bin")
    for path in sorted((files.FIXTURES / "llmc").glob("*float*.bin")):
        yield path.read_bytes()[: files.LARGEST]
