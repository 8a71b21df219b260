"""How the outputs of a job predict a text, beside its source: perplexity, KL divergence, agreement (`compare`).

It is computed in the background by a worker of its own, an output at a time; the ledger has the figures, not the text.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from ggferry.converters.metadata.beside import is_folder
from ggferry.formats.errors import GgferryError, RefusedError, UsageError
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.service.records.ledger import DONE
from ggferry.service.records.owners import is_dead, owner_name
from ggferry.service.records.plan_file import digest_of
from ggferry.service.records.receipts import receipts_of
from ggferry.service.server.guard.callers import Caller
from ggferry.service.server.guard.problems import HttpError
from ggferry.service.server.settings import Settings
from ggferry.service.server.store.database import Store
from ggferry.service.server.work.inspectors import InspectorPool
from ggferry.service.storage.stores import is_remote
from ggferry.support.heavy import sa

RUNNING, READY, BROKEN = "running", "ready", "failed"
LONGEST = 200_000  # characters of a text
CONTEXTS = (64, 128, 256, 512, 1024, 2048)  # tokens of a chunk
MOST_CHUNKS = 64
SECONDS = 3600.0  # for one output
AT_ONCE = 2  # that one token may have under way
SHOWN = 20  # of a job


@dataclass(frozen=True, slots=True)
class OutputQuality:
    """How an output predicts a text; errors are standard errors.

    Attributes:
        outtype: Its type.
        name: Its file.
        bytes: Size of its files.
        bits_per_weight: Bits of its tensors by the number of their elements.
        perplexity: Its perplexity.
        kl_divergence: Mean divergence of its predictions from the source's, in nats.
        kl_99: What 99 of 100 predictions lie below.
        same_top: Share of positions at which both have the same most likely token.
        probability_rms: Root mean square of the difference of the right token's probability.
    """

    outtype: str
    name: str
    bytes: int
    bits_per_weight: float
    perplexity: float
    perplexity_error: float
    kl_divergence: float
    kl_error: float
    kl_99: float
    same_top: float
    same_top_error: float
    probability_rms: float


@dataclass(frozen=True, slots=True)
class Quality:
    """A comparison of a job's outputs with its source on a text.

    Attributes:
        id: Its id.
        job: The job.
        state: 'running', 'ready' or 'failed'.
        sha256: Digest of the text, as UTF-8.
        characters: Length of the text.
        context: Tokens of a chunk.
        chunks: The most chunks that were asked for.
        total: How many outputs there are.
        asked_by: Name of the token that asked for it.
        created: When that was.
        count: Tokens whose prediction counted.
        perplexity: That of the source.
        outputs: Those that were compared so far.
        error: Why it ended without a result.
    """

    id: str
    job: str
    state: str
    sha256: str
    characters: int
    context: int
    chunks: int
    total: int
    asked_by: str
    created: float
    count: int = 0
    perplexity: float | None = None
    perplexity_error: float | None = None
    outputs: list[OutputQuality] = field(default_factory=list)
    error: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """What is compared: source, recipe and outputs of a job, in the folders that confine them, on a text."""

    source: str
    recipe: JSONObject
    trees: Sequence[str]
    outputs: Sequence[tuple[str, str, int, float]]
    text: str
    context: int
    chunks: int


class Qualities:
    """Compares outputs with their sources, one after another."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings, self._owner = store, settings, owner_name()
        self._inspectors = InspectorPool(1, settings.limits, SECONDS)
        self._pool = ThreadPoolExecutor(1, "ggferry-quality")
        self._under_way: set[str] = set()

    def begin(
        self,
        caller: Caller,
        job: str,
        place: tuple[str, Sequence[str], JSONObject],
        text: str,
        context: int,
        chunks: int,
    ) -> Quality:
        """Begin to compare the outputs of a done job with its source on a text, and return what is known of it.

        `place`: the source, the folders that confine it, and the recipe of the job. The same text with the same numbers
        is compared once. Raises NotFoundError, RefusedError, UsageError, HttpError.
        """
        task = self._task(job, place, text, context, chunks)
        sha256 = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        key = digest_of([job, sha256, context, chunks])[:32]
        table = self._store.t.qualities
        known = next((each for each in self.of(job) if each.id == key), None)
        if known is not None and known.state != BROKEN:
            return known
        held = sa.select(table.c.id, table.c.owner).where(table.c.token == caller.token.owner, table.c.state == RUNNING)
        if sum(not self._is_lost(row, self._under_way) for row in self._store.all(held)) >= AT_ONCE:
            detail = f"this token has {AT_ONCE} comparisons under way"
            raise HttpError(429, "too_many_comparisons", detail, headers={"Retry-After": "30"})
        values: JSONObject = {
            "job": job,
            "token": caller.token.owner,
            "name": caller.name,
            "state": RUNNING,
            "sha256": sha256,
            "characters": len(text),
            "context": context,
            "chunks": chunks,
            "total": len(task.outputs),
            "result": None,
            "error": None,
            "created": time.time(),
            "owner": self._owner,
        }
        insert = self._store._insert(table).values(id=key, **values)
        self._under_way.add(key)
        try:
            self._store.do(lambda c: c.execute(insert.on_conflict_do_update(index_elements=["id"], set_=values)))
            self._pool.submit(self._run, key, task)
        except BaseException:
            self._under_way.discard(key)
            raise
        return next(each for each in self.of(job) if each.id == key)

    def of(self, job: str) -> list[Quality]:
        """Return what is known of a job, the newest first."""
        table = self._store.t.qualities
        query = sa.select(table).where(table.c.job == job).order_by(table.c.created.desc()).limit(SHOWN)
        before = set(self._under_way)
        rows = self._store.all(query)
        return [_shown(row, self._is_lost(row, before | self._under_way)) for row in rows]

    def _is_lost(self, row: Mapping[str, Any], under_way: Set[str]) -> bool:
        """Return whether nobody is at a comparison: its server ended, or this one could not write down its result."""
        return is_dead(row["owner"]) if row["owner"] != self._owner else row["id"] not in under_way

    def close(self) -> None:
        """End: what is not done is shown as interrupted."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._inspectors.close()

    def _task(
        self, job: str, place: tuple[str, Sequence[str], JSONObject], text: str, context: int, chunks: int
    ) -> _Task:
        if not 1 <= len(text) <= LONGEST:
            raise UsageError("the text", found=f"{len(text)} characters", expected=f"1 to {LONGEST}")
        if context not in CONTEXTS or not 1 <= chunks <= MOST_CHUNKS:
            expected = f"{', '.join(map(str, CONTEXTS))}; 1 to {MOST_CHUNKS}"
            raise UsageError("tokens of a chunk, and chunks", found=f"{context}, {chunks}", expected=expected)
        row, (source, trees, recipe) = self._store.row(job), place
        if row["state"] != DONE or row["receipt"] is None or is_remote(str(row["output"])):
            raise RefusedError(
                "only outputs of a done job on this server are compared", found=row["state"], expected=DONE
            )
        if is_remote(source):
            raise RefusedError("its source is not on this machine", path=source, hint="compare two local models")
        named = [_output_of(str(row["output"]), receipt) for receipt in receipts_of(row["receipt"])]
        return _Task(source, recipe, [*trees, self._settings.outputs], named, text, context, chunks)

    def _run(self, key: str, task: _Task) -> None:
        try:
            self._compare(key, task)
        finally:
            self._under_way.discard(key)

    def _compare(self, key: str, task: _Task) -> None:
        result: JSONObject = {"outputs": []}
        values: JSONObject
        try:
            for outtype, path, size, bits in task.outputs:
                found = self._inspectors.ask(self._command(task, path), seconds=SECONDS)
                last = found["chunks"][-1]
                made = OutputQuality(
                    outtype,
                    os.path.basename(path),
                    size,
                    bits,
                    *_figure(last["perplexity_b"]),
                    *_figure(last["kl_divergence"]),
                    float(found["percentiles"]["0.99"]),
                    *_figure(last["same_top"]),
                    float(last["probability_rms"]["value"]),
                )
                perplexity, error = _figure(last["perplexity_a"])
                result |= {"count": found["count"], "perplexity": perplexity, "perplexity_error": error}
                result["outputs"].append(asdict(made))
                self._write(key, result=result)
            values = {"state": READY}
        except GgferryError as error:
            values = {"state": BROKEN, "error": {**error.as_dict(), "class": type(error).__name__}}
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            values = {"state": BROKEN, "error": {"code": "internal", "message": message, "hint": "please report it"}}
        self._write(key, **values)

    def _command(self, task: _Task, output: str) -> JSONObject:
        options = {
            "second": output,
            "arch": task.recipe.get("arch"),
            "hparams": task.recipe.get("hparams"),
            "text": task.text,
            "context": task.context,
            "chunks": task.chunks,
            "jobs": self._settings.limits.threads,
        }
        return {
            "op": "look",
            "question": "quality",
            "source": task.source,
            "trees": [*task.trees],
            "options": options,
        }

    def _write(self, key: str, **values: Any) -> None:
        table = self._store.t.qualities
        condition = (table.c.id == key) & (table.c.owner == self._owner)
        self._store.run(sa.update(table).where(condition).values(**values))


def _output_of(output: str, receipt: Mapping[str, Any]) -> tuple[str, str, int, float]:
    """Return what an output is called by its type, its path, its bytes, and the bits of a weight."""
    files, tensors = receipt["output"]["files"], receipt["tensors"]
    elements, size = sum(prod(tensor["shape"]) for tensor in tensors), sum(each["bytes"] for each in files)
    if is_folder(receipt):
        kind, path = str(receipt["to"]), output
        weights = sum(each["bytes"] for each in files if str(each["name"]).endswith(".safetensors"))
    else:
        kind, path = str(receipt["options"]["outtype"]), os.path.join(os.path.dirname(output), files[0]["name"])
        weights = sum(tensor["bytes"] for tensor in tensors)
    return kind, path, size, 8 * weights / elements if elements else 0.0


def _figure(found: JSONObject) -> tuple[float, float]:
    return float(found["value"]), float(found["error"])


_LOST: JSONObject = {
    "code": "interrupted",
    "message": "the server ended, or its disk was full, while it compared",
    "hint": "compare again",
}


def _shown(row: JSONObject, lost: bool) -> Quality:
    lost = lost and row["state"] == RUNNING
    result = row["result"] or {}
    same = ("id", "job", "sha256", "characters", "context", "chunks", "total", "created")
    return Quality(
        **{name: row[name] for name in same},
        state=BROKEN if lost else row["state"],
        asked_by=row["name"],
        count=int(result.get("count") or 0),
        perplexity=result.get("perplexity"),
        perplexity_error=result.get("perplexity_error"),
        outputs=[OutputQuality(**each) for each in result.get("outputs", ())],
        error=_LOST if lost else row["error"],
    )
