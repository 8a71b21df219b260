"""The orders that shim.c takes, as Python sees them: memory that is shared with every process it is loaded in."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "GGFERRY_FAULTS"
CREATE, WRITE, SYNC, RENAME, LINK, UNLINK, MKDIR, TRUNCATE = (1 << bit for bit in range(8))
COUNT_ONLY, KILL_BEFORE, KILL_AFTER, FAIL, SHORTEN = range(5)


class Orders(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("armed", "count", "done", "at", "action", "error", "sticky")),
        *((name, ctypes.c_int) for name in ("no_flags", "counted")),
        ("folder", ctypes.c_char * 512),
        ("log", ctypes.c_char * 512),
    ]

    def begin(self, fault: Fault | None, at: int) -> None:
        """Count the calls of a fault's kinds anew, and interfere with number `at`; None: count all, and change none."""
        self.count, self.done, self.at = 0, 0, at
        self.action, self.error, self.sticky = (
            (fault.action, fault.error, fault.sticky) if fault else (COUNT_ONLY, 0, 0)
        )
        self.counted = fault.counted if fault else 0


@dataclass(frozen=True)
class Fault:
    """What happens to the N-th call: an action, with errno, and the kinds of calls that go on failing."""

    name: str
    action: int
    error: int = 0
    sticky: int = 0

    @property
    def counted(self) -> int:
        """The kinds of calls that it can change; 0 for all."""
        return self.sticky or (WRITE if self.action == SHORTEN else 0)

    @property
    def kills(self) -> bool:
        return self.action in (KILL_BEFORE, KILL_AFTER)


KINDS = {
    "create": CREATE,
    "write": WRITE,
    "pwrite": WRITE,
    "writev": WRITE,
    "fsync": SYNC,
    "fdatasync": SYNC,
    "rename": RENAME,
    "renameat2": RENAME,
    "link": LINK,
    "unlink": UNLINK,
    "rmdir": UNLINK,
    "mkdir": MKDIR,
    "ftruncate": TRUNCATE,
}
"""What shim.c writes down of a call."""
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", KILL_BEFORE),
        Fault("kill-after", KILL_AFTER),
        Fault("eio", FAIL, errno.EIO),
        Fault("enospc", FAIL, errno.ENOSPC, sticky=CREATE | WRITE | MKDIR | TRUNCATE),  # unlink and rename need no room
        Fault("short", SHORTEN),
        Fault("fsync", FAIL, errno.EIO, sticky=SYNC),
        Fault("rename", FAIL, errno.EPERM, sticky=RENAME | LINK),
    )
}


def build(folder: Path) -> Path:
    """Compile shim.c into `folder` by the system's C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError(
            "no C compiler (cc, gcc or clang): tests/faults needs one to build shim.c; apt-get install gcc"
        )
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def create(path: Path) -> None:
    """Make the file of the orders, all zeros: nothing is interfered with."""
    path.write_bytes(bytes(ctypes.sizeof(Orders)))


def shared(path: str | Path | None = None) -> Orders:
    """Return the orders in a file; None: those of this process and its children, which the environment names."""
    file = os.open(path or os.environ[VARIABLE], os.O_RDWR)
    page = mmap.mmap(file, ctypes.sizeof(Orders))
    os.close(file)
    return Orders.from_buffer(page)
