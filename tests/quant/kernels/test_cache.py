"""Where machine code is kept when neither the program's folder nor the user's can be written to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ggferry.quant import kernels
from ggferry.quant.kernels import common


def test_a_folder_of_one_s_own_is_made_and_found_again(tmp_path: Path) -> None:
    path = common.private_folder(str(tmp_path))
    assert Path(path).parent == tmp_path and os.stat(path).st_mode & 0o777 == 0o700
    assert common.private_folder(str(tmp_path)) == path


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
    assert common.private_folder(str(tmp_path)) == ""


def test_without_any_folder_it_is_compiled_each_time_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(function: Any) -> Any:
        raise RuntimeError("no locator available")

    monkeypatch.setattr(common, "_Cache", nowhere)
    monkeypatch.setattr(common, "private_folder", lambda parent: "")
    monkeypatch.setattr(common.nb.config, "CACHE_DIR", "")
    said: list[bool] = []
    kernels.on_compilation(said.append)

    def twice(x: int) -> int:
        return x + x

    twice.__module__ = "ggferry.quant.kernels.of_a_test"
    assert common.kernel(twice)(4) == 8
    assert said == [False]


def test_the_folder_is_used_where_the_others_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def second(function: Any) -> Any:
        made.append(common.nb.config.CACHE_DIR)
        if not made[-1]:
            raise RuntimeError("no locator available")
        return "the cache"

    monkeypatch.setattr(common, "_Cache", second)
    monkeypatch.setattr(common.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(common.nb.config, "CACHE_DIR", "")
    assert common.kernel(lambda x: x)._cache == "the cache"
    assert made == ["", str(tmp_path / f"ggferry-kernels-{os.getuid()}")]
