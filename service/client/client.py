"""`ggferry.Client`: a server's archive from Python: submit, follow, fetch with the proof checked."""

from __future__ import annotations

import hashlib
import os
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from ggferry.converters.metadata.beside import RECEIPT, is_folder
from ggferry.formats.errors import (
    ChecksumError,
    GgferryError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from ggferry.formats.files.local_files import Named, open_file
from ggferry.formats.files.partial_files import write_text
from ggferry.service.client.transport import FIRST, TRIES, Transport
from ggferry.service.records.receipts import files_kept, receipts_of
from ggferry.support.printable import printable_json

if TYPE_CHECKING:
    from ggferry.converters.metadata.receipt_fields import KeptReceipts
    from ggferry.formats.json_files.kinds import JSONObject
    from ggferry.service.records.fields import ListedModel, ModelRecord, PlanRecord, Totals, UploadRecord, Usage

API = "/api/v1"
PIECE = 8 << 20  # bytes of one request of an upload
BLOCK = 1 << 20
ENDED = ("done", "failed", "quarantined", "skipped", "cancelled", "expired")
PARTIAL = ".partial"
Progress = Callable[[int], None]
Seer = Callable[["ModelRecord"], None]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that was fetched: where it is, its bytes, and the digest that the receipt and the file share."""

    path: str
    bytes: int
    sha256: str


class Client:
    """A server, by its address and a token.

    Every method raises the error that the server names as one of `ggferry`'s, and UnreachableError where there is no
    server.

    Args:
        url: `http://host:port`.
        token: A token; None: what the variable GGFERRY_TOKEN holds.

    Example:
        >>> client = ggferry.Client("http://127.0.0.1:8765")
        >>> jobs = client.submit("/models/old.bin", verify="fast")
        >>> [client.fetch(job["id"], ".") for job in client.wait(jobs)]
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = 120.0) -> None:
        found = token if token is not None else os.environ.get("GGFERRY_TOKEN", "")
        if not found.strip():
            raise UsageError("a token is needed", hint="the argument token, or the variable GGFERRY_TOKEN")
        self._transport = Transport(url, found.strip(), timeout)

    # --- looking ---------------------------------------------------------------------------------------------------

    def models(self, **query: Any) -> Iterator[ListedModel]:
        """Yield the archive's models; `query` as the API's: q, state, container, architecture, sort, descending."""
        cursor: dict[str, str] = {}
        while True:
            page = self._get("/models", {"limit": 500, **_plain(query), **cursor})
            yield from page["items"]
            if page["next"] is None:
                return
            cursor = {"cursor": page["next"]}

    def inspect(self, source: str, arch: str | None = None) -> JSONObject:
        """Return what a source of the server holds, as `ggferry.inspect`."""
        return dict(self._post("/inspect", {"source": source, "arch": arch}))

    def job(self, job: str) -> ModelRecord:
        """Return a job, by its id or the beginning of one."""
        if len(job) < 32:
            found = [each["id"] for each in self.models() if each["id"].startswith(job)] if job else []
            if len(found) != 1:
                raise NotFoundError(f"{len(found)} jobs go by this name", path=self._transport.url, found=job)
            job = found[0]
        found_job: ModelRecord = self._get(f"/jobs/{quote(job, safe='')}")
        return found_job

    def receipt(self, job: str) -> KeptReceipts:
        """Return the receipt of a done job; of several outputs the first, the others in its member `further`."""
        found: KeptReceipts = self._get(f"/jobs/{job}/receipt")
        return found

    def totals(self) -> Totals:
        """Return the archive in numbers."""
        found: Totals = self._get("/totals")
        return found

    # --- doing -----------------------------------------------------------------------------------------------------

    def plan(self, source: str, **options: Any) -> PlanRecord:
        """Return a plan of what is at a source of the server, once it is made. Raises what it failed with."""
        body = {"source": source, "options": _plain(options)}
        found: PlanRecord = self._post("/plans", body, os.urandom(16).hex())
        while found["state"] == "planning":
            time.sleep(0.5)
            found = self._get(f"/plans/{found['id']}")
        if found["state"] != "ready":
            raise _revived(found["error"] or {})
        return found

    def submit(self, source: str, *, progress: Progress = lambda count: None, **options: Any) -> list[str]:
        """Have a source converted and return the ids of its jobs.

        Args:
            source: A file or folder of this machine, which is uploaded; or what the server names so: `server:/path`, a
                URL, `upload:ID`.
            progress: Called with bytes as they are uploaded.
            options: Of the conversion, as a plan's line has them.
        """
        plan = self.plan(self.source_of(source, progress), **options)
        found = self._post("/jobs", {"plan": plan["id"]}, os.urandom(16).hex())
        return list(found["jobs"])

    def source_of(self, source: str, progress: Progress = lambda count: None) -> str:
        """Return the server's name for a source; what is on this machine is uploaded."""
        if source.startswith("server:"):
            return source.removeprefix("server:")
        if "://" in source or source.startswith("upload:"):
            return source
        return self.upload(source, progress)

    def upload(self, path: str, progress: Progress = lambda count: None) -> str:
        """Send a file, or the files of a folder, and return `upload:ID` once the server has inspected it.

        A connection that breaks is taken up where it ended. Raises what the inspection found.
        """
        files = _files(path)
        listed = [{"name": name, "bytes": os.path.getsize(each)} for name, each in files.items()]
        made = self._post("/uploads", {"files": listed}, os.urandom(16).hex())
        for number, each in enumerate(files.values()):
            self._send(made["id"], number, each, path if os.path.isdir(path) else None, progress)
        found = self._get(f"/uploads/{made['id']}")
        while found["state"] in ("receiving", "inspecting"):
            time.sleep(0.2)
            found = self._get(f"/uploads/{made['id']}")
        if found["state"] != "accepted":
            raise _revived(found["error"] or {})
        return str(found["source"])

    def _send(self, upload: str, number: int, path: str, root: str | None, progress: Progress) -> None:
        with open(open_file(path, root), "rb") as file:
            total, offset, left, digest = os.fstat(file.fileno()).st_size, 0, TRIES, hashlib.sha256()
            while offset < total:
                file.seek(offset)
                data = file.read(min(PIECE, total - offset))
                if not data:
                    raise RefusedError("the file shrank while it was sent", path=path)
                after = digest.copy()
                after.update(data)
                span = {"Content-Range": f"bytes {offset}-{offset + len(data) - 1}/{total}"}
                span["Upload-Digest"] = f"sha-256=:{b64encode(after.digest()).decode()}:"
                try:
                    with self._transport.open("PUT", f"{API}/uploads/{upload}/files/{number}", data, span) as answer:
                        answer.read()
                    progress(len(data))
                    offset, left, digest = offset + len(data), TRIES, after
                except (UnreachableError, RefusedError):
                    left -= 1
                    if not left:
                        raise
                    time.sleep(FIRST * 2 ** (TRIES - left))
                    known = self._get(f"/uploads/{upload}")["files"][number]
                    progress(known["offset"] - offset)
                    offset, digest = known["offset"], _digest_of(file, known["offset"])
                    if digest.hexdigest() != known.get("sha256", digest.hexdigest()):
                        raise ChecksumError("what the server received is not what was sent", path=path) from None

    def cancel(self, job: str) -> ModelRecord:
        """End a job; nothing of it is published."""
        found: ModelRecord = self._post(f"/jobs/{job}/cancel", None)
        return found

    def retry(self, job: str) -> ModelRecord:
        """Queue a job again that failed or was cancelled."""
        found: ModelRecord = self._post(f"/jobs/{job}/retry", None)
        return found

    def delete(self, job: str) -> None:
        """Remove a job that has ended, its record and its files."""
        self._transport.json("DELETE", f"{API}/jobs/{quote(job, safe='')}")

    def uploads(self) -> list[UploadRecord]:
        """Return this token's uploads, the newest first."""
        found: list[UploadRecord] = self._get("/uploads")
        return found

    def usage(self) -> Usage:
        """Return the bytes that this token has and may have, and those of the server's disk."""
        found: Usage = self._get("/usage")
        return found

    def wait(
        self, jobs: Sequence[str], *, seconds: float | None = None, see: Seer = lambda job: None
    ) -> list[ModelRecord]:
        """Return jobs once all have ended; `see` is called with each whose state or progress changed.

        Raises RefusedError after `seconds`. A server that restarts meanwhile is waited for.
        """
        until = None if seconds is None else time.monotonic() + seconds
        found: dict[str, ModelRecord] = {}
        while True:
            for job in jobs:
                if job in found and found[job]["state"] in ENDED:
                    continue
                now = self._get(f"/jobs/{job}")
                if job not in found or _shown(now) != _shown(found[job]):
                    see(now)
                found[job] = now
            if all(each["state"] in ENDED for each in found.values()):
                return [found[job] for job in jobs]
            if until is not None and time.monotonic() > until:
                raise RefusedError(f"not ended within {seconds:g} s", hint="ggferry remote wait, to wait on")
            time.sleep(0.5)

    # --- fetching --------------------------------------------------------------------------------------------------

    def fetch(
        self, job: str, out: str, *, force: bool = False, progress: Progress = lambda count: None
    ) -> list[Fetched]:
        """Fetch the files of a done job and the receipts of its outputs to the folder `out`.

        An output that is a folder gets one of its name in there. A job that was skipped because another did the same
        has the files of that one. Each file's sha256 must be that of the receipt, else nothing gets its name. What an
        earlier attempt fetched is taken up.

        Raises:
            RefusedError: The job is not done, or a file exists (without `force`).
            ChecksumError: What came is not what was proved.
        """
        files = self._get(f"/jobs/{job}/files")
        kept = self.receipt(job)
        receipts = receipts_of(kept)
        proved = {each["name"]: each["sha256"] for each in files_kept(kept)}
        if is_folder(receipts[0]):  # its receipt is one of its files
            name = str(self._get(f"/jobs/{job}")["output"]).replace("\\", "/").rpartition("/")[2]
            out, receipts = os.path.join(out, _safe(name)), []
        os.makedirs(out, exist_ok=True)
        paths = [os.path.join(out, _safe(each["name"])) for each in files]
        beside = [os.path.join(out, _safe(each["output"]["files"][0]["name"])) + RECEIPT for each in receipts]
        for path in (*paths, *beside):
            if os.path.lexists(path) and not force:
                raise RefusedError("exists already", path=path, hint="--force")
        found = [
            self._fetch(each, proved.get(each["name"]), path, progress) for each, path in zip(files, paths, strict=True)
        ]
        for path, receipt in zip(beside, receipts, strict=True):
            write_text(path, [printable_json(receipt, indent=1)], overwrite=force)
        return found

    def _fetch(self, file: Mapping[str, Any], proved: str | None, path: str, progress: Progress) -> Fetched:
        partial, left = path + PARTIAL, TRIES
        while True:
            have = os.path.getsize(partial) if os.path.exists(partial) else 0
            if have >= file["bytes"]:
                break
            headers = {"Range": f"bytes={have}-", "If-Range": f'"b3-{file["blake3"]}"'} if have else {}
            try:
                self._receive(file["url"], headers, partial, progress)
                left = TRIES
            except UnreachableError:
                left -= 1
                if not left:
                    raise
                time.sleep(FIRST * 2 ** (TRIES - left))
        with open(open_file(Named(partial)), "rb") as done:
            found = hashlib.file_digest(done, "sha256").hexdigest()
        if proved is None or found != proved:
            os.unlink(partial)
            raise ChecksumError("what came is not what was proved", path=path, found=found, expected=proved)
        os.replace(partial, path)
        return Fetched(path, int(file["bytes"]), found)

    def _receive(self, url: str, headers: Mapping[str, str], partial: str, progress: Progress) -> None:
        """Append what comes to a file, or begin it anew where the server sends all of it."""
        with (
            self._transport.open("GET", url, None, headers) as answer,
            open(partial, "ab") if answer.status == 206 else open(partial, "wb") as out,
        ):
            while piece := answer.read(BLOCK):
                out.write(piece)
                progress(len(piece))
            out.flush()
            os.fsync(out.fileno())

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return self._transport.json("GET", API + path, None, query)

    def _post(self, path: str, body: Any, key: str | None = None) -> Any:
        return self._transport.json("POST", API + path, body, None, key)


def _digest_of(file: IO[bytes], end: int) -> Any:
    """Return the SHA-256 of a file's first bytes, to be gone on with."""
    found, at = hashlib.sha256(), 0
    file.seek(0)
    while at < end and (block := file.read(min(BLOCK, end - at))):
        found.update(block)
        at += len(block)
    return found


def _plain(options: Mapping[str, Any]) -> JSONObject:
    return {name: value for name, value in options.items() if value is not None}


def _shown(job: Mapping[str, Any]) -> Any:
    return job["state"], (job.get("progress") or {}).get("done")


def _revived(record: Mapping[str, Any]) -> GgferryError:
    from ggferry.service.storage.broker import revive

    return revive(record)


def _files(path: str) -> dict[str, str]:
    """Return the files of a model by the names they are uploaded under. Raises NotFoundError, UsageError."""
    if os.path.isfile(path):
        return {os.path.basename(path): Named(path)}
    if not os.path.isdir(path):
        raise NotFoundError("no such file or folder", path=path)
    found: dict[str, str] = {}
    top = os.path.basename(os.path.abspath(path)).lstrip(".")  # the model goes by the name of its folder
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names):
            whole = os.path.join(folder, name)
            if not name.startswith(".") and os.path.isfile(whole):
                found[os.path.join(top, os.path.relpath(whole, path))] = whole
    if not found:
        raise UsageError("folder has no files", path=path)
    return found


def _safe(name: str) -> str:
    """Return a file's name that a server gave. Raises RefusedError for one that leads elsewhere."""
    if os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        raise RefusedError("the server names a file outside of the folder", found=name)
    return name
