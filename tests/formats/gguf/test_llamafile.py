"""Models inside llamafiles (a program's first bytes with a zip archive behind them), zip and tar archives.

They are written by Python's zipfile and tarfile.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from gguf import GGUFReader

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion_plan.steps import Options
from ggferry.formats.errors import CorruptError, GgferryError, MissingError, TruncatedError, UnsupportedError
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.gguf import open_gguf
from ggferry.formats.tensor_read import read_rows
from helpers.attack_tools import typed
from helpers.third_party_fixtures import FIXTURES

PROGRAM = b"MZqFpD='\n" + bytes(range(256)) * 9


def llamafile(path: Path, fill: Callable[[zipfile.ZipFile], None], program: bytes = PROGRAM) -> Path:
    path.write_bytes(program)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        fill(archive)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    request = Request(str(FIXTURES / "hf/ckpt/llama"), str(tmp_path_factory.mktemp("m") / "m.gguf"))
    return Path(convert(Request(request.source, request.out, Options(outtype="q8_0"), level="fast"))[0].path)


def test_every_byte_is_the_model_s(model: Path, tmp_path: Path) -> None:
    path = llamafile(tmp_path / "a.llamafile", lambda archive: archive.write(model, "models/m.gguf"))
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    found, theirs = open_gguf(str(path)), {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    assert set(found.tensors) == set(theirs)
    for name, ref in found.tensors.items():
        assert read_rows(found, ref, 0, ref.rows).tobytes() == np.ascontiguousarray(theirs[name].data).tobytes()
    assert any("models/m.gguf of a llamafile" in note for note in found.notes)
    out = tmp_path / "o.gguf"
    result = convert(Request(str(path), str(out), Options(outtype="copy")))[0]
    same = {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(result.path).tensors}
    assert same == {name: tensor.data.tobytes() for name, tensor in theirs.items()}
    assert typed("verify", path, out).code == 0
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


@pytest.mark.parametrize("argument", ["-m", "--model"])
def test_the_model_that_its_arguments_name(argument: str, model: Path, tmp_path: Path) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        archive.writestr("larger.gguf", b"GGUF" + bytes(2 * model.stat().st_size))
        archive.write(model, "m.gguf")
        archive.writestr("mmproj-m.gguf", b"GGUF" + bytes(3 * model.stat().st_size))
        archive.writestr(".args", f"{argument}\n/zip/m.gguf\n--mmproj\nmmproj-m.gguf\n...\n")

    found = open_gguf(str(llamafile(tmp_path / "a.llamafile", fill)))
    assert len(found.tensors) and [drop.ref.name for drop in found.dropped] == ["larger.gguf", "mmproj-m.gguf"]
    assert all(drop.loses for drop in found.dropped)


def test_without_arguments_it_is_no_mmproj_file(model: Path, tmp_path: Path) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        archive.write(model, "m.gguf")
        archive.writestr("mmproj-m.gguf", b"GGUF" + bytes(3 * model.stat().st_size))

    assert len(open_gguf(str(llamafile(tmp_path / "a.llamafile", fill, b"jartsr='\n"))).tensors)


def test_commands_and_no_edit_in_place(model: Path, tmp_path: Path) -> None:
    path = llamafile(tmp_path / "a.llamafile", lambda archive: archive.write(model, "m.gguf"))
    before = path.read_bytes()
    done = typed("doctor", path)
    assert done.code == 0 and "take the model out of it" in done.out and "another name" not in done.out
    done = typed("edit", path, "--set", "general.name=X", "--in-place")
    assert done.code == 7 and "inside a llamafile; refusing in-place edit" in done.err
    assert [each.name for each in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before
    done = typed("edit", path, "--set", "general.name=X", "--outfile", tmp_path / "e.gguf")
    assert done.code == 0, done.said
    assert open_gguf(str(tmp_path / "e.gguf")).metadata["general.name"].data == "X"


@pytest.mark.parametrize(
    ("fill", "kind", "words"),
    [
        (lambda archive: archive.writestr("readme.txt", "x"), MissingError, "no model in the llamafile"),
        (
            lambda archive: archive.writestr("m.gguf", b"GGUF" + bytes(99), zipfile.ZIP_DEFLATED),
            UnsupportedError,
            "found compressed",
        ),
        (lambda archive: archive.writestr("m.gguf", b"GGUF\3\0\0\0"), TruncatedError, "tensor_count"),
    ],
)
def test_what_cannot_be_read_is_named(
    fill: Callable[[zipfile.ZipFile], None], kind: type[GgferryError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        open_gguf(str(llamafile(tmp_path / "a.llamafile", fill)))


def test_damage_anywhere_is_an_error_of_ours_or_none(model: Path, tmp_path: Path) -> None:
    """Every cut, and every byte of the records at the end, changed."""
    whole = llamafile(tmp_path / "a.llamafile", lambda archive: archive.write(model, "m.gguf")).read_bytes()
    path = tmp_path / "b.llamafile"
    for size in [*range(6, 60), len(PROGRAM), len(whole) // 2, *range(len(whole) - 90, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptError):
            open_gguf(str(path))
    for place in range(len(whole) - 90, len(whole)):
        for value in (0, 0xFF):
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                open_gguf(str(path)).close()
            except GgferryError as error:
                assert str(path) in str(error)


def packed(path: Path, model: Path, name: str = "models/m.gguf") -> Path:
    """An archive of a folder, a small file and the model, in this order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("models/", b"")
            archive.writestr("models/README.md", "A model.")
            archive.write(model, name)
            archive.writestr("models/LICENSE", "MIT")
        return path
    folder = path.parent / "packed" / "models"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("A model.")
    shutil.copy(model, folder.parent / name)
    (folder / "LICENSE").write_text("MIT")
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT if "pax" in path.name else tarfile.GNU_FORMAT) as archive:
        archive.add(folder, "models", recursive=False)
        # a PAX header takes two blocks: what is looked at first ends before a third file's
        small = () if "pax" in path.name else ("README.md",)
        for each in (*small, Path(name).name, "LICENSE"):
            archive.add(folder / each, f"models/{each}")
    return path


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a-pax.tar"])
def test_an_archive_is_read_in_place(name: str, model: Path, tmp_path: Path) -> None:
    path = packed(tmp_path / name, model)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    result = convert(Request(str(path), str(tmp_path / "o.gguf"), Options(outtype="copy")))[0]
    theirs = {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(model).tensors}
    assert {tensor.name: tensor.data.tobytes() for tensor in GGUFReader(result.path).tensors} == theirs
    (record,) = result.receipt["source"]["files"]
    assert record["bytes"] == path.stat().st_size and record["blake3"] == blake3(path.read_bytes()).hexdigest()
    dropped = {drop["name"]: drop["reason"] for drop in result.receipt["dropped"]}
    others = [f"models/{each}" for each in ("README.md", "LICENSE") if each != "README.md" or "pax" not in name]
    assert dropped == dict.fromkeys(others, "another file of the archive")
    assert typed("verify", path, result.path).code == 0
    done = typed("edit", path, "--set", "general.name=X", "--in-place")
    assert done.code == 7 and "refusing in-place edit" in done.err
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_a_shard_in_a_llamafile_is_named(model: Path, tmp_path: Path) -> None:
    path = llamafile(tmp_path / "a.llamafile", lambda archive: archive.write(model, "m-00001-of-00002.gguf"))
    with pytest.raises(UnsupportedError, match="one of several shards"):
        open_gguf(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_a_damaged_archive_gives_a_result_or_an_error_of_ours(name: str, model: Path, tmp_path: Path) -> None:
    whole = packed(tmp_path / name, model).read_bytes()
    path = tmp_path / f"b{Path(name).suffix}"
    places = [*range(600), *range(len(whole) - 400, len(whole))] if name == "a.zip" else range(2600)
    for place in places[::11]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            find_reader(str(path))[0].open(str(path), ()).close()
        except GgferryError as error:
            assert str(error)
    for size in range(0, len(whole), len(whole) // 20):
        path.write_bytes(whole[:size])
        with pytest.raises(GgferryError):
            find_reader(str(path))[0].open(str(path), ()).close()


@pytest.mark.slow
@pytest.mark.parametrize("others", [True, False])
def test_a_migration_keeps_an_archive_that_holds_more(others: bool, model: Path, tmp_path: Path) -> None:
    """Its other files are lost with it, so that --delete-source spares it."""

    def fill(archive: zipfile.ZipFile) -> None:
        archive.write(model, "m.gguf")
        if others:
            archive.writestr("mmproj-m.gguf", b"GGUF" + bytes(100))

    (tmp_path / "in").mkdir()
    path = llamafile(tmp_path / "in" / "a.llamafile", fill)
    plan = tmp_path / "plan.jsonl"
    done = typed("plan", tmp_path / "in", "--dest", tmp_path / "out", "-o", plan, "--outtype", "f16")
    assert done.code == 0, done.said
    done = typed("apply", plan, "--ledger", tmp_path / "ledger", "--delete-source", "--yes")
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 1, done.said
    assert path.exists() == others
