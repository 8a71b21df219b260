"""Large writes cost Linux several times what small ones do, so none is larger than a piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggferry.formats.gguf import write
from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import GGUFFile, lay_out
from ggferry.formats.readers.gguf import open_gguf
from ggferry.quant.codec import block_type
from ggferry.support.platform import here


def test_a_large_chunk_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    pwrite = here.pwrite

    def counted(fd: int, data: Any, offset: int) -> int:
        sizes.append(len(data))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(here, "pwrite", counted)
    values = np.random.default_rng(0).standard_normal(700_000, np.float32)
    layout = lay_out({"general.architecture": string("llama")}, [("a", block_type("F32"), values.shape)])
    with GGUFFile(tmp_path / "x.gguf", layout) as file:
        file.pwrite("a", 0, values)
        file.finish()
        file.publish()
    assert max(sizes) <= write.PIECE and len(sizes) > values.nbytes // write.PIECE
    found = open_gguf(str(tmp_path / "x.gguf"))
    ref = found.tensors["a"]
    assert found.files[0].read(ref.spans[0].offset, ref.nbytes) == values.tobytes()
    found.close()
