"""Where machine code is kept, and what is believed of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ggferry.quant import kernels
from ggferry.quant.kernels import kernel_cache


@pytest.mark.unix("owners and modes of folders")
def test_a_folder_of_one_s_own_is_made_and_found_again(tmp_path: Path) -> None:
    path = kernel_cache.private_folder(str(tmp_path))
    assert Path(path).parent == tmp_path and os.stat(path).st_mode & 0o777 == 0o700
    assert kernel_cache.private_folder(str(tmp_path)) == path


@pytest.mark.parametrize("trap", ["link", "open", "file", "foreign"])
def test_one_that_others_may_write_to_is_not_used(trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded from it is executed."""
    path = tmp_path / f"ggferry-kernels-{os.getuid()}"
    if trap == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "other")
    elif trap == "file":
        path.touch(0o600)
    else:
        path.mkdir(mode=0o700)
        path.chmod(0o777 if trap == "open" else 0o700)
        if trap == "foreign":
            os.chown(path, 12345, 12345)
    assert kernel_cache.private_folder(str(tmp_path)) == ""


def test_without_any_folder_it_is_compiled_each_time_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(function: Any) -> Any:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(kernel_cache, "_Cache", nowhere)
    monkeypatch.setattr(kernel_cache, "private_folder", lambda parent: "")
    monkeypatch.setattr(kernel_cache.nb.config, "CACHE_DIR", "")
    said: list[bool] = []
    kernels.on_compilation(said.append)

    def twice(x: int) -> int:
        return x + x

    twice.__module__ = "ggferry.quant.kernels.of_a_test"
    assert kernel_cache.kernel(twice)(4) == 8
    assert said == [False]


@pytest.mark.unix("owners and modes of folders")
@pytest.mark.parametrize("named", ["", "/a/folder/that/cannot/be/written/to"])
def test_the_folder_is_used_where_the_others_fail(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def second(function: Any) -> Any:
        made.append(kernel_cache.nb.config.CACHE_DIR)
        if made[-1] == named:
            raise RuntimeError("no locator available")
        return "the cache"

    monkeypatch.setattr(kernel_cache, "_Cache", second)
    monkeypatch.setattr(kernel_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(kernel_cache.nb.config, "CACHE_DIR", named)
    assert kernel_cache.kernel(lambda x: x)._cache == "the cache"
    assert made == [named, str(tmp_path / f"ggferry-kernels-{os.getuid()}")]


# --- what is read is believed only if it is what was written -------------------------------------------------------


def _entries(folder: Path, stamp: object = 1) -> kernel_cache._Entries:
    return kernel_cache._Entries(str(folder), "simple.f-1.py311", stamp)


def test_an_entry_is_found_by_its_key_alone(tmp_path: Path) -> None:
    _entries(tmp_path).save("avx2", b"code" * 100)
    _entries(tmp_path).save("avx512", b"more" * 100)
    assert [_entries(tmp_path).load(key) for key in ("avx2", "avx512", "neon")] == [b"code" * 100, b"more" * 100, None]
    assert len(list(tmp_path.iterdir())) == 2


def test_entries_of_other_sources_are_not_found_and_make_room(tmp_path: Path) -> None:
    (tmp_path / "simple.f-1.py311.nbi").write_bytes(b"an index of numba's")
    (tmp_path / "simple.f-1.py311.1.nbc").write_bytes(b"and its data")
    (tmp_path / "simple.f-10.py311.1.nbc").write_bytes(b"another function's")
    _entries(tmp_path, 1).save("avx2", b"old")
    assert _entries(tmp_path, 2).load("avx2") is None
    _entries(tmp_path, 2).save("avx2", b"new")
    assert _entries(tmp_path, 1).load("avx2") is None and _entries(tmp_path, 2).load("avx2") == b"new"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("at", [0, 5, 32, 40, -1])
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_what_is_not_whole_is_not_there(how: str, at: int, tmp_path: Path) -> None:
    """A power cut leaves a file without its end, or zeros in it; numba would end every later run, or run it."""
    _entries(tmp_path).save("key", b"code" * 100)
    (path,) = tmp_path.iterdir()
    whole = bytearray(path.read_bytes())
    whole[at] ^= 1
    path.write_bytes(path.read_bytes()[:at] if how == "cut" else whole)
    assert _entries(tmp_path).load("key") is None
    _entries(tmp_path).save("key", b"code" * 100)
    assert _entries(tmp_path).load("key") == b"code" * 100


def test_a_full_disk_costs_the_next_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache.nb.config, "CACHE_DIR", str(tmp_path))

    def thrice(x: int) -> int:
        return 3 * x

    def full(self: Any, path: str) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel_cache._Entries, "_open_for_write", full)
    thrice.__module__ = "ggferry.quant.kernels.of_a_test"
    assert kernel_cache.kernel(thrice)(4) == 12


# --- the same from outside -----------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
CONVERT = "import sys; from ggferry.service.cli.app import main; sys.argv[0] = 'ggferry'; main()"


def _start(
    fixtures: Path, out: Path, variables: Mapping[str, str], folder: Path = ROOT.parent
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONVERT, "convert", str(fixtures / "hf" / "ckpt" / "llama"), "-o", str(out)]
    command += ["--outtype", "q8_0", "--verify", "fast", "--force"]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.PIPE, text=True)


def _message(running: subprocess.Popen[str]) -> list[str]:
    """Return what the run said about compiling."""
    _, text = running.communicate()
    assert running.returncode == 0, text
    return [line for line in text.splitlines() if "compiling" in line]


@pytest.mark.slow
def test_two_first_runs_at_once_and_a_damaged_cache(fixtures: Path, tmp_path: Path) -> None:
    """All make the same bytes, and only what the outputs need is compiled."""
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    both = [_start(fixtures, tmp_path / f"{n}.gguf", cache) for n in (1, 2)]
    assert [len(_message(one)) for one in both] == [1, 1]
    (entry,) = (tmp_path / "cache").rglob("*.nb*")
    assert entry.name.startswith("simple.q8_0-") and entry.suffix == ".nbc"
    assert not _message(_start(fixtures, tmp_path / "3.gguf", cache))
    entry.write_bytes(entry.read_bytes()[:-100])
    assert len(_message(_start(fixtures, tmp_path / "4.gguf", cache))) == 1
    assert not _message(_start(fixtures, tmp_path / "5.gguf", cache))
    assert len({(tmp_path / f"{n}.gguf").read_bytes() for n in range(1, 6)}) == 1


@pytest.mark.slow
def test_where_neither_home_nor_the_program_s_folder_can_be_written_to(fixtures: Path, tmp_path: Path) -> None:
    """Then it is kept among the temporary files, and where that is not safe either, every run says that it compiles.

    Files stand where folders would have to be made, which stops root, too.
    """
    library = tmp_path / "library"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.txt", "*.bin"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name.split("/")[0] in ("support", "quant", "formats", "converters", "service", "__init__.py"):
            (library / "ggferry" / name).parent.mkdir(parents=True, exist_ok=True)
            (library / "ggferry" / name).write_bytes((ROOT / name).read_bytes())
    for trap in (library / "ggferry" / "quant" / "kernels" / "__pycache__", tmp_path / "home"):
        trap.touch()
    (tmp_path / "temporary").mkdir()
    variables = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home" / "cache"),
        "NUMBA_CACHE_DIR": "",
        "TMPDIR": str(tmp_path / "temporary"),
        "PYTHONPATH": str(library),
    }

    def run() -> list[str]:
        return _message(
            _start(fixtures, tmp_path / "out.gguf", variables, tmp_path)
        )  # no other copy is found from there

    (said,) = run()
    assert "once a machine" in said and list((tmp_path / "temporary").rglob("*.nbc")) and not run()
    private = tmp_path / "temporary" / f"ggferry-kernels-{os.getuid()}"
    private.chmod(0o755)
    for _ in range(2):
        (said,) = run()
        assert "in every run: no folder can keep them (NUMBA_CACHE_DIR names one)" in said
