"""Models inside compressed files and archives, packed by programs of others, and compared with the plain file."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from backports import zstd
from blake3 import blake3

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import (
    AmbiguousError,
    ChecksumError,
    CorruptError,
    GgferryError,
    RefusedError,
    TrailingBytesError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
    UsageError,
)
from ggferry.formats.packed import as_folder, streams, unpacking
from ggferry.formats.packed.holding import holding
from ggferry.formats.tensor_read import read_rows
from helpers.attack_tools import typed
from helpers.third_party_fixtures import FIXTURES

GGUF = FIXTURES / "hf/out/llama/llama.q8_0.gguf"
FOLDER = FIXTURES / "hf/ckpt/llama"
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
PROGRAMS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}


def rows(checkpoint: Checkpoint) -> dict[str, bytes]:
    try:
        return {name: read_rows(checkpoint, ref, 0, ref.rows).tobytes() for name, ref in checkpoint.tensors.items()} | {
            f"key {key}": str(value).encode() for key, value in checkpoint.metadata.items()
        }
    finally:
        checkpoint.close()


def packed(path: Path, data: bytes | None = None) -> Path:
    path.write_bytes(PACK[path.suffix](GGUF.read_bytes() if data is None else data))
    return path


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Every test has a folder for temporary files of its own, in which nothing is left."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield place
    assert [*place.iterdir()] == []
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.mark.parametrize("ending", PROGRAMS)
def test_what_the_program_itself_packed(ending: str, tmp_path: Path) -> None:
    shutil.copy(GGUF, tmp_path / "m.gguf")
    subprocess.run([PROGRAMS[ending], tmp_path / "m.gguf"], check=True)
    assert rows(open_checkpoint(str(tmp_path / f"m.gguf{ending}"))) == rows(open_checkpoint(str(GGUF)))


@pytest.mark.parametrize("ending", PACK)
def test_a_conversion_names_the_packed_file(ending: str, tmp_path: Path) -> None:
    path = packed(tmp_path / f"m.gguf{ending}")
    result = convert(Request(str(path), str(tmp_path / "o.gguf"), Options(outtype="copy"), level="fast"))[0]
    (record,) = result.receipt["source"]["files"]
    assert record == {
        "name": path.name,
        "bytes": path.stat().st_size,
        "blake3": blake3(path.read_bytes()).hexdigest(),
    }
    theirs = {key: value for key, value in rows(open_checkpoint(str(GGUF))).items() if not key.startswith("key")}
    assert theirs == {k: v for k, v in rows(open_checkpoint(result.path)).items() if not k.startswith("key")}
    assert typed("verify", path, result.path, "--level", "fast").code == 0
    packed(path, GGUF.read_bytes()[:-4] + b"\1\2\3\4")
    assert typed("verify", path, result.path, "--level", "fast").code != 0


@pytest.mark.parametrize("name", ["model.safetensors.gz", "hf.tar.xz", "hf.tar", "hf.zip", "stored.zip", "hf.tgz"])
def test_a_checkpoint_with_its_small_files(name: str, tmp_path: Path) -> None:
    if name.startswith("model"):
        for each in FOLDER.iterdir():
            if each.suffix == ".safetensors":
                packed(tmp_path / name, each.read_bytes())
            else:
                shutil.copy(each, tmp_path)
    elif name == "hf.zip":
        shutil.make_archive(str(tmp_path / "hf"), "zip", FOLDER.parent, FOLDER.name)
    elif name == "stored.zip":
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for each in FOLDER.iterdir():
                archive.write(each, each.name)
    else:
        with tarfile.open(tmp_path / name, {"xz": "w:xz", "gz": "w:gz", "ar": "w"}[name[-2:]]) as archive:
            archive.add(FOLDER, "llama")
    found, plain = open_checkpoint(str(tmp_path / name)), open_checkpoint(str(FOLDER))
    assert {role: Path(path).name for role, path in found.sidecars.items()} == {
        role: Path(path).name for role, path in plain.sidecars.items()
    }
    assert found.path == str(tmp_path / name) and not found.dropped
    assert rows(found) == rows(plain)
    result = convert(Request(str(tmp_path / name), str(tmp_path / "o.gguf"), level="fast"))[0]
    assert [file["name"] for file in result.receipt["source"]["files"]] == [name]
    assert "ggferry-tmp" not in Path(result.receipt_path).read_text()


def test_files_of_the_ggml_era_and_options_for_them(tmp_path: Path) -> None:
    plain = next(path for path in sorted(FIXTURES.rglob("*.bin")) if path.read_bytes()[:4] == b"tjgg")
    path = packed(tmp_path / f"{plain.name}.gz", plain.read_bytes())
    assert rows(open_checkpoint(str(path))) == rows(open_checkpoint(str(plain)))
    assert open_checkpoint_closed(str(path), arch="llama").architecture == "llama"
    with pytest.raises(UsageError, match="--arch is for GGML-era files"):
        open_checkpoint(str(packed(tmp_path / "m.gguf.gz")), arch="llama")


def open_checkpoint_closed(path: str, arch: str | None = None) -> Checkpoint:
    found = open_checkpoint(path, arch)
    found.close()
    return found


def test_shards_in_an_archive(tmp_path: Path) -> None:
    done = typed("split", GGUF, "--split-max-tensors", "9", "-o", tmp_path / "s.gguf")
    assert done.code == 0, done.said
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as archive:
        for each in sorted(tmp_path.glob("s-*.gguf")):
            archive.add(each, f"q/{each.name}")
    found = open_checkpoint(str(tmp_path / "s.tar.gz"))
    assert len(found.files) == 3 and len({file.path for file in found.files}) == 1
    tensors = {key: value for key, value in rows(open_checkpoint(str(GGUF))).items() if not key.startswith("key")}
    assert tensors == {key: value for key, value in rows(found).items() if not key.startswith("key")}


# --- what is wrong with them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", PACK)
def test_every_cut_and_every_kind_of_remainder(ending: str, tmp_path: Path) -> None:
    whole, path = packed(tmp_path / f"m.gguf{ending}").read_bytes(), tmp_path / f"b.gguf{ending}"
    for size in [*range(8, 40, 4), len(whole) // 2, *range(len(whole) - 8, len(whole), 2)]:
        path.write_bytes(whole[:size])
        with pytest.raises((TruncatedError, CorruptError)):
            open_checkpoint(str(path))
    path.write_bytes(whole + b"something else")
    with pytest.raises(TrailingBytesError, match="14 bytes"):
        open_checkpoint(str(path))
    path.write_bytes(whole + bytes(512))  # a tape's block, or xz's padding
    open_checkpoint_closed(str(path))


@pytest.mark.parametrize("ending", PACK)
def test_parts_after_one_another(ending: str, tmp_path: Path) -> None:
    data, pack = GGUF.read_bytes(), PACK[ending]
    (tmp_path / f"m.gguf{ending}").write_bytes(pack(data[:1]) + pack(data[1:70_000]) + pack(b"") + pack(data[70_000:]))
    assert rows(open_checkpoint(str(tmp_path / f"m.gguf{ending}"))) == rows(open_checkpoint(str(GGUF)))


@pytest.mark.parametrize("ending", PACK)
def test_a_changed_byte_is_noticed(ending: str, tmp_path: Path) -> None:
    """Each format has a checksum; zstd's is optional."""
    option = {zstd.CompressionParameter.checksum_flag: 1}
    data = GGUF.read_bytes()
    whole = zstd.compress(data, options=option) if ending == ".zst" else PACK[ending](data)
    path = tmp_path / f"m.gguf{ending}"
    for place in (len(whole) // 3, len(whole) // 2, len(whole) - 6 if ending == ".gz" else len(whole) - 200):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(CorruptError, match="stream is"):
            open_checkpoint(str(path))


@pytest.mark.parametrize("ending", PACK)
def test_a_bomb(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "ALWAYS", 1 << 20)
    path = packed(tmp_path / f"m.gguf{ending}", GGUF.read_bytes()[:4096] + bytes(64 << 20))
    with pytest.raises(RefusedError, match=r"far more than weights.*unpack it: .*-k FILE"):
        open_checkpoint(str(path))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "m.gguf.gz")
    monkeypatch.setattr("ggferry.support.platform.here.free_bytes", lambda folder: 100 << 20)
    with pytest.raises(RefusedError, match=r"no room in .*104,857,600 bytes free.*TMPDIR"):
        open_checkpoint(str(path))


def test_packed_twice_and_nothing_of_ours(tmp_path: Path) -> None:
    cases: dict[str, tuple[bytes, type[GgferryError], str]] = {
        "m.gguf.gz.xz": (gzip.compress(GGUF.read_bytes()), UnsupportedError, "packed more than once: found gzip"),
        "x.bin.gz": (b"\1\2\3\4" * 99, UnknownFormatError, "inside the gzip stream: found first bytes 01 02"),
        "x.txt.gz": (b"", UnknownFormatError, "inside the gzip stream"),
        "x.gguf.gz": (b"GGUF\3\0\0\0", TruncatedError, "x.gguf.gz@0x"),
    }
    for name, (data, kind, words) in cases.items():
        with pytest.raises(kind, match=words):
            open_checkpoint(str(packed(tmp_path / name, data)))
    with tarfile.open(tmp_path / "n.tar", "w") as archive:
        archive.add(packed(tmp_path / "m.gguf.gz"), "m.gguf.gz")
    with pytest.raises(UnknownFormatError, match="no model in the tar archive"):
        open_checkpoint(str(tmp_path / "n.tar"))


def test_zstd_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path / "m.gguf.zst")

    def absent(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(streams, "importlib", SimpleNamespace(import_module=absent))
    with pytest.raises(UnsupportedError, match=r"zstd needs a library.*pip install 'ggferry\[zstd\]', or unzstd -k"):
        open_checkpoint(str(path))


def altered(path: Path, before: bytes, after: bytes) -> Path:
    data = path.read_bytes()
    assert before in data
    path.write_bytes(data.replace(before, after))
    return path


def zipped(path: Path, files: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_a_zip_archive_whose_directory_lies(tmp_path: Path) -> None:
    data = GGUF.read_bytes()
    size, crc = len(data).to_bytes(4, "little"), zipfile.crc32(data).to_bytes(4, "little")
    path = altered(zipped(tmp_path / "a.zip", {"m.gguf": data}), size, (len(data) - 1).to_bytes(4, "little"))
    with pytest.raises(CorruptError, match="more than the archive states"):
        open_checkpoint(str(path))
    path = altered(zipped(tmp_path / "a.zip", {"m.gguf": data}), size, (len(data) + 1).to_bytes(4, "little"))
    with pytest.raises(TruncatedError, match="less than the archive states"):
        open_checkpoint(str(path))
    path = altered(zipped(tmp_path / "a.zip", {"m.gguf": data}), crc, b"\1\2\3\4")
    with pytest.raises(ChecksumError, match=r"m\.gguf is not what the archive's checksum says"):
        open_checkpoint(str(path))


def test_archives_that_hold_none_or_several(tmp_path: Path) -> None:
    small = {f"{name}/{each.name}": each.read_bytes() for name in "ab" for each in FOLDER.iterdir()}
    with pytest.raises(AmbiguousError, match=r"several models in the zip archive: found \['a', 'b'\]"):
        open_checkpoint(str(zipped(tmp_path / "two.zip", small)))
    with pytest.raises(UnknownFormatError, match="no model in the zip archive"):
        open_checkpoint(str(zipped(tmp_path / "none.zip", {"README.md": b"x"})))
    many = zipped(tmp_path / "many.zip", {f"{n}.txt": b"x" for n in range(4100)})
    with pytest.raises(RefusedError, match="a zip archive of 4100 files"):
        open_checkpoint(str(many))
    nested = {f"m/{each.name}": each.read_bytes() for each in FOLDER.iterdir()}
    nested |= {f"m/original/{each.name}": each.read_bytes() for each in FOLDER.iterdir()}
    found = open_checkpoint_closed(str(zipped(tmp_path / "near.zip", nested)))
    assert {drop.ref.name.split("/")[1] for drop in found.dropped} == {"original"}


@pytest.mark.parametrize("name", ["../m.gguf", "/etc/m.gguf", "a/../../m.gguf", "m.gguf/x\0", "..\\m.gguf", "c:m.gguf"])
def test_names_that_lead_elsewhere_are_left_out(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo(name.replace("\0", ""))
        info.size = GGUF.stat().st_size
        with GGUF.open("rb") as file:
            archive.addfile(info, file)
        link = tarfile.TarInfo("m.gguf")
        link.type, link.linkname = tarfile.SYMTYPE, str(GGUF)
        archive.addfile(link)
    if name.startswith("m.gguf"):
        open_checkpoint_closed(str(tmp_path / "a.tar"))
    else:
        with pytest.raises(UnknownFormatError, match="no model"):
            open_checkpoint(str(tmp_path / "a.tar"))
    assert not (tmp_path.parent / "m.gguf").exists()


def test_encrypted_and_other_methods(tmp_path: Path) -> None:
    path = zipped(tmp_path / "l.zip", {"m.gguf": GGUF.read_bytes()}, zipfile.ZIP_LZMA)
    with pytest.raises(UnsupportedError, match=r"m\.gguf of the zip archive: found compressed by method 14"):
        open_checkpoint(str(path))
    rows(open_checkpoint(str(zipped(tmp_path / "b.zip", {"m.gguf": GGUF.read_bytes()}, zipfile.ZIP_BZIP2))))


@pytest.mark.slow
def test_damage_anywhere_is_an_error_of_ours_or_none(tmp_path: Path) -> None:
    files = {f"m/{each.name}": each.read_bytes() for each in FOLDER.iterdir()}
    whole = zipped(tmp_path / "a.zip", files).read_bytes()
    path = tmp_path / "b.zip"
    for place in [*range(0, 120, 5), *range(len(whole) - 420, len(whole), 5)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            open_checkpoint_closed(str(path))
        except GgferryError as error:
            assert str(error)
    for size in range(4, len(whole), len(whole) // 12):
        path.write_bytes(whole[:size])
        with pytest.raises(GgferryError):
            open_checkpoint(str(path))


# --- when, where and how often it is unpacked ----------------------------------------------------------------------


def test_it_is_unpacked_once_into_the_folder_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, places = packed(tmp_path / "m.gguf.gz"), list[str]()
    make = unpacking.here.nameless_file
    monkeypatch.setattr(unpacking.here, "nameless_file", lambda folder: places.append(folder) or make(folder))
    (tmp_path / "out").mkdir()
    done = typed("quantize", path, tmp_path / "out" / "o.gguf", "q4_0", "--allow-requantize", "--verify", "fast")
    assert done.code == 0, done.said
    assert len(places) == 1
    places.clear()
    convert(Request(str(path), str(tmp_path / "out/p.gguf"), Options(outtype="copy"), level="fast"))
    assert places == [str(tmp_path / "out")]
    places.clear()
    with holding():
        for _ in range(3):
            open_checkpoint_closed(str(path))
        packed(path, GGUF.read_bytes()[:-4] + b"\1\2\3\4")
        open_checkpoint_closed(str(path))
    assert len(places) == 2  # of the file that took its place, too


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, make = packed(tmp_path / "m.gguf.gz"), unpacking.here.nameless_file

    def refusing(folder: str) -> int:
        if folder == str(tmp_path):
            raise OSError(95, "Operation not supported")
        return make(folder)

    monkeypatch.setattr(unpacking.here, "nameless_file", refusing)
    with unpacking.unpacking(folder=str(tmp_path)):
        rows(open_checkpoint(str(path)))


def test_a_kill_leaves_nothing_large(tmp_path: Path, nothing_left: Path) -> None:
    path = packed(tmp_path / "m.gguf.gz", GGUF.read_bytes())
    code = (
        "import sys, time; from ggferry.converters.model_graph.open_checkpoint import open_checkpoint\n"
        "found = open_checkpoint(sys.argv[1]); print(len(found.tensors), flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env={**os.environ})
    assert child.stdout is not None and child.stdout.readline() == b"21\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    left = [file for file in nothing_left.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in left) <= 8192
    as_folder._sweep_once.cache_clear()
    open_checkpoint_closed(str(path))  # as the first of a process, which sweeps


def test_progress_is_of_the_packed_bytes(tmp_path: Path) -> None:
    from contextlib import contextmanager

    path, seen = packed(tmp_path / "m.gguf.gz"), list[object]()

    @contextmanager
    def stage(phase: object, total: int):
        done = [0]
        yield lambda count: done.__setitem__(0, done[0] + count)
        seen.append((phase, total, done[0]))

    with unpacking.unpacking(stage):
        open_checkpoint_closed(str(path))
    size = path.stat().st_size
    assert seen == [("unpacking", size, size)]


def test_edits_and_the_model_taken_out(tmp_path: Path) -> None:
    path = packed(tmp_path / "m.gguf.gz")
    before = path.read_bytes()
    done = typed("edit", path, "--set", "general.name=X", "--in-place")
    assert done.code == 7 and "inside gzip-compressed data; refusing in-place edit" in done.err
    done = typed("doctor", path)
    assert done.code == 0 and "ggferry quantize" in done.out and "m-v3.gguf copy" in done.out
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_migration_of_packed_models(tmp_path: Path) -> None:
    """What is packed is GGUF v3 already and is converted all the same; archives without a model are named."""
    folder = tmp_path / "in"
    folder.mkdir()
    packed(folder / "m.gguf.gz")
    zipped(folder / "none.zip", {"README.md": b"x"})
    zipped(folder / "more.zip", {"m.gguf": GGUF.read_bytes(), "LICENSE": b"x"})
    packed(folder / "log.txt.gz", b"x")
    plan = tmp_path / "plan.jsonl"
    done = typed("plan", folder, "--dest", tmp_path / "out", "-o", plan)
    assert done.code == 0 and "2 convert  2 archive" in done.said, done.said
    done = typed("apply", plan, "--ledger", tmp_path / "ledger", "--delete-source", "--yes")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.gguf")) == ["m.gguf", "more.gguf"], done.said
    assert sorted(path.name for path in folder.iterdir()) == ["log.txt.gz", "more.zip", "none.zip"]


def test_the_library_that_python_3_14_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compression", type(sys)("compression"))
    monkeypatch.setitem(sys.modules, "compression.zstd", zstd)
    assert streams.zstd_library() is zstd and importlib.import_module("compression.zstd") is zstd
