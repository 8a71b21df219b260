"""A folder gets its name without flags of rename, too, and what a short write or a kill leaves is made good."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import ggferry
from ggferry.formats.errors import BusyError, GgferryError, RefusedError
from ggferry.formats.files import output_folder, partial_files
from ggferry.formats.files.output_folder import OutputFolder
from ggferry.support.platform import here
from helpers.builders import Llama


def no_flags(patch: pytest.MonkeyPatch) -> None:
    """As on FUSE 2 and NFS: neither link(2) nor renameat2(2) with flags."""

    def no_links(*arguments: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    patch.setattr(os, "link", no_links)
    patch.setattr(partial_files, "rename_new", lambda path, target: False)
    patch.setattr(output_folder, "rename_new", lambda path, target: False)
    patch.setattr(output_folder.here, "exchange", lambda path, other: False)


def write(target: Path, text: str, *, overwrite: bool = False) -> None:
    with OutputFolder(str(target), overwrite=overwrite, ours=lambda path: True) as folder:
        folder.write("a", text.encode())
        folder.publish()


@pytest.mark.unix("flags of rename; Windows has one rename")
@pytest.mark.parametrize("flags", [True, False], ids=["flags", "no flags"])
def test_new_and_replaced(flags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not flags:
        no_flags(monkeypatch)
    target = tmp_path / "f"
    write(target, "one")
    with pytest.raises(RefusedError, match="exists already"):
        write(target, "two")
    assert (target / "a").read_text() == "one"
    write(target, "two", overwrite=True)
    assert (target / "a").read_text() == "two" and os.listdir(tmp_path) == ["f"]


def test_a_name_that_is_taken_meanwhile_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_flags(monkeypatch)
    target = tmp_path / "f"
    with pytest.raises(RefusedError, match="exists already"), OutputFolder(str(target)) as folder:
        folder.write("a", b"x")
        target.mkdir()
        (target / "mine").write_text("mine")
        folder.publish()
    assert os.listdir(tmp_path) == ["f"] and os.listdir(target) == ["mine"]


@pytest.mark.unix("flags of rename; Windows has one rename")
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "replaced"])
def test_an_error_or_a_kill_between_the_two_renames(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without flags an older folder is moved away first: an error or the next run puts it back."""
    target, real = tmp_path / "f", os.rename
    if overwrite:
        write(target, "one")
    no_flags(monkeypatch)
    for kill in (False, True):

        def failing(source: str, to: str, kill: bool = kill) -> None:
            if to == str(target) and source.endswith(".partial") and ".older." not in source:
                if kill:
                    os._exit(9)
                raise OSError(errno.EIO, "Input/output error")
            real(source, to)

        monkeypatch.setattr(os, "rename", failing)
        child = os.fork() if kill else -1
        if child == 0:
            write(target, "two", overwrite=overwrite)
            os._exit(0)
        if kill:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        else:
            with pytest.raises(GgferryError, match="Input/output"):
                write(target, "two", overwrite=overwrite)
            assert os.listdir(tmp_path) == (["f"] if overwrite else [])
        monkeypatch.setattr(os, "rename", real)
    if overwrite:
        with pytest.raises(RefusedError, match="exists already"):
            write(target, "two")
        assert (target / "a").read_text() == "one" and os.listdir(tmp_path) == ["f"]
    write(target, "two", overwrite=overwrite)
    assert (target / "a").read_text() == "two" and os.listdir(tmp_path) == ["f"]


def test_a_folder_whose_writer_lives_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "f"
    with OutputFolder(str(target)) as held:
        with pytest.raises(BusyError):
            write(target, "two")
        assert os.path.isdir(held.path)


def test_short_writes_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of a shard too: one that was cut was found by the proof only, as damage."""
    source = Llama(n_layer=1, kind="F16", version=1).write(tmp_path / "s.bin")
    model = ggferry.convert(source, tmp_path / "m.gguf", outtype="f16", verify="none").output
    whole = ggferry.convert(model, tmp_path / "whole", to="safetensors", verify="fast").output
    real = here.pwrite
    monkeypatch.setattr(here, "pwrite", lambda fd, data, at: real(fd, bytes(data)[: max(1, len(data) // 2)], at))
    cut = ggferry.convert(model, tmp_path / "cut", to="safetensors", verify="fast").output
    assert (Path(cut) / "model.safetensors").read_bytes() == (Path(whole) / "model.safetensors").read_bytes()
