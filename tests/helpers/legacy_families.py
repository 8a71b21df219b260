"""Where the GGML-era files of the families beside LLaMA are: the committed ones, and the corpus's."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.tokenizers.of_checkpoint import VocabOptions
from helpers.third_party_fixtures import legacy_other

LOSSY = ("gptneox", "dolly-v2", "stablelm", "bloom", "llmrs")
"""Their makers decoded the vocabulary to text."""


ENTRIES = legacy_other()
BY_NAME = {entry["file"]: (root, entry) for root, entry in ENTRIES}


def path_of(file: str) -> str:
    return str(BY_NAME[file][0] / file)


def vocabulary(root: Path, entry: dict) -> VocabOptions:
    """What a user would have to supply: the tokenizer of a file that lost its own, none where there never was one."""
    if entry["arch"] == "rwkv":
        return VocabOptions(none=True)
    return VocabOptions(source=str(root / entry["hf_dir"]) if any(word in entry["file"] for word in LOSSY) else None)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.square(a - b).mean() / np.square(b).mean()))


def rewritten(source: str, change) -> bytes:
    """The file with every tensor record as `change(name, code, shape, data)` gives it."""
    checkpoint = open_checkpoint(source)
    codes = {"F32": 0, "F16": 1, "Q5_0": 6, "Q8_0": 8}
    refs = [ref for ref in checkpoint.tensors.values() if ref.name != "mel_filters"]
    first = min(ref.spans[0].offset - 12 - 4 * len(ref.shape) - len(ref.name) for ref in refs)
    out = bytearray(checkpoint.files[0].read(0, first))
    for ref in refs:
        data = checkpoint.files[0].read(ref.spans[0].offset, ref.nbytes)
        code, shape, data = change(ref.name, codes[ref.type.name], ref.shape, data)
        name = ref.name.encode()
        out += struct.pack("<3i", len(shape), len(name), code) + struct.pack(f"<{len(shape)}i", *shape[::-1])
        out += name + data
    return bytes(out)
