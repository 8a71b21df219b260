"""The floor that benchmarks/hf.py prints beside its rows."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from gguf import GGUFReader

import ggferry

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bars import Row, plot
from floor import COPY, Floor, encoded, pieces
from measured import Cost

COPIED, ENCODED = Cost(2.0, 0.5, 0.5, 1), Cost(3.0, 5.0, 0.0, 1)
FLOOR = Floor(COPIED, ENCODED)


def test_the_floor_is_the_longer_part_and_the_work_of_both() -> None:
    assert (FLOOR.wall, FLOOR.processor) == (3.0, 6.0)
    assert FLOOR.under(Cost(4.5, 6.0, 1.5, 1)) == "1.50 × the floor, 1.25 × its processor time"


def test_the_plot_has_the_floor_where_it_belongs() -> None:
    rows = [Row("f16", "ggferry --verify none", Cost(6.0, 1, 1, 1), None, FLOOR), Row("f16", "cp", COPIED)]
    image = ET.fromstring(plot(rows, "a title"))
    bars = image.findall("{*}rect")
    (line,) = image.findall("{*}path")
    start, long = float(bars[0].attrib["x"]), float(bars[0].attrib["width"])
    assert line.attrib["d"].startswith(f"M{start + long / 2:.1f} ")  # 3 of 6 seconds
    assert any("floor 3.00 s" in (text.text or "") for text in image.findall("{*}text"))


def test_what_is_encoded_is_what_the_outputs_hold(fixtures: Path, tmp_path: Path) -> None:
    """Counted by gguf-py: every value once for each of its types, in pieces."""
    outputs = [tmp_path / f"{name}.gguf" for name in ("f16", "q8_0")]
    ggferry.convert_many(fixtures / "hf/ckpt/llama", tmp_path / "{outtype}.gguf", outtype="f16,q8_0", verify="none")
    shapes = encoded(outputs)
    expected = {}
    for output in outputs:
        for tensor in GGUFReader(output).tensors:
            if tensor.tensor_type.name != "BF16":
                expected[tensor.name, tensor.tensor_type.name] = int(tensor.n_elements)
    assert {key: rows * columns for key, (rows, columns) in shapes.items()} == expected
    cut = list(pieces(shapes, 4096))
    assert sum(rows * columns for _, rows, columns in cut) == sum(expected.values())
    assert all(rows == 1 or rows * columns <= 1024 for _, rows, columns in cut)


@pytest.mark.parametrize("sizes", [(3,), (700_000, 1), (100_000, 2_000_000)])
def test_the_copy_writes_what_the_outputs_have(sizes: tuple[int, ...], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 3000)
    targets = [tmp_path / f"target-{size}" for size in sizes]
    words = [sys.executable, "-c", COPY, str(source), ",".join(map(str, sizes)), *map(str, targets)]
    subprocess.run(words, check=True)
    assert tuple(target.stat().st_size for target in targets) == sizes
