"""vocab.json with merges.txt, the files of transformers' slow byte-level BPE classes → 'gpt2'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ggferry.converters.tokenizers.files import tokenizer_json as hf_json
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, Wanted
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import UnsupportedError
from ggferry.formats.files.local_files import read_text

# Classes whose slow tokenizer reads vocab.json and merges.txt, and the pre-tokenizer each hard-codes
# (transformers, models/*/tokenization_*.py)
SLOW_BPE: Mapping[str, str] = {
    "GPT2Tokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2", "RobertaTokenizer": "gpt-2", "BartTokenizer": "gpt-2",
    "WhisperTokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2",
}  # fmt: skip


def load(wanted: Wanted) -> Tokenizer:
    """vocab.json and merges.txt: a tokenizer.json in two files, whose pre-tokenizer only the class knows."""
    sidecars, pre = wanted.sidecars, wanted.pre
    name = sidecars.text("tokenizer_config.json", "tokenizer_class").removesuffix("Fast")
    known = pre or SLOW_BPE.get(name)
    if known is None:
        raise UnsupportedError(
            "vocab.json and merges.txt do not say how text is cut into words, and the class is not known here",
            path=sidecars.path("vocab.json"), found=name or "no tokenizer_class", expected=", ".join(SLOW_BPE),
            hint="--pre NAME",
        )  # fmt: skip
    path = sidecars.files["merges.txt"]
    lines = read_text(path).split("\n")
    merges = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
    document = {
        "model": {"type": "BPE", "vocab": sidecars.object("vocab.json"), "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    }
    joined = Sidecars({**sidecars.files, "tokenizer.json": path})
    joined.preset("tokenizer.json", document)
    tokenizer = hf_json.load(replace(wanted, sidecars=joined, pre=known))
    origin = "--pre" if pre else f"class {name}"
    return replace(tokenizer, origins={**tokenizer.origins, "pre": origin})


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path("vocab.json") is not None and sidecars.path("merges.txt") is not None


SOURCE = Source("vocab.json", 40, "vocab.json with merges.txt", _probe, load)
