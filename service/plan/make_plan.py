"""Make a plan of an archive: list, group, read each model's headers in workers, name outputs, find duplicates."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from ggferry.converters.conversion.options import types_of
from ggferry.converters.conversion.request import GGUF
from ggferry.formats import errors
from ggferry.formats.errors import Fault, GgferryError, UsageError, fault_of
from ggferry.formats.files.local_files import confined
from ggferry.formats.files.sources import LocalFile, Source
from ggferry.formats.packed.scratch import Scratch
from ggferry.formats.reader import model_suffixes
from ggferry.service.plan import duplicates
from ggferry.service.plan import group_files as archive
from ggferry.service.plan.group_files import Group, Tree
from ggferry.service.plan.option_files import further_files, staged_options
from ggferry.service.plan.output_names import Names
from ggferry.service.records.option_paths import with_paths
from ggferry.service.records.plan_file import (
    ARCHIVE,
    CONVERT,
    CORRUPT,
    INCOMPLETE,
    OTHER,
    SKIP,
    UNSUPPORTED,
    Entry,
    Further,
    Head,
)
from ggferry.service.storage import stores
from ggferry.service.storage.backends.web_requests import elsewhere
from ggferry.service.storage.broker import revive
from ggferry.service.storage.mirror import Mirror
from ggferry.service.storage.places import unreadable
from ggferry.service.storage.ranged_file import RangedFile
from ggferry.service.storage.stores import Found, is_remote, local_path, local_roots
from ggferry.service.storage.urls import Access, configure_access
from ggferry.service.workers.supervisor import (
    OUT_OF_MEMORY,
    Answer,
    Limits,
    Supervisor,
    WorkerDied,
    WorkerFailed,
    WorkerTimeout,
)
from ggferry.support.platform import here

HEADER_TIMEOUT = 300.0  # seconds to read the headers of one model
UNPACKED = 4 << 20  # bytes of a packed file a second, that no healthy disk and processor fall below
HEADERS_A_WORKER = 4000  # models; a start costs as much as a hundred of them
_KILLED = "killed"
DELAYS = (1.0, 3.0)  # seconds before a model's headers are asked for again
AWAY = (errors.AccessError, errors.TransientError, errors.ChangedError)
"""Errors that say nothing about a file: when it is planned again, it may be fine."""
STAGING = 16  # heads fetched from a store at a time
_TRAINING_STATE = re.compile(
    r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.(?:pt|bin)|scaler\.pt|rng_state(?:_\d+)?\.pth|training_args\.bin"
)
"""What the Trainer of transformers and Accelerate save beside a model (`trainer.py`, `utils/constants.py`)."""
UNPINNED = "the server states no version: it is read once more at the end, and not deleted"
Progress = Callable[[int, int], None]
"""Models examined so far, models in all."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is to hold.

    Attributes:
        roots: Folders, files or URLs.
        dest: Folder or URL of the outputs; None: next to the sources.
        outtype: The type of the outputs; several, separated by commas, for an output of each of every model.
        verify: The level of proof.
        recipe: Options for every model, besides those of the head.
        digest: Whether candidates of the same size are read in full to prove duplicates; None: where they are local.
        jobs: Worker processes.
        limits: Memory and threads of a worker.
        access: How files are reached.
        trees: Folders in which the files must really lie; None: the roots.
    """

    roots: tuple[str, ...]
    dest: str | None = None
    outtype: str = "keep"
    verify: str = "full"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    digest: bool | None = None
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    trees: tuple[str, ...] | None = None

    @property
    def within(self) -> list[str]:
        """Return the folders that confine what is read."""
        return local_roots(map(local_path, self.roots)) if self.trees is None else [*self.trees]


class Worker(Protocol):
    """What reads headers: a Supervisor, or what lends one."""

    def run(self, command: Mapping[str, Any], *, timeout: float = 0) -> Answer: ...


def plan(
    request: PlanRequest, progress: Progress = lambda done, total: None, worker: Worker | None = None
) -> tuple[Head, list[Entry]]:
    """Return the plan of an archive. Raises UsageError, NotFoundError; a bad file is a line with its reason.

    `worker` reads the headers, from several threads; None: worker processes of its own.
    """
    configure_access(request.access)
    roots = tuple(local_path(root) for root in request.roots)
    dest = None if request.dest is None else local_path(request.dest)
    for root in roots:
        if dest is None and root.partition("://")[0] in stores.READ_ONLY:
            raise UsageError("outputs cannot stand beside these sources", path=root, hint="--dest FOLDER")
    outtype = ",".join(types_of(request.outtype))
    head = Head(roots, dest, outtype, request.verify, redirects=request.access.redirects)
    with confined(request.within), _places(roots) as (tree, mirror):
        found = archive.groups(tree)
        beside = staged_options(request.recipe, mirror)
        looked = _look(found, request, mirror, progress, worker)
        names = Names(head, {f.path for f in tree.files.values()})
        entries = [
            _entry(group, facts, tree, mirror, names, beside) for group, facts in zip(found, looked, strict=True)
        ]

        def open_file(each: Found) -> Source:
            return (
                RangedFile(each, mirror.folder, room=0, block=64 << 10)
                if is_remote(each.path)
                else LocalFile(each.path)
            )

        def whole(each: Found) -> bool:
            return not is_remote(each.path) if request.digest is None else request.digest

        entries = duplicates.mark(entries, open_file, whole)
    return head, sorted(entries, key=lambda entry: (entry.source, entry.verdict))


@contextmanager
def _places(roots: Sequence[str]) -> Iterator[tuple[Tree, Mirror]]:
    """Yield everything below the roots, listed once; remote files through a mirror of their names and first bytes."""
    tree, scratch = Tree(), Scratch()
    mirror = Mirror(scratch.path)
    try:
        remote = []
        for root in roots:
            for found in stores.listing(root):
                if not is_remote(found.path):
                    tree.add(found.path, found)
                elif not _is_navigation(found):
                    remote.append(found)
        mirror.name(found.path for found in remote)
        for found in _all_staged(remote, mirror):
            tree.add(mirror.path_of(found.path), found)
        yield tree, mirror
    finally:
        mirror.close()
        scratch.close()


def _is_navigation(found: Found) -> bool:
    """Return whether this is a link from a web page to somewhere else that is not named like a model."""
    outside = found.trouble is not None and found.trouble["class"] == errors.OutsideLinkError.__name__
    return outside and not found.path.lower().endswith(model_suffixes())


def _all_staged(remote: Sequence[Found], mirror: Mirror) -> Iterator[Found]:
    """Yield the files, with their first bytes in the mirror.

    Raises TransientError when a place is away: a plan without the files there would be incomplete.
    """
    away, first = 0, None
    with ThreadPoolExecutor(STAGING) as pool:
        for found in pool.map(lambda each: _staged(each, mirror), remote):
            is_away = found.trouble is not None and errors.fault_of(found.trouble) is errors.Fault.TRANSIENT
            away, first = (away + 1, first or found) if is_away else (0, None)
            if first is not None and away >= min(STAGING, len(remote)):
                raise revive(first.trouble or {})
            yield found


def _staged(found: Found, mirror: Mirror) -> Found:
    """Put the first bytes of a file into the mirror; one that cannot be read is listed as such."""
    if found.trouble is not None:
        return found
    try:
        mirror.stage([found])
        return found
    except GgferryError as error:
        return unreadable(found.path, error)
    except OSError as error:
        hint = "copy it to a shorter path"
        words = f"a name this machine cannot have: {error.strerror}"
        return unreadable(found.path, errors.UnsupportedError(words, path=found.path, hint=hint))


# --- headers -------------------------------------------------------------------------------------------------------


def _look(
    found: Sequence[Group], request: PlanRequest, mirror: Mirror, progress: Progress, worker: Worker | None
) -> list[dict[str, Any] | None]:
    """Return what workers report of each group that may be a model; None for the others."""
    results: list[dict[str, Any] | None] = [None] * len(found)
    work: queue.SimpleQueue[int] = queue.SimpleQueue()
    models = [i for i, group in enumerate(found) if group.kind in archive.MODELS]
    for i in models:
        work.put(i)
    mount, done, lock = mirror.serve(), 0, threading.Lock()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            look()
        except BaseException as error:  # else the models it did not come to would pass as files that are none
            failures.append(error)

    def look() -> None:
        nonlocal done
        own = nullcontext(worker) if worker is not None else Supervisor(request.limits, jobs=HEADERS_A_WORKER)
        with own as supervisor:
            while True:
                try:
                    i = work.get_nowait()
                except queue.Empty:
                    return
                results[i] = _facts(found[i], request, supervisor, mirror, mount)
                with lock:
                    done += 1
                    progress(done, len(models))

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(request.jobs, len(models)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def _facts(
    group: Group, request: PlanRequest, supervisor: Worker, mirror: Mirror, mount: Mapping[str, Any]
) -> dict[str, Any]:
    options = with_paths(request.recipe, lambda path: mirror.path_of(path) if is_remote(path) else path)
    beside = _own(group, options)
    recipe = {"outtype": request.outtype, "verify": request.verify, **options, **beside}
    command = {
        "op": "analyze",
        "source": group.source,
        "recipe": recipe,
        "config": group.config,
        "threads": request.limits.threads,
        "mount": mount,
        "trees": request.within,
    }
    try:
        facts = _run(command, supervisor, HEADER_TIMEOUT + _unpacking(group, mount))
        own = {**beside, **facts.pop("options")}
        return {**facts, "options": {**request.recipe, **{k: v for k, v in own.items() if v is not None}}}
    except WorkerFailed as failure:
        return {"error": failure.error}
    except WorkerTimeout:
        return {"error": {"class": "Timeout", "message": f"its headers were not read within {HEADER_TIMEOUT:g} s"}}
    except WorkerDied as death:
        error = {"class": "WorkerDied", "message": death.reason}
        return {"error": error | ({"fault": Fault.TRANSIENT.value} if death.signal == here.KILL else {})}


def _unpacking(group: Group, mount: Mapping[str, Any]) -> float:
    """Return the seconds that unpacking may take before headers can be read."""
    remote = mount.get("files", {})
    sizes = (remote[path][1] if path in remote else os.path.getsize(path) for path in group.files)
    return sum(sizes) / UNPACKED if group.packed else 0.0


def _run(command: Mapping[str, Any], supervisor: Worker, timeout: float) -> dict[str, Any]:
    """Return what a worker reports.

    When memory runs out, a fresh worker is asked, so that what was kept of other models does not decide; after passing
    trouble the question is repeated a while later, and so it is where somebody, or the system, killed the worker.
    """
    delays = {OUT_OF_MEMORY: [0.0], Fault.TRANSIENT.value: [*DELAYS], _KILLED: [*DELAYS]}
    while True:
        try:
            return dict(supervisor.run(command, timeout=timeout).result)
        except WorkerFailed as failure:
            why = str(failure.error.get("class"))
            left = delays.get(why if why == OUT_OF_MEMORY else fault_of(failure.error).value)
            if not left:
                raise
            time.sleep(left.pop(0))
        except WorkerDied as death:
            if death.signal != here.KILL or not (left := delays[_KILLED]):
                raise
            time.sleep(left.pop(0))


def _own(group: Group, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are found beside a model; only a GGUF file is made of an adapter."""
    own = {"tokenizer_model": group.tokenizer_model, "base": group.base if options.get("to", GGUF) == GGUF else None}
    return {name: path for name, path in own.items() if path is not None}


# --- lines ---------------------------------------------------------------------------------------------------------


def _entry(
    group: Group,
    facts: Mapping[str, Any] | None,
    tree: Tree,
    mirror: Mirror,
    names: Names,
    of_options: tuple[Found, ...],
) -> Entry:
    def listed(paths: Sequence[str]) -> tuple[Found, ...]:
        found = (tree.files[path] if path in tree.files else stores.stat(path) for path in paths)
        return tuple(each for each in found if each.bytes >= 0 or group.kind not in archive.MODELS)

    source = mirror.url_of(group.source)
    files, beside = listed(group.files), listed((*group.beside, *_config_of(group.base)))
    common: dict[str, Any] = {"kind": group.kind, "files": files, "beside": beside}
    checksum_notes = _of_servers((*files, *beside))
    common["bytes_in"] = sum(max(0, each.bytes) for each in files)
    if facts is None and group.error is None:
        verdict = {archive.ARCHIVE: ARCHIVE, archive.FORM: SKIP}.get(group.kind, OTHER)
        return Entry(source, verdict, group.reason, **common)
    facts = facts or {"error": {**(group.error.as_dict() if group.error else {}), "class": type(group.error).__name__}}
    if "error" in facts:
        error = {**facts["error"], "path": _url(facts["error"].get("path"), mirror)}
        if fault_of(error) is Fault.TRANSIENT:
            error["hint"] = "plan again"
        own = [source, *(each.path for each in files)]
        if group.packed and error["class"] == errors.UnknownFormatError.__name__:
            return Entry(source, ARCHIVE, f"{_reason(error, own)}: unpack it first", **common)
        verdict = _verdict(error)
        if verdict in (UNSUPPORTED, CORRUPT) and _TRAINING_STATE.fullmatch(os.path.basename(source)):
            return Entry(source, OTHER, f"state of a training, not a model: {_reason(error, own)}", **common)
        return Entry(source, verdict, _reason(error, own), error=error, **common)
    facts = dict(facts)
    made, more = facts.pop("outputs"), int(facts.pop("bytes_beside", 0))
    common["beside"] = (*beside, *listed(further_files(facts["options"], (*group.files, *group.beside))), *of_options)
    facts["options"] = {key: _url(value, mirror) for key, value in facts["options"].items()}
    facts["notes"], facts["lost"] = (*facts["notes"], *checksum_notes), tuple(facts["lost"])
    if facts.get("verdict") == SKIP:
        return Entry(source, facts.pop("verdict"), facts.pop("reason"), **common, **facts)
    to = str(facts["options"].get("to") or GGUF)
    named = [
        Further(
            str(each["outtype"]),
            names.output(source, group, str(each["name"]), str(each["outtype"]), int(each["shards"]), to),
            each["bytes"],
        )
        for each in made
    ]
    reads = common["bytes_in"] if any(is_remote(each.path) for each in files) else 0
    disk = int(facts["bytes_out"]) + more + reads
    return Entry(source, CONVERT, output=named[0].output, further=tuple(named[1:]), disk=disk, **common, **facts)


def _of_servers(files: Sequence[Found]) -> tuple[str, ...]:
    """Return notes on where files come from: changes that nobody could notice, or another server that serves them."""
    remote = [each for each in files if is_remote(each.path)]
    unpinned = [os.path.basename(each.path) for each in remote if each.bytes >= 0 and not each.pinned]
    notes = [f"{UNPINNED}: {', '.join(unpinned)}"] if unpinned else []
    others = {origin for each in remote if (origin := elsewhere.get(each.path))}
    notes += [f"served by {origin}, not by the server named" for origin in sorted(others)]
    return tuple(notes)


def _config_of(base: str | None) -> tuple[str, ...]:
    path = None if base is None else os.path.join(base, "config.json")
    return (path,) if path is not None and os.path.isfile(path) else ()


def _url(value: Any, mirror: Mirror) -> Any:
    return mirror.url_of(value) if isinstance(value, str) else value


def _verdict(error: Mapping[str, Any]) -> str:
    kind = getattr(errors, str(error.get("class")), None)
    if not isinstance(kind, type):
        return INCOMPLETE if fault_of(error) is Fault.TRANSIENT else CORRUPT
    if issubclass(kind, (errors.NotFoundError, errors.MissingError, *AWAY)):
        return INCOMPLETE
    return UNSUPPORTED if issubclass(kind, (errors.UnsupportedError, errors.RefusedError, UsageError)) else CORRUPT


def _reason(error: Mapping[str, Any], own: Sequence[str]) -> str:
    """Return the error as one line, without its path when that is the model's own."""
    path = error.get("path")
    return str(revive({**error, "path": None if path in own else path}))
