"""`ggferry serve` receives a model in pieces and converts it while one of its calls is interfered with."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
from faults.archives import Lanes, Popen
from faults.interference import VARIABLE, Fault, create, shared

from helpers.builders import Llama
from helpers.server import ENDED, Server, made_token, span, start

PIECE, SLOW, FULL = 96 << 10, 90, 20
"""Bytes of a piece; seconds that all of it may take, and that a disk stays full."""
INTERNAL = 500
"""What a server answers that met an error it has no words for."""


class Uploads:
    """One server and its data, begun anew for every point."""

    def __init__(self, library: Path, work: Path, popen: Popen = subprocess.Popen) -> None:
        self.folder, orders, self.popen = work / "d", work / "orders", popen
        create(orders)
        self.environment = {"LD_PRELOAD": str(library), VARIABLE: str(orders)}
        self.orders = shared(orders)
        self.orders.folder = os.fsencode(f"{self.folder}/")
        self.content = Llama(kind="F16", version=1).bytes()
        wrong, self.digest = self.attempt(None, 0)
        assert not wrong and self.digest, wrong

    def calls(self, fault: Fault) -> int:
        """Return how many calls of an undisturbed run a fault can change."""
        wrong, digest = self.attempt(fault, 0)
        assert not wrong and digest == self.digest, wrong
        return int(self.orders.count)

    def attempt(self, fault: Fault | None, at: int) -> tuple[list[str], str]:
        """Send the model and have it converted; return what was wrong, and the digest of the file that came of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700)
        self.orders.begin(fault, at)
        self.orders.armed = 1
        run = Run(self)
        try:
            digest = run.through()
        except TimeoutError as error:
            return [*run.wrong, f"never ended: {error}"], ""
        finally:
            self.orders.armed = 0
            run.end()
        return run.wrong, digest

    def point(self, fault: Fault, at: int) -> list[str]:
        wrong, digest = self.attempt(fault, at)
        if digest and digest != self.digest:
            wrong.append("the file given out has other bytes than that of an undisturbed run")
        return [f"{fault.name} {at}: {problem}" for problem in wrong]


class Run:
    """A client that goes on after every answer that says no, and starts the server again when it is gone."""

    def __init__(self, uploads: Uploads) -> None:
        self.uploads, self.wrong = uploads, list[str]()
        self.server: Server | None = None
        self.client = httpx.Client()
        self.token = ""
        self.plan: str | None = None
        self.until = time.monotonic() + SLOW

    def through(self) -> str:
        key = self._until(self._begun)
        while self._until(lambda: self._sent(key)) < len(self.uploads.content):
            pass
        self._until(lambda: self._inspected(key))
        job = self._until(lambda: self._submitted(key))
        return self._until(lambda: self._fetched(job))

    def end(self) -> None:
        self.client.close()
        if self.server is not None:
            self.server.stop()
            if "Traceback" in self.server.log.read_text():
                self.wrong.append(f"a traceback: {self.server.log.read_text()[-500:]}")

    def _until(self, step: Any) -> Any:
        """Do a step until it gives something; a server that died is started again."""
        while (now := time.monotonic()) < self.until:
            if now > self.until - SLOW + FULL:
                self.uploads.orders.armed = 0  # somebody made room on the full disk
            try:
                if self.server is None or self.server.process.poll() is not None:
                    self._start()
                found = step() if self.server is not None else None
                if found is not None:
                    return found
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError(step)

    def _start(self) -> None:
        if self.server is not None and self.server.process.returncode not in (-signal.SIGKILL, 0, 3):
            self.wrong.append(f"the server ended with {self.server.process.returncode}")
        self.server = None
        try:
            uploads = self.uploads
            self.server = start(uploads.folder, "-j", "1", popen=uploads.popen, **uploads.environment)
        except AssertionError as error:
            if "Traceback" in str(error) or "internal" in str(error):
                self.wrong.append(f"the server does not start: {str(error)[-300:]}")
        else:
            self.token = self.token or made_token(self.uploads.folder, "t", "admin")  # an upload is its owner's
            self.client.close()
            headers = {"Authorization": f"Bearer {self.token}"}
            self.client = httpx.Client(base_url=f"{self.server.url}/api/v1", headers=headers, timeout=20)

    def _answer(self, method: str, path: str, **more: Any) -> Any:
        answer = self.client.request(method, path, **more)
        if answer.status_code == INTERNAL and answer.json().get("code") == "internal":
            self.wrong.append(f"{method} {path}: {answer.text[:300]}")
        return answer.json() if answer.is_success else None

    def _begun(self) -> str | None:
        size = len(self.uploads.content)
        found = self._answer("POST", "/uploads", json={"files": [{"name": "m.bin", "bytes": size}]})
        return found and str(found["id"])

    def _sent(self, key: str) -> int | None:
        content = self.uploads.content
        known = self._answer("GET", f"/uploads/{key}")
        if known is None:
            return None
        offset: int = known["files"][0]["offset"]
        if offset == len(content):
            return offset
        piece = content[offset : offset + PIECE]
        headers = span(content, offset, offset + len(piece))
        found = self._answer("PUT", f"/uploads/{key}/files/0", content=piece, headers=headers)
        if found is None:
            return None
        again = self._answer("GET", f"/uploads/{key}")
        if again is not None and again["files"][0]["offset"] < found["offset"]:
            self.wrong.append(f"{found['offset']} bytes were acknowledged, {again['files'][0]['offset']} are there")
        return int(found["offset"])

    def _inspected(self, key: str) -> bool | None:
        found = self._answer("GET", f"/uploads/{key}")
        if found is not None and found["state"] == "refused":
            self.wrong.append(f"the upload was refused: {found}")
            return True
        return True if found is not None and found["state"] == "accepted" else None

    def _submitted(self, key: str) -> str | None:
        options = {"outtype": "q8_0", "verify": "fast"}
        if self.plan is None:
            begun = self._answer("POST", "/plans", json={"source": f"upload:{key}", "options": options})
            self.plan = begun and str(begun["id"])
            return None
        plan = self._answer("GET", f"/plans/{self.plan}")
        if plan is not None and plan["state"] == "failed":
            self.plan = None  # what the disk did to it; planned again
        if plan is None or plan["state"] != "ready":
            return None
        found = self._answer("POST", "/jobs", json={"plan": plan["id"]})
        return found and str(found["jobs"][0])

    def _fetched(self, job: str) -> str | None:
        found = self._answer("GET", f"/jobs/{job}")
        if found is None or found["state"] not in ENDED:
            return None
        if found["state"] != "done":
            self._answer("POST", f"/jobs/{job}/retry")
            return None
        files = self._answer("GET", f"/jobs/{job}/files")
        if not files:
            return None
        content = self.client.get(f"/jobs/{job}/files/{files[0]['name']}")
        return hashlib.blake2b(content.content).hexdigest() if content.is_success else None


def lanes(library: Path, work: Path, popen: Popen = subprocess.Popen) -> Lanes:
    """Return where uploads are swept."""
    return Lanes("upload", work, lambda folder: Uploads(library, folder, popen))
