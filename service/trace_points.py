"""What GGFERRY_TRACE shows of a command (docs/traces.md): the functions whose calls become spans."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ggferry.support.platform import here
from ggferry.support.trace_events import Point, begin

VARIABLE = "GGFERRY_TRACE"


def _bytes(_: Any, offset: int, data: Any) -> Mapping[str, Any]:
    return {"offset": offset, "bytes": data if isinstance(data, int) else len(data)}


def _tensor(_: Any, name: str, offset: int, data: Any) -> Mapping[str, Any]:
    return {"tensor": name, "offset": offset, "bytes": memoryview(data).nbytes}


def _encoded(kind: Any, rows: Any, *_: Any) -> Mapping[str, Any]:
    return {"type": kind.name, "elements": rows.size}


def _decoded(codec: Any, rows: Any, columns: int) -> Mapping[str, Any]:
    return {"type": codec.type.name, "rows": len(rows), "columns": columns}


def _rows(_: Any, node: Any, start: int, stop: int, *__: Any) -> Mapping[str, Any]:
    return {"tensor": node.name, "rows": [start, stop]}


def _compared(sides: Any, name: str, *_: Any) -> Mapping[str, Any]:
    return {"tensor": name}


def _chunk(comparison: Any, start: int, stop: int, *_: Any) -> Mapping[str, Any]:
    return {"tensor": comparison.node.name, "rows": [start, stop]}


def _path(_: Any, path: Any = None, *__: Any, **___: Any) -> Mapping[str, Any]:
    return {} if path is None else {"path": str(path)}


def _first_path(path: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
    return {"path": str(path)}


def _job(command: Mapping[str, Any], *_: Any) -> Mapping[str, Any]:
    return {"op": command["op"]}


_CONVERSION, _PROOF = "ggferry.converters.conversion", "ggferry.converters.proof"
_FILES, _GGUF, _FORWARD = "ggferry.formats.files", "ggferry.formats.gguf", "ggferry.converters.forward"

POINTS = (
    Point("ggferry.service.cli.app", "_app", "make options"),
    Point("ggferry.service.cli.app", "_run", "command"),
    # steps
    Point(f"{_CONVERSION}.run", "convert", "convert"),
    Point(f"{_CONVERSION}.run", "open_source_of", "open"),
    Point(f"{_CONVERSION}.run", "plan_conversion", "plan"),
    Point(f"{_CONVERSION}.run", "run", "carry out"),
    Point(f"{_CONVERSION}.run", "others_beside", "begin second reading"),
    Point(f"{_CONVERSION}.run", "check_sums", "check declared digests"),
    Point(f"{_CONVERSION}.run", "_write", "write"),
    Point(f"{_CONVERSION}.run", "prove", "prove"),
    Point(f"{_CONVERSION}.run", "receipts_of", "receipts"),
    Point(f"{_CONVERSION}.verify", "reverify", "verify"),
    Point("ggferry.converters.model_graph.open_checkpoint", "open_checkpoint", "open checkpoint", _first_path),
    Point("ggferry.converters.understand", "understand", "understand"),
    Point("ggferry.support.allocator", "trim_heap", "give memory back"),
    # bytes
    Point(f"{_FILES}.sources", "LocalFile.read", "read", _bytes),
    Point(f"{_FILES}.sources", "LocalFile.read_into", "read", _bytes),
    Point(f"{_FILES}.digests", "FileDigest.update", "digest"),
    Point(f"{_FILES}.digesting", "DigestingSource._my_turn", "turn to digest"),
    Point(f"{_FILES}.digesting", "DigestingSource.record", "digest the rest"),
    Point(f"{_FILES}.digests", "BlockDigests.update", "digest blocks"),
    Point(f"{_GGUF}.write", "GGUFFile.pwrite", "write", _tensor),
    Point(f"{_GGUF}.write", "GGUFFile.finish", "finish file"),
    Point(f"{_GGUF}.write", "GGUFFile.flush", "wait for flush"),
    Point("os", "fsync", "flush"),
    Point(here.__name__, "sync_data", "flush"),
    Point(f"{_FILES}.publication", "publish", "publish"),
    # values
    Point("ggferry.converters.model_graph.rows", "laid_out", "lay out", _rows),
    Point("ggferry.converters.model_graph.rows", "laid_out_values", "lay out", _rows),
    Point("ggferry.quant.codec", "Codec.values", "decode", _decoded),
    Point("ggferry.quant.encode_rows", "encode_rows", "encode", _encoded),
    Point("ggferry.converters.write.watch_weights", "Watch.look", "look for NaN"),
    Point("ggferry.converters.write.watch_weights", "Watch.look_at_values", "look for NaN"),
    Point("ggferry.quant.fingerprints", "Fingerprints.put", "mark rows"),
    Point("ggferry.quant.kernels.kernel_cache", "_Cache.load_overload", "load kernel"),
    Point("ggferry.quant.kernels", "Encoder._rehearse", "make encoder ready"),
    Point("ggferry.quant.kernels", "Compiled.load", "make decoder ready"),
    # the proof
    Point(f"{_PROOF}.compare", "compare_outputs", "compare"),
    Point(f"{_PROOF}.tensors", "check_tensor", "compare tensor", _compared),
    Point(f"{_PROOF}.tensors", "_Comparison.compare_values", "compare rows", _chunk),
    Point("ggferry.quant.accuracy.differences", "differences", "differences"),
    Point("ggferry.quant.accuracy.similarity", "first_unlike", "likeness"),
    Point(f"{_PROOF}.vocabulary", "check_tokenizer", "compare tokenizers"),
    Point(f"{_PROOF}.metadata", "compare_keys", "compare keys"),
    Point(f"{_PROOF}.logits", "check_all_logits", "compare logits"),
    Point(f"{_PROOF}.passes", "run_prompts", "forward passes"),
    Point(f"{_FORWARD}.weights", "Weights.values", "weights"),
    Point(f"{_PROOF}.references.beside", "Beside.reading", "wait for second reading"),
    Point(f"{_PROOF}.references.beside", "Beside.conversations", "wait for conversations"),
    Point("subprocess", "Popen.__init__", "start a program"),
    Point("subprocess", "Popen.wait", "wait for a program"),
    # archives
    Point("ggferry.service.workers.commands", "run", "job", _job),
    Point("ggferry.service.apply.job", "run_job", "job of a worker"),
    Point("ggferry.service.workers.supervisor", "Supervisor._start", "start a worker"),
)
"""A name that is gone is an error of the first traced run, and of `tests/service/test_traces.py`."""


def begin_as_environment_states(*, first: bool) -> Callable[[], None]:
    """Trace this process to the file that the environment names, if it does, and return what ends that.

    `first`: whether this is the command, whose words name the trace, and not a worker of it.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return lambda: None
    words = " ".join(["ggferry", *sys.argv[1:2]]) if first else f"worker {os.getpid()}"
    try:
        return begin(os.path.abspath(path), POINTS, words, first=first)
    except OSError as error:
        os.write(2, f"note     no trace: {VARIABLE}: {error.strerror}\n".encode())
        return lambda: None
