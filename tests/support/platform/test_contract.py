"""What every module of the platform room promises: Linux's for real, the others as far as Linux can run them."""

from __future__ import annotations

import ast
import errno
import inspect
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from ggferry.support.platform import linux, macos, windows
from helpers import as_system

MODULES = (linux, macos, windows)
UNIX = (linux, macos)


@pytest.fixture(params=MODULES, ids=lambda module: module.NAME)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module; what Windows's asks of its kernel is answered by Linux."""
    module: ModuleType = request.param
    if module is windows:
        as_system.stand_in(monkeypatch)
    return module


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_every_module_has_the_same_names_and_arguments(module: ModuleType) -> None:
    assert module.__all__ == linux.__all__
    for name in linux.__all__:
        one, other = getattr(linux, name), getattr(module, name)
        assert callable(one) == callable(other), name
        if callable(one):
            assert [*inspect.signature(one).parameters] == [*inspect.signature(other).parameters], name


def test_positions_are_nobodys(here: ModuleType, tmp_path: Path) -> None:
    """Reading and writing at offsets moves no position, and threads do not meet."""
    fd = here.open_file(str(tmp_path / "a"), os.O_RDWR | os.O_CREAT | os.O_EXCL | here.NOFOLLOW | here.CLOEXEC)
    try:
        assert here.pwrite(fd, bytes(range(256)) * 64, 0) == 256 * 64
        os.lseek(fd, 7, os.SEEK_SET)
        wrong: list[int] = []

        def read(byte: int) -> None:
            for _ in range(50):
                if here.pread(fd, 1, 256 + byte) != bytes([byte]):
                    wrong.append(byte)

        threads = [threading.Thread(target=read, args=(byte,)) for byte in range(0, 256, 32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        buffer = bytearray(5)
        assert here.pread_into(fd, memoryview(buffer), 253) == 5 and buffer == bytes([253, 254, 255, 0, 1])
        assert wrong == [] and os.lseek(fd, 0, os.SEEK_CUR) == 7
        assert here.pread(fd, 9, 256 * 64) == b"" and here.pread_into(fd, memoryview(buffer), 1 << 20) == 0
        here.sync_data(fd)
    finally:
        os.close(fd)


def test_a_link_is_not_followed(here: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError) as found:
        here.open_file(str(tmp_path / "link"), os.O_RDONLY | here.NOFOLLOW)
    assert found.value.errno == errno.ELOOP
    os.close(here.open_file(str(tmp_path / "link"), os.O_RDONLY))


HOLDER = """
import sys
from ggferry.support.platform import here
import os
fd = here.open_file(sys.argv[1], os.O_RDWR)
here.lock(fd)
held = here.lock_folder(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("system", ["", "macos", "windows"])
def test_locks_end_with_their_process(system: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    folder = tmp_path / "folder"
    folder.mkdir()
    program = [as_system.__file__, system] if system else []
    command = [sys.executable, *program, "-c", HOLDER, str(tmp_path / "a"), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        again = subprocess.run([*command[:-2], *command[-2:]], capture_output=True, text=True, check=False, input="")
        assert "BlockingIOError" in again.stderr
        holder.kill()
    free = subprocess.run(command, capture_output=True, text=True, check=True, input="")
    assert free.stdout == "held\n"


def test_a_new_name_replaces_nothing(here: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    Path(one).write_bytes(b"1")
    Path(other).write_bytes(b"2")
    if here is windows:
        monkeypatch.setattr(windows, "os", as_system.View(os, set(), {"rename": as_system._rename}))
    if here is macos:  # Linux has no renamex_np: whoever calls has another way
        assert not here.rename_new(one, other) and not here.exchange(one, other)
        return
    with pytest.raises(FileExistsError):
        here.rename_new(one, other)
    assert Path(other).read_bytes() == b"2"
    assert here.rename_new(one, str(tmp_path / "new")) and (tmp_path / "new").read_bytes() == b"1"
    swapped = here.exchange(str(tmp_path / "new"), other)
    assert Path(other).read_bytes() == (b"1" if swapped else b"2") and swapped == (here is linux)


def test_macos_renames_as_its_c_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    answers = iter([0, errno.EEXIST, errno.ENOTSUP, 0])
    monkeypatch.setattr(macos, "_renamex", lambda path, other, flags: asked.append(flags) or next(answers))
    assert macos.rename_new("a", "b")
    with pytest.raises(FileExistsError):
        macos.rename_new("a", "b")
    assert not macos.rename_new("a", "b") and macos.exchange("a", "b")
    assert asked == [4, 4, 4, 2]  # RENAME_EXCL, RENAME_SWAP of sys/stdio.h


def test_a_nameless_file_leaves_nothing(here: ModuleType, tmp_path: Path) -> None:
    fd = here.nameless_file(str(tmp_path))
    here.pwrite(fd, b"abc", 1 << 20)
    assert here.pread(fd, 3, 1 << 20) == b"abc" and here.bytes_on_disk(fd) > 0
    assert [*tmp_path.iterdir()] == []
    os.close(fd)


def test_where_things_lie(here: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "link").symlink_to("a")
    assert here.real_path(str(tmp_path / "link")) == str(tmp_path / "a")
    with pytest.raises(OSError):
        here.real_path(str(tmp_path / "none"))
    fd = here.open_folder(str(tmp_path))
    with suppress(OSError):  # F_GETPATH, which Linux lacks: `local_files` has another way
        assert here.place_of(fd) == str(tmp_path) or here is macos
        with here.scan_folder(fd) as entries:
            assert {entry.name for entry in entries} == {"a", "link"}
    os.close(fd)
    for wrong in ("a", "none"):
        with pytest.raises(OSError):
            here.open_folder(str(tmp_path / wrong))
        with pytest.raises(OSError):
            here.lock_folder(str(tmp_path / wrong))
    here.sync_folder(str(tmp_path))
    with pytest.raises(OSError):
        here.sync_folder(str(tmp_path / "none"))


def test_facts_of_machine_and_process(here: ModuleType, tmp_path: Path) -> None:
    assert 1 <= here.cores() <= (os.cpu_count() or 1)
    assert here.free_bytes(str(tmp_path)) > 0 and here.available_memory() > 0
    assert here.longest_name(str(tmp_path)) >= 143
    own = here.start_time(os.getpid())
    assert own and ":" not in own and here.start_time(os.getpid()) == own and here.start_time(1 << 22) is None
    assert here.machine() == here.machine()
    if here is not macos:  # it counts bytes where Linux counts KiB
        assert here.peak_memory() > 1 << 20
    assert here.memory_cap() is None or here.CAPS


def test_the_end_of_a_group_and_of_a_pipe(here: ModuleType) -> None:
    options = {} if here is windows else here.group_options()  # its flags are refused elsewhere
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as made:
        assert made.stdout is not None
        start = time.monotonic()
        assert not here.is_readable(made.stdout.fileno(), 0.05) and time.monotonic() - start >= 0.04
        here.end_group(made)
        assert here.is_readable(made.stdout.fileno(), None) and made.stdout.read() == b""
        assert made.wait() == -here.KILL


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(("model.gguf", None), ("con-figuration", None), (".hidden", None), ("com10.gguf", None)),
        *(("nul", "device"), ("Con.gguf", "device"), ("lpt1 .x", "device"), ("COM¹", "device")),
        *(("a.", "dot or a space"), ("a ", "dot or a space"), ("a:b", "':'"), ("a?", "'?'"), ("a\x1f", "'\\x1f'")),
    ],
)
def test_names_of_windows(name: str, why: str | None) -> None:
    found = windows.unusable_name(name)
    assert (found is None) if why is None else (found is not None and why in found)
    assert linux.unusable_name(name) is None


def test_texts_of_systems() -> None:
    said = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:       10.\nPages active: 99.\n"
    said += 'Pages inactive:   5.\nPages speculative:  1.\n"Translation faults": 7.\n'
    assert macos.vm_free(said) == 16 * 16384
    assert windows.plain_path("\\\\?\\C:\\a") == "C:\\a" and windows.plain_path("\\\\?\\UNC\\h\\s") == "\\\\h\\s"
    new, cut, kept = os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_RDWR
    assert [windows.kernel.disposition(flags) for flags in (0, new, cut, kept, os.O_TRUNC)] == [3, 1, 2, 4, 5]
    assert [windows.kernel.access(flags) for flags in (0, os.O_WRONLY, os.O_RDWR)] == [1 << 31, 1 << 30, 3 << 30]


def test_no_module_needs_another_system() -> None:
    """Imports at the top of each are of the standard library everywhere, or of that system's."""
    for module in (windows, windows.kernel):
        names = {
            alias.name
            for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not names & as_system.MISSING["windows"]
