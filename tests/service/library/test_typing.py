"""A client of the installed package is checked by mypy --strict."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from helpers.third_party_fixtures import ROOT

GOOD = """
from pathlib import Path

import ggferry


def main(source: Path) -> float:
    done = ggferry.convert(source, "new.gguf", outtype="q8_0", verify="fast", split_max_size="4GiB")
    counts: dict[ggferry.Grade, int] = done.grades
    try:
        plan = ggferry.plan(source, hparams={"context_length": "512"})
    except ggferry.RefusedError as error:
        raise SystemExit(error.exit_code) from error
    with ggferry.open_model(done.output) as model:
        ids = model.tokenize("text")
        row: int = model.forward(ids).shape[0]
    names: list[str] = [tensor.name for tensor in plan.tensors]
    worst = ggferry.quantize(done.output, "x.gguf", "q4_k_m").proof.worst
    ggferry.verify(source, done.output, level="full")
    return worst.relative_rms if worst is not None else float(row + len(names) + sum(counts.values()))
"""
BAD = {
    "an unknown option": "import ggferry\nggferry.convert('a', 'b', outtyp='f16')\n",
    "another kind": "import ggferry\nggferry.convert('a', 'b', pure='yes')\n",
    "another level": "import ggferry\nggferry.verify('a', 'b', level='none')\n",
    "no such function": "import ggferry\nggferry.transmute('a')\n",
    "no such answer": "import ggferry\nggferry.inspect('a').tensor\n",
}


def test_the_marker_is_in_the_wheel() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "py.typed" in data["ggferry"] and (ROOT / "py.typed").read_bytes() == b""


@pytest.mark.slow
def test_clients_are_checked(tmp_path: Path) -> None:
    """The package as other projects find it: in the site-packages of their environment."""
    venv.create(tmp_path / "env", symlinks=True)
    [site] = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "ggferry").symlink_to(ROOT)
    import numpy

    (site / "more.pth").write_text(str(Path(numpy.__file__).parents[1]))
    for name, text in {"good": GOOD, **BAD}.items():
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(text)
    names = ["good.py", *(f"{name.replace(' ', '_')}.py" for name in BAD)]
    asked = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    asked += ["--python-executable", str(tmp_path / "env" / "bin" / "python"), *names]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    complaints = done.stdout.splitlines()
    assert not [line for line in complaints if line.startswith("good.py")], done.stdout
    for name in names[1:]:
        assert [line for line in complaints if line.startswith(name) and ": error:" in line], (name, done.stdout)
