"""Who holds a job: names of processes, from which another process of the same machine can see that one is dead."""

from __future__ import annotations

import os
import socket

from ggferry.support.platform import here


def owner_name() -> str:
    """Return a name of this process from which another on the same machine can see that it is dead.

    It consists of host, boot and pid space, pid, start time.
    """
    return f"{_machine()}:{os.getpid()}:{_start_time(os.getpid())}:{os.urandom(4).hex()}"


def _machine() -> str:
    boot, space = here.machine()
    return f"{socket.gethostname()}/{boot}/{space}".replace(":", "_")


def _start_time(pid: int) -> str:
    return here.start_time(pid) or "dead"


def is_dead(owner: str) -> bool:
    """Return whether the process that `owner` names is of this machine and gone; False where that cannot be known."""
    machine, _, rest = owner.partition(":")
    pid, start = (*rest.split(":"), "", "")[:2]
    return machine == _machine() and pid.isdecimal() and _start_time(int(pid)) != start
