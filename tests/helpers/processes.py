"""The processes below one that a test started, and the ports they listen on. Nobody else's are looked at."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LISTENING = "0A"  # of /proc/net/tcp, include/net/tcp_states.h


class Process(NamedTuple):
    """One line of `ps`."""

    pid: int
    parent: int
    command: str


def every() -> list[Process]:
    """Every process of this machine.

    `-ww`: readline, which torch imports by way of pdb, sets COLUMNS in the environment, and ps cuts its lines there.
    """
    found = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    fields = [[*line.split(None, 2), ""] for line in found.splitlines()[1:]]
    return [Process(int(pid), int(parent), command) for pid, parent, command, *_ in fields]


def below(pid: int) -> dict[int, str]:
    """Every process that `pid` or its children started: command line by pid."""
    children: dict[int, list[Process]] = {}
    for process in every():
        children.setdefault(process.parent, []).append(process)
    known: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), ()):
            known[child.pid] = child.command
            todo.append(child.pid)
    return known


def listening(pids: list[int]) -> set[str]:
    """The addresses, as the kernel writes them in hex, on which any of `pids` takes TCP connections."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(os.readlink(link))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found
