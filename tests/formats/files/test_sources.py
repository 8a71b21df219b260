"""Files and what is mounted in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.formats.errors import CorruptError
from ggferry.formats.files.sources import LocalFile, Source, mount, open_source, unmount
from ggferry.formats.reader import HEAD_BYTES
from helpers.builders import Llama


def test_a_mounted_folder_reads_tensor_data_elsewhere_and_names_the_output_alike(tmp_path: Path) -> None:
    mirror, there = tmp_path / "mirror", tmp_path / "there" / "old-llama"
    there.mkdir(parents=True)
    real = Llama().write(there / "old.bin")
    stand_in = mirror / "old-llama" / "old.bin"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_bytes(real.read_bytes()[:HEAD_BYTES])
    with pytest.raises(CorruptError):  # nobody opened the mount: the stand-in ends early, it never lies
        convert(Request(str(stand_in), str(tmp_path / "a.gguf"), level="fast"))

    class Elsewhere(LocalFile):
        def __init__(self, path: str) -> None:
            super().__init__(real)
            self.path = path

    def opener(path: str) -> Source | None:
        return Elsewhere(path) if path.endswith(".bin") else None

    mount(str(mirror), opener)
    try:
        done = convert(Request(str(stand_in), str(tmp_path / "b.gguf"), level="fast"))[0]
    finally:
        unmount(str(mirror))
    plain = convert(Request(str(real), str(tmp_path / "c.gguf"), level="fast"))[0]
    assert Path(done.path).read_bytes() == Path(plain.path).read_bytes()
    assert done.receipt["source"] == plain.receipt["source"]
    with open_source(stand_in) as source:
        assert isinstance(source, LocalFile) and source.size == HEAD_BYTES
