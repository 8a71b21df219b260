"""Read vocab.json with merges.txt, the files of transformers' slow byte-level BPE classes → 'gpt2'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.tokenizers.building_blocks.added_tokens import as_entry
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.files import tokenizer_json as hf_json
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.libraries.cross_check import TOKENIZERS, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.json_files.kinds import JSONObject

# Classes whose slow tokenizer reads vocab.json and merges.txt, and the pre-tokenizer each hard-codes
# (transformers, models/*/tokenization_*.py)
SLOW_BPE: Mapping[str, str] = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "RobertaTokenizer": "gpt-2",
    "BartTokenizer": "gpt-2",
    "WhisperTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
}


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of vocab.json and merges.txt.

    They are a tokenizer.json in two files whose pre-tokenizer only the class knows.
    """
    known, origin = _pre(inputs)
    joined = Sidecars({**inputs.sidecars.files, "tokenizer.json": inputs.sidecars.files["merges.txt"]})
    joined.preset("tokenizer.json", _document(inputs.sidecars))
    tokenizer = hf_json.load(replace(inputs, sidecars=joined, pre=known))
    return replace(tokenizer, origins={**tokenizer.origins, "pre": origin})


def _pre(inputs: TokenizerInputs) -> tuple[str, str]:
    """Return the pre-tokenizer's name and what states it. Raises UnsupportedError where nothing does."""
    name = inputs.sidecars.text("tokenizer_config.json", "tokenizer_class").removesuffix("Fast")
    known = inputs.pre or SLOW_BPE.get(name)
    if known is None:
        raise UnsupportedError(
            "vocab.json and merges.txt do not say how text is cut into words, and the class is not known here",
            path=inputs.sidecars.path("vocab.json"),
            found=name or "no tokenizer_class",
            expected=", ".join(SLOW_BPE),
            hint="--pre NAME",
        )
    return known, "--pre" if inputs.pre else f"class {name}"


def _document(sidecars: Sidecars) -> JSONObject:
    """Return what a tokenizer.json would hold, but for the pre-tokenizer's pattern."""
    lines = read_text(sidecars.files["merges.txt"]).split("\n")
    merges = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    return {
        "model": {"type": "BPE", "vocab": sidecars.object("vocab.json"), "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False},
    }


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return tokenizers, with the class's pattern: GPT-2's is the library's own, others are spelled out."""
    document, (known, _) = _document(inputs.sidecars), _pre(inputs)
    if known != "gpt-2":
        steps = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in find_pre(known).chain
        ]
        last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, last]}
    document["added_tokens"] = [as_entry(one) for one in inputs.added]
    path = inputs.sidecars.path("vocab.json")
    return ReferenceTokenizer(
        TOKENIZERS, json.dumps(document).encode(), path, inputs.added, forced=inputs.pre is not None
    )


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path("vocab.json") is not None and sidecars.path("merges.txt") is not None


SOURCE = Source("vocab.json", 40, "vocab.json with merges.txt", _probe, load, reference)
