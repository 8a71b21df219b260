"""The list of what llama.cpp's loader asks for, on files of today's converter that llama.cpp loads and does not load:
architectures of which we have no table yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggferry.converters.proof import runtime_keys as runtime
from ggferry.formats.gguf.values import Value
from ggferry.formats.gguf.values import ValueType as T
from helpers.third_party_fixtures import CORPUS

pytestmark = pytest.mark.corpus
REFUSED = {
    "exaone3": "exaone.attention.layer_norm_rms_epsilon",
    "seed_oss_outbias": "blk.{n}.attn_output.bias",
}
"""What the manifest says of them: llama.cpp requires another epsilon, and has no bias for the attention's output."""


def value(kind: str, data: Any) -> Value:
    if kind.startswith("ARRAY/"):
        return Value(T.ARRAY, tuple(data), T[kind.partition("/")[2]])
    return Value(T[kind], data)


def test_it_takes_what_ran_and_names_what_did_not_load() -> None:
    assert CORPUS is not None
    found: list[tuple[str, str]] = []
    records = sorted(path for path in (CORPUS / "arch").glob("*/*.f32.gguf.json") if "mmproj" not in path.name)
    assert len(records) > 100
    for path in records:
        record = json.loads(path.read_text())
        metadata = {key: value(*stored) for key, stored in record["kv"].items()}
        metadata["tokenizer.ggml.tokens"] = Value(T.ARRAY, ("a",), T.STRING)  # the records leave long arrays out
        ours = runtime.check(metadata["general.architecture"].data, metadata, names(record["tensors"]))
        found += [(path.parent.name, finding.what) for finding in ours if finding.kind not in ("unread", "unknown")]
    assert dict(found) == REFUSED and len(found) == len(REFUSED)


def names(tensors: Any) -> list[str]:
    return [tensor if isinstance(tensor, str) else tensor[0] for tensor in tensors]


def test_it_finds_the_key_that_a_runtime_forgot() -> None:
    """llama.cpp never reads Qwen2-VL's epsilon and computes with 0 (measured when the corpus was made)."""
    path = Path(CORPUS or "") / "arch/qwen2vl/qwen2vl.f32.gguf.json"
    record = json.loads(path.read_text())
    found = runtime.check("qwen2vl", {key: value(*stored) for key, stored in record["kv"].items()})
    assert ("unread", "qwen2vl.attention.layer_norm_rms_epsilon") in {(finding.kind, finding.what) for finding in found}
