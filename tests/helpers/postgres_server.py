"""A PostgreSQL server of the tests' own, which can be stopped in any way and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def find_programs() -> Path:
    """The folder of the server's programs, which Debian keeps out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")) or [Path(shutil.which("postgres") or "")]
    assert found[-1].is_file(), "no PostgreSQL server on this machine (apt-get install postgresql)"
    return found[-1].resolve().parent


class PostgresServer:
    """A server on loopback whose data lies in `home`. It refuses to run as root, so then it runs as somebody else."""

    def __init__(self, programs: Path, home: Path, password: str | None = None) -> None:
        self.programs, self.home, self.password = programs, home, password
        self.user: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(home, "nobody")
            self.user = {"user": "nobody", "group": "nogroup"}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        init = [programs / "initdb", "-D", home / "data", "-U", "ggferry", "-E", "UTF8", "--no-sync"]
        if password is None:
            init.append("--auth=trust")
        else:
            (home / "password").write_text(password)
            init += ["--auth=scram-sha-256", f"--pwfile={home / 'password'}"]
        subprocess.run(init, check=True, capture_output=True, cwd=home, **self.user)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://ggferry@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        serve = [self.programs / "postgres", "-D", self.home / "data", "-p", str(self.port), "-k", self.home]
        serve += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(serve, stdout=log, stderr=log, cwd=self.home, **self.user)
        ready = [self.programs / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(300):
            if subprocess.run(ready, capture_output=True).returncode == 0:
                return
            assert self.process.poll() is None, (self.home / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """At once, as `pg_ctl stop -m immediate`: what was under way is cut off."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(20)
            self.process = None


@contextmanager
def postgres_server(password: str | None = None) -> Iterator[PostgresServer]:
    """A running server. What calls this is marked `postgres` (conftest.py), and `make postgres` runs it."""
    programs = find_programs()
    home = Path(tempfile.mkdtemp(prefix="ggferry-pg-", dir="/tmp"))  # a short path
    home.chmod(0o755)  # that another user may enter
    try:
        server = PostgresServer(programs, home, password)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home)
