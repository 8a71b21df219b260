"""PyTorch archives and pickles that are broken or mean harm (facts P01–P23): our errors only, and nothing is run."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggferry.formats import errors
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.limits import MAX_PICKLE_OPS
from ggferry.formats.pytorch import pickle_machine as pickle_spans
from ggferry.formats.pytorch import pickle_names as torch_values
from ggferry.formats.pytorch import state_dict
from ggferry.formats.pytorch.pickle_machine import read_pickle
from ggferry.formats.pytorch.zip_archive import read_archive
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.pytorch import open_checkpoint

GOOD = {"a": torch.arange(3.0), "b": torch.ones(2, 2).half().t()}


def saved(value: Any = GOOD) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def write(folder: Path, data: bytes, name: str = "model.pth") -> str:
    (folder / name).write_bytes(data)
    return os.fspath(folder / name)


def stored(records: dict[str, bytes] | list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive as Python writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in records.items() if isinstance(records, dict) else records:
            archive.writestr(name, data)
    return buffer.getvalue()


def records(value: Any = GOOD) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(saved(value))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def edited(**changes: bytes | None) -> bytes:
    """GOOD's archive with records replaced, added or (None) left out; `_` in a keyword stands for `/`."""
    held = records() | {f"archive/{name.replace('_', '/')}": data for name, data in changes.items()}
    return stored({name: data for name, data in held.items() if data is not None})


def patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def directory_of(data: bytes) -> int:
    """Offset of the first entry of the central directory."""
    return data.index(b"PK\1\2")


# --- archives ----------------------------------------------------------------------------------


def linked() -> bytes:
    info = zipfile.ZipInfo("archive/link")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


def twice() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate"):
        return stored([*records().items(), ("archive/data.pkl", b"\x80\x02}.")])


def early_end() -> bytes:
    """An end record whose comment is another one: readers differ in which of them they take."""
    data = stored(records())
    end = data.rindex(b"PK\5\6")
    return data[: end + 20] + struct.pack("<H", 24) + data[end:-2] + b"\2\0xx"


def local(data: bytes, place: int, new: bytes) -> bytes:
    """Patch the first local header only."""
    return patched(data, place, new)


PYTHON = stored(records())
TORCH = saved()
FIRST = directory_of(PYTHON)
END = PYTHON.rindex(b"PK\5\6")
ARCHIVES: dict[str, tuple[Callable[[], bytes], type[errors.GgferryError], str]] = {
    "P02 half": (lambda: TORCH[: len(TORCH) // 2], errors.TruncatedError, "cut"),
    "P02 last byte": (lambda: TORCH[:-1], errors.TruncatedError, "cut"),
    "P03 prefix": (lambda: b"PK\3\4junk" + TORCH, errors.GgferryError, ""),
    "P03 prefix with offsets put right": (lambda: prefixed(PYTHON), errors.OverlapError, "unclaimed"),
    "P04 suffix": (lambda: TORCH + bytes(128), errors.TrailingBytesError, "follow the archive"),
    "P04 comment too long": (lambda: patched(PYTHON, END + 20, b"\xff\0"), errors.TruncatedError, "comment"),
    "P04 hidden end": (early_end, errors.CorruptError, "two records"),
    "P05 deflated": (lambda: stored(records(), zipfile.ZIP_DEFLATED), errors.UnsupportedError, "deflate.*torch.save"),
    "P05 bzip2": (lambda: stored(records(), zipfile.ZIP_BZIP2), errors.UnsupportedError, "bzip2"),
    "P06 CRC of data.pkl": (lambda: edited_pickle(), errors.ChecksumError, r"data\.pkl"),
    "P07 twice": (twice, errors.DuplicateError, "duplicate"),
    "P08 dots": (lambda: edited(**{".._x": b""}), errors.OutOfRangeError, "leads out"),
    "P08 absolute": (lambda: stored({**records(), "/etc/x": b""}), errors.OutOfRangeError, "leads out"),
    "P08 drive": (lambda: stored({**records(), "C:/x": b""}), errors.OutOfRangeError, "leads out"),
    "P08 backslash": (lambda: stored({**records(), "archive\\..\\x": b""}), errors.OutOfRangeError, "leads out"),
    "P08 outside the folder": (lambda: stored({**records(), "other/x": b""}), errors.OutOfRangeError, "one folder"),
    "P08 without folder": (lambda: stored({**records(), "x": b""}), errors.OutOfRangeError, "one folder"),
    "P08 link": (linked, errors.OutOfRangeError, "link"),
    "P09 no data.pkl": (lambda: edited(**{"data.pkl": None}), errors.MissingError, r"data\.pkl"),
    "P09 no version": (lambda: edited(version=None), errors.MissingError, "version"),
    "P09 empty archive": (lambda: stored({}), errors.UnknownFormatError, "50 4b 05 06"),
    "P10 storage missing": (lambda: edited(data_1=None), errors.MissingError, "data/1"),
    "P11 storage short": (lambda: edited(data_0=bytes(11)), errors.InconsistentError, "data/0.*11"),
    "P11 storage long": (lambda: edited(data_0=bytes(13)), errors.InconsistentError, "data/0.*13"),
    "P12 byte order": (lambda: edited(byteorder=b"middle"), errors.OutOfRangeError, "middle"),
    "P12 byte order not text": (lambda: edited(byteorder=b"\xff"), errors.EncodingError, "byteorder"),
    "P12 byte order endless": (lambda: edited(byteorder=b"little" * 99), errors.OutOfRangeError, "byteorder"),
    "version 0": (lambda: edited(version=b"0\n"), errors.UnsupportedVersionError, "version"),
    "version 11": (lambda: edited(version=b"11\n"), errors.UnsupportedVersionError, "version"),
    "version none": (lambda: edited(version=b""), errors.UnsupportedVersionError, "version"),
    "P13 sizes differ": (lambda: local(PYTHON, 22, struct.pack("<I", 9)), errors.InconsistentError, "sizes"),
    "P13 stored, two sizes": (
        lambda: patched(PYTHON, FIRST + 24, struct.pack("<I", 1 << 30)),
        errors.InconsistentError,
        "two sizes",
    ),
    "P13 a record of 1 GiB": (
        lambda: patched(patched(PYTHON, FIRST + 20, struct.pack("<2I", 1 << 30, 1 << 30)), 0, PYTHON[:4]),
        errors.TruncatedError,
        "does not fit",
    ),
    "P14 65534 entries": (lambda: patched(PYTHON, END + 8, b"\xfe\xff\xfe\xff"), errors.TruncatedError, "65534"),
    "local name differs": (lambda: local(PYTHON, 30, b"A"), errors.InconsistentError, "names"),
    "local CRC differs": (lambda: local(PYTHON, 14, b"\0\0\0\0"), errors.InconsistentError, "CRC"),
    "local method differs": (lambda: local(PYTHON, 8, b"\x08\0"), errors.InconsistentError, "headers"),
    "local header gone": (lambda: local(PYTHON, 2, b"\7\7"), errors.GgferryError, ""),
    "encrypted": (lambda: local(PYTHON, 6, b"\1\0"), errors.UnsupportedError, "encrypted"),
    "several disks": (lambda: patched(PYTHON, END + 4, b"\1\0"), errors.UnsupportedError, "disks"),
    "directory elsewhere": (lambda: patched(PYTHON, END + 16, b"\1\0\0\0"), errors.InconsistentError, "directory"),
    "one entry less": (
        lambda: patched(PYTHON, END + 8, struct.pack("<2H", len(records()) - 1, len(records()) - 1)),
        errors.TrailingBytesError,
        "last entry",
    ),
    "descriptor differs": (
        lambda: patched(TORCH, TORCH.index(b"PK\7\x08") + 8, b"\x01"),
        errors.InconsistentError,
        "behind",
    ),
    "zip64 record differs": (
        lambda: patched(TORCH, TORCH.rindex(b"PK\6\6") + 24, b"\1"),
        errors.GgferryError,
        "",
    ),
    "TorchScript": (lambda: edited(**{"constants.pkl": b""}), errors.UnsupportedError, "TorchScript"),
}


def prefixed(data: bytes) -> bytes:
    """Junk before an archive all of whose offsets were corrected: valid to every zip reader."""
    out = io.BytesIO(b"PK\3\4 #!/bin/sh\n")
    out.seek(0, io.SEEK_END)
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "a") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def edited_pickle() -> bytes:
    """A byte of data.pkl changed behind the archive's back."""
    return patched(PYTHON, PYTHON.index(b"storage"), b"stORage")


@pytest.mark.parametrize("case", ARCHIVES)
def test_broken_archives_are_refused(case: str, tmp_path: Path) -> None:
    make, kind, words = ARCHIVES[case]
    path = write(tmp_path, make())
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        open_checkpoint(path)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [PYTHON, TORCH], ids=["by Python", "by torch"])
def test_every_prefix_is_refused(data: bytes, tmp_path: Path) -> None:
    for size in range(len(data)):
        path = write(tmp_path, data[:size])
        with pytest.raises(errors.GgferryError):
            open_checkpoint(path)
    open_checkpoint(write(tmp_path, data))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=250)
@given(st.data())
def test_flipped_bytes_give_the_same_or_our_error(tmp_path: Path, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([PYTHON, TORCH]))
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    path = write(tmp_path, bytes(bad))
    try:
        held = open_checkpoint(path)
    except errors.GgferryError as error:
        assert error.path == path
        return
    assert [(ref.name, ref.shape) for ref in held.tensors.values()] == [("a", (3,)), ("b", (2, 2))]


def test_zip64_sizes_are_read(tmp_path: Path) -> None:
    """Entries whose sizes stand only in zip64 fields, as archives beyond 4 GiB have them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in records().items():
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(data)
    entries = read_archive(LocalFile(write(tmp_path, buffer.getvalue()))).entries
    assert {name: entry.nbytes for name, entry in entries.items()} == {n: len(d) for n, d in records().items()}
    assert list(open_checkpoint(write(tmp_path, wide_directory(buffer.getvalue()))).tensors) == ["a", "b"]


def wide_directory(data: bytes) -> bytes:
    """The first directory entry with all three numbers moved into a zip64 field, and a zip64 end record."""
    at, end = directory_of(data), data.rindex(b"PK\5\6")
    head = bytearray(data[at:end])
    packed, nbytes = struct.unpack_from("<2I", head, 20)
    name_size, extra_size = struct.unpack_from("<2H", head, 28)
    (header,) = struct.unpack_from("<I", head, 42)
    struct.pack_into("<2I", head, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<I", head, 42, 0xFFFFFFFF)
    extra = struct.pack("<2H3Q", 1, 24, nbytes, packed, header)
    struct.pack_into("<H", head, 30, len(extra))
    head[46 + name_size : 46 + name_size + extra_size] = extra
    (count,) = struct.unpack_from("<H", data, end + 10)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(head), at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at + len(head), 1)
    short = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:at] + bytes(head) + end64 + locator + short


def test_a_directory_that_needs_zip64_and_has_none(tmp_path: Path) -> None:
    data = patched(PYTHON, FIRST + 42, b"\xff\xff\xff\xff")
    with pytest.raises(errors.InconsistentError, match="zip64"):
        open_checkpoint(write(tmp_path, data))


def test_a_million_entries_are_refused_unread(tmp_path: Path) -> None:
    """P14: the file is a hole of the right size with consistent end records behind it."""
    count, size = 1_000_000, 46_000_000
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 64)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 64 + size, 1)
    short = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path = write(tmp_path, PYTHON[:64])
    with open(path, "r+b") as file:
        file.seek(64 + size)
        file.write(end64 + locator + short)
    with pytest.raises(errors.OutOfRangeError, match="1000000"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("data", "name", "kind", "words"),
    [
        (b"", "model.pth", errors.UnknownFormatError, "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "model.bin", errors.UnknownFormatError, "git-LFS"),
        (b"<!DOCTYPE html>", "model.pth", errors.UnknownFormatError, "HTML"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(99), "model.bin", errors.UnknownFormatError, "7-Zip"),
        (b"\x1f\x8b" + bytes(99), "model.pt", errors.UnknownFormatError, "gzip"),
        (b"junk" * 99, "model.pth", errors.UnknownFormatError, "6a 75 6e 6b"),
        (pickle.dumps({"a": 1}, 2), "model.pth", errors.UnsafePickleError, "bare pickle"),
    ],
)
def test_other_things_are_named(
    data: bytes, name: str, kind: type[errors.GgferryError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        open_checkpoint(write(tmp_path, data, name))


def test_the_older_forms_are_named(tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "old.pth")
    torch.save(GOOD, path, _use_new_zipfile_serialization=False)
    reader, _ = find_reader(path)
    assert reader.name == "pytorch"
    with pytest.raises(errors.UnsupportedError, match=r"before 1\.6.*torch\.save\(torch\.load"):
        reader.open(path, ())
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    reader, _ = find_reader(path)
    with pytest.raises(errors.UnsupportedError, match="tar format"):
        reader.open(path, ())


# --- pickles -----------------------------------------------------------------------------------


def harmful(path: Path) -> dict[str, bytes]:
    """Pickles each of which makes `path` when a real unpickler loads it."""

    class Reduce:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {path}",)

    class Evaluate:
        def __reduce__(self) -> Any:
            return eval, (f"open({os.fspath(path)!r}, 'w')",)

    command = f"touch {path}".encode()
    hidden = {"w": torch.ones(1), "x": Reduce()}
    return {
        "REDUCE": pickle.dumps(Reduce(), 2),
        "REDUCE protocol 0": pickle.dumps(Reduce(), 0),
        "REDUCE protocol 4": pickle.dumps(Reduce(), 4),
        "REDUCE by eval": pickle.dumps(Evaluate(), 2),
        "REDUCE by import": b"\x80\x02c__builtin__\n__import__\nX\x04\x00\x00\x00this\x85R.",
        "hidden in a list": pickle.dumps([1, 2, {"a": Reduce()}], 2),
        "after a good beginning": pickle.dumps(OrderedDict(a=1, b=Reduce()), 2),
        "inside a state dict": records(hidden)["archive/data.pkl"],
        "INST": b"(X" + struct.pack("<I", len(command)) + command + b"ios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nX" + struct.pack("<I", len(command)) + command + b"o.",
        "NEWOBJ": b"\x80\x02cos\nsystem\nX" + struct.pack("<I", len(command)) + command + b"\x85\x81.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncos\nsystem\n.",
        "Python 2 builtins": b"\x80\x02c__builtin__\neval\nX\1\0\0\0" + b"1\x85R.",
        "dotted name": b"\x80\x04\x8c\x05torch\x8c\x0cstorage.open\x93.",
        "torch.load itself": b"\x80\x02ctorch\nload\nX\1\0\0\0x\x85R.",
        "torch.hub": b"\x80\x02ctorch.hub\nload\n.",
        "copyreg": b"\x80\x02ccopyreg\n_reconstructor\n.",
        "EXT1": b"\x80\x02\x82\x01.",
        "PERSID": b"Pid\n.",
        "NEWOBJ_EX": b"\x80\x04ccollections\nOrderedDict\n)}\x92.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "BUILD on a name": b"\x80\x02ccollections\nOrderedDict\n}b.",
        "REDUCE of a value": b"\x80\x02K\1)R.",
        "REDUCE of a storage": b"\x80\x02ctorch\nFloatStorage\nK\1\x85R.",
        "REDUCE of a dtype": b"\x80\x02ctorch\nfloat32\n)R.",
        "NEWOBJ of a function": b"\x80\x02c_codecs\nencode\nX\1\0\0\0x\x85\x81.",
    }


@pytest.mark.parametrize("case", harmful(Path("x")))
def test_nothing_in_a_pickle_is_run(case: str, tmp_path: Path) -> None:
    trap = tmp_path / "harm"
    data = harmful(trap)[case]
    with pytest.raises(errors.UnsafePickleError) as caught:
        read_pickle(data, "p", 1000)
    assert 1000 <= (caught.value.offset or 0) < 1000 + len(data)
    assert "nothing was run" in str(caught.value)
    with pytest.raises(errors.UnsafePickleError):
        open_checkpoint(write(tmp_path, edited(**{"data.pkl": data})))
    assert not trap.exists()


def test_the_traps_are_real(tmp_path: Path) -> None:
    trap = tmp_path / "harm"
    pickle.loads(harmful(trap)["REDUCE"])
    assert trap.exists()


def test_the_name_and_its_place_are_told(tmp_path: Path) -> None:
    data = edited(**{"data.pkl": pickle.dumps({"a": print}, 2)})
    with pytest.raises(errors.UnsafePickleError, match=r"builtins\.print|__builtin__\.print") as caught:
        open_checkpoint(write(tmp_path, data))
    assert caught.value.offset == data.index(b"c__builtin__\nprint")


def test_the_interpreter_imports_and_calls_nothing() -> None:
    """Said of the source: no import of a module by a name from the file, no eval, exec, getattr, pickle or torch."""
    for module in (pickle_spans, torch_values):
        text = Path(module.__file__ or "").read_text()
        for word in ("import_module", "__import__", "eval(", "exec(", "import pickle\n", "import torch", "find_class"):
            assert word not in text, word


def view(offset: int = 0, size: Any = (3,), stride: Any = (1,), numel: int = 3, storage: str = "FloatStorage") -> bytes:
    """The pickle of {'a': a tensor} with numbers of our choice."""
    return b"".join(
        (
            b"\x80\x02}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n((",
            pickle.dumps("storage", 2)[2:-3],
            b"ctorch\n" + storage.encode() + b"\n",
            pickle.dumps("0", 2)[2:-3],
            pickle.dumps("cpu", 2)[2:-3],
            integer(numel) + b"tQ" + integer(offset),
            tuple_of(size) + tuple_of(stride),
            b"\x89ccollections\nOrderedDict\n)RtRs.",
        )
    )


def integer(value: int) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def tuple_of(values: Any) -> bytes:
    return b"(" + b"".join(map(integer, values)) + b"t"


PICKLES: dict[str, tuple[bytes, type[errors.GgferryError], str]] = {
    "P17 nothing": (b"", errors.TruncatedError, "no end"),
    "P17 no STOP": (b"\x80\x02}", errors.TruncatedError, "no end"),
    "P17 past STOP": (b"\x80\x02}.}", errors.TrailingBytesError, "follow"),
    "P17 empty at STOP": (b"\x80\x02.", errors.CorruptError, "left over"),
    "P17 two at STOP": (b"\x80\x02}}.", errors.CorruptError, "left over"),
    "P17 mark open at STOP": (b"\x80\x02(}.", errors.CorruptError, "left over"),
    "P17 protocol 6": (b"\x80\x06}.", errors.UnsupportedVersionError, "protocol"),
    "P17 unknown instruction": (b"\x80\x02\xff.", errors.CorruptError, "0xff"),
    "P17 string of 4 GiB": (b"\x80\x02X\xff\xff\xff\xff.", errors.TruncatedError, "inside"),
    "P17 string of 2^63": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", errors.TruncatedError, "inside"),
    "P17 string not UTF-8": (b"\x80\x02X\1\0\0\0\xff.", errors.EncodingError, "UTF-8"),
    "P17 integer of 2 GiB": (b"\x80\x02\x8b\xff\xff\xff\x7f.", errors.OutOfRangeError, "integer"),
    "P17 frame beyond the end": (b"\x80\x04\x95\xff\0\0\0\0\0\0\0}.", errors.TruncatedError, "frame"),
    "P17 memo never stored": (b"\x80\x02h\7.", errors.CorruptError, "recalls"),
    "P17 memo of nothing": (b"\x80\x02q\0.", errors.CorruptError, "uses a value"),
    "P17 pop of nothing": (b"\x80\x020.", errors.CorruptError, "takes a value"),
    "P17 mark never set": (b"\x80\x02}u.", errors.CorruptError, "mark"),
    "P17 tuple of nothing": (b"\x80\x02\x87.", errors.CorruptError, "takes a value"),
    "P17 name without end": (b"\x80\x02ctorch", errors.TruncatedError, "no end"),
    "P17 name is a number": (b"\x80\x04K\1K\2\x93.", errors.CorruptError, "not text"),
    "P17 append to a dict": (b"\x80\x02}K\1a.", errors.CorruptError, "not a list"),
    "P17 items for a list": (b"\x80\x02]K\1K\1s.", errors.CorruptError, "not a dictionary"),
    "P17 odd items": (b"\x80\x02}(K\1u.", errors.CorruptError, "dictionary"),
    "P17 key twice": (b"\x80\x02}(K\1NK\1Nu.", errors.DuplicateError, "twice"),
    "P17 key is a list": (b"\x80\x02}]Ns.", errors.UnsupportedTypeError, "key"),
    "P17 key is a tuple": (b"\x80\x02})Ns.", errors.UnsupportedTypeError, "key"),
    "P17 huge key": (b"\x80\x02}" + integer(1 << 61) + b"Ns.", errors.UnsupportedTypeError, "key"),
    "P17 set of lists": (b"\x80\x04\x8f(]\x90.", errors.UnsupportedTypeError, "key"),
    "P17 arguments not a tuple": (b"\x80\x02ccollections\nOrderedDict\n]R.", errors.CorruptError, "arguments"),
    "P16 persistent id is text": (b"\x80\x02X\1\0\0\0xQ.", errors.CorruptError, "persistent"),
    "P16 persistent id of another kind": (
        b"\x80\x02(X\6\0\0\0moduleK\1K\1K\1K\1tQ.",
        errors.CorruptError,
        "persistent",
    ),
    "P16 storage type is text": (b"\x80\x02(X\7\0\0\0storageK\1K\1K\1K\1tQ.", errors.CorruptError, "type of a storage"),
    "P20 view beyond its storage": (view(offset=1), errors.OutOfRangeError, "beyond"),
    "P20 stride beyond its storage": (view(size=(2,), stride=(3,)), errors.OutOfRangeError, "beyond"),
    "P20 size beyond its storage": (view(size=(1 << 39,), stride=(1,)), errors.OutOfRangeError, "beyond"),
    "P20 negative offset": (view(offset=-1), errors.CorruptError, "offset"),
    "P20 negative size": (view(size=(-3,)), errors.OutOfRangeError, "size"),
    "P20 negative stride": (view(stride=(-1,)), errors.OutOfRangeError, "stride"),
    "P20 sizes and strides differ": (view(size=(3, 1)), errors.CorruptError, "stride"),
    "P20 too many axes": (view(size=(1,) * 65, stride=(1,) * 65), errors.OutOfRangeError, "size"),
    "P20 endless size": (view(size=(1 << 2000,)), errors.OutOfRangeError, "size"),
    "P20 endless storage": (view(numel=1 << 62), errors.OutOfRangeError, "storage"),
    "P20 negative storage": (view(numel=-3), errors.OutOfRangeError, "storage"),
    "P20 expanded to 2^80": (view(size=(1 << 40, 1 << 40), stride=(0, 0)), errors.OutOfRangeError, "expanded"),
    "P22 complex": (view(storage="ComplexFloatStorage"), errors.UnsupportedTypeError, "Complex"),
    "P22 quantized": (view(storage="QInt8Storage"), errors.UnsupportedTypeError, "QInt8"),
    "untyped, typeless": (
        view().replace(b"ctorch\nFloat", b"ctorch.storage\nUntyped"),
        errors.CorruptError,
        "untyped",
    ),
}


@pytest.mark.parametrize("case", PICKLES)
def test_broken_pickles_are_refused(case: str) -> None:
    data, kind, words = PICKLES[case]
    with pytest.raises(kind, match=words) as caught:
        read_pickle(data, "file.pth", 500)
    assert caught.value.path == "file.pth"
    assert 500 <= (caught.value.offset or 0) <= 500 + len(data)


def test_the_hand_made_tensor_is_one() -> None:
    value, storages = read_pickle(view(offset=1, size=(2, 1), stride=(1, 9)), "f", 0)
    made = value["a"]
    assert (made.offset, made.shape, made.strides, made.type.name) == (1, (2, 1), (1, 9), "F32")
    assert storages["0"].nbytes == 12


def test_one_storage_of_two_sizes_is_refused() -> None:
    first, second = view()[2:-2], view(numel=4)[3:-2].replace(b"X\1\0\0\0a", b"X\1\0\0\0b", 1)
    with pytest.raises(errors.InconsistentError, match="twice"):
        read_pickle(b"\x80\x02" + first + b"s" + second + b"s.", "f", 0)


@settings(deadline=None, max_examples=250)
@given(st.data())
def test_damaged_pickles_give_a_value_or_our_error(data: st.DataObject) -> None:
    good = data.draw(
        st.sampled_from([view(), records()["archive/data.pkl"], pickle.dumps([{"a": {1, 2}}, (b"x", 1.5)], 4)])
    )
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_pickle(bytes(bad[: data.draw(st.integers(0, len(bad)))]), "f", 0)
    except errors.GgferryError as error:
        assert "\n" not in str(error)


BOMBS = {
    "lists of the same list": b"]q\0" + b"".join(b"](" + b"h\0" * 10 + b"eq\0" for _ in range(40)),
    "dictionaries of the same": b"}q\0" + b"".join(b"}(K\1h\0K\2h\0uq\0" for _ in range(60)),
    "a list that holds itself": b"}X\1\0\0\0m]q\0h\0as",
    "copies of a long list": b"](" + b"K\1" * 10_000 + b"eq\0ctorch\nSize\nq\1" + b"h\1h\0\x85R0" * 10_000 + b"N",
    "copies of a long string": b"X\0\0\1\0"
    + b"x" * 65536
    + b"q\0X\6\0\0\0latin1q\2c_codecs\nencode\nq\1("
    + b"h\1h\0h\2\x86R" * 10_000
    + b"t",
    "copies of a long tuple": b"(" + b"K\1" * 10_000 + b"tq\0c_codecs\nencode\nq\1" + b"h\1h\0R0" * 10_000 + b"N",
    "tuples within tuples": b"}K\1)" + b"\x85" * 99_000 + b"s",
    "many dictionaries": b"(" + b"}" * 99_000 + b"t",
    "many instructions": b"N0" * 300_000 + b"N",
}
"""Small pickles that a careless reader multiplies without end."""


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_are_bounded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory: some 100 bytes for each instruction that is allowed, whatever they say."""
    monkeypatch.setattr(pickle_spans, "MAX_PICKLE_OPS", 100_000)
    monkeypatch.setattr(state_dict, "MAX_PICKLE_OPS", 100_000)
    path = write(tmp_path, edited(**{"data.pkl": b"\x80\x02" + BOMBS[kind] + b"."}))
    tracemalloc.start()
    try:
        with pytest.raises(errors.GgferryError):
            open_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20


@pytest.mark.slow
def test_the_longest_pickle_ends_soon() -> None:
    begin = time.process_time()
    with pytest.raises(errors.OutOfRangeError, match="instructions"):
        read_pickle(b"\x80\x02" + b"N0" * MAX_PICKLE_OPS + b"N.", "f", 0)
    assert time.process_time() - begin < 30


def test_checksums_in_the_table_are_the_bytes(tmp_path: Path) -> None:
    held = open_checkpoint(write(tmp_path, TORCH))
    for each in held.checksums:
        assert zlib.crc32(TORCH[each.offset : each.offset + each.nbytes]) == each.crc32
    assert sum(each.nbytes for each in held.checksums) == sum(map(len, records().values()))
