"""The processes below one that a test started, and the ports they listen on. Nobody else's are looked at."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"  # of /proc/net/tcp, include/net/tcp_states.h


def below(pid: int) -> dict[int, str]:
    """Every process that `pid` or its children started: command line by pid."""
    found = subprocess.run(["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[tuple[int, str]]] = {}
    for line in found.splitlines()[1:]:
        child, parent, arguments = line.split(None, 2)
        children.setdefault(int(parent), []).append((int(child), arguments))
    known: dict[int, str] = {}
    todo = [pid]
    while todo:
        for child, arguments in children.get(todo.pop(), ()):
            known[child] = arguments
            todo.append(child)
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
