"""How many bytes a conversion reads: the source once to write and once to prove, the output once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from blake3 import blake3

import ggferry
from helpers.witnesses import FIXTURES


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("level", "of_source", "of_output"), [("none", 1, 1), ("fast", 2, 1)])
def test_bytes_in_memory_are_not_read_again(
    level: str, of_source: int, of_output: int, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests of source and output are taken from what passes; only headers and what lies in them is read besides."""
    from ggferry.formats.files.sources import LocalFile

    read: Counter[str] = Counter()
    read_into = LocalFile.read_into

    def counted(self: LocalFile, offset: int, buffer: memoryview) -> None:
        read[Path(self.path).suffix if ".gguf" not in self.path else "output"] += len(buffer)
        read_into(self, offset, buffer)

    monkeypatch.setattr(LocalFile, "read_into", counted)
    source = FIXTURES / "hf" / "ckpt" / "llama_k256"
    done = ggferry.convert(source, tmp_path / "o.gguf", outtype="q8_0", verify=level, jobs=threads)
    (weights,) = source.glob("*.safetensors")
    small, spare = 1 << 16, 1.5 if threads > 1 else 1.0  # a thread may lose its turn
    assert read[".safetensors"] <= of_source * weights.stat().st_size * spare + small
    assert read["output"] <= of_output * Path(done.output).stat().st_size * spare + small
    assert done.receipt["source"]["files"][0]["blake3"] == blake3(weights.read_bytes()).hexdigest()
    assert done.receipt["output"]["files"][0]["blake3"] == blake3(Path(done.output).read_bytes()).hexdigest()
