"""Selects `fixtures/` from the corpus: `python tests/helpers/make_fixtures.py CORPUS`; `git diff` shows the changes.

No test runs this. What the corpus does not hold (gguf/, quantize/mixtures.json, README.md) is left alone.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from helpers.peers import record_of

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

LLAMA = """
ggml-20230310-planar/q4_0 ggml-20230315/q4_1 ggml-20230315-2part/q4_0 ggml-20230320/q4_0 ggml-20230320-2part/f16
ggml-20230320-2part/q4_1 ggmf1-20230330/q4_1 ggmf1-20230330-2part/q4_0 ggjt1-0.1.25/f16 ggjt1-0.1.25/q4_0
ggjt1-20230425/q8_0 ggjt1-20230428/q4_0 ggjt1-20230428/q4_3 ggjt1-20230428/q5_1 ggjt1-20230511/q4_1 ggjt1-20230511/q5_0
ggjt1-20230511/q8_0 ggjt2-20230519/q4_0 ggjt2-20230519/q5_0 ggjt2-20230519/q5_1 ggjt3-20230520/q4_1
ggjt3-0.1.77/M256-q3_K_M ggjt3-20230821/q4_0 ggjt3-20230821/q5_0 ggjt3-20230821/q5_1 ggjt3-20230821/q8_0
ggjt3-20230821/G256-q4_0 ggjt3-20230821/A128-q5_1 ggjt3-qkk64/q3_K_S ggjt3-qkk64/q4_K_M ggjt3-qkk64/q5_K_S
ggjt3-qkk64/q6_K
"""
"""Every container, version and era, and in the later ones every block type. F32 files are F16 files made wider."""

OTHER = """
bloom/bloom-s64-bloomzcpp-q4_1 bloom/bloom-s64-llmrs-f16 bloom/bloom-s64-llmrs-ggjt-q5_0 bloom/bloom-s64-llmrs-ggml-q8_0
dolly-v2/dolly-k256-g2-q2_k dolly-v2/dolly-k256-g2-q5_k dolly-v2/dolly-nopar-s64-g0-q4_0
dolly-v2/dolly-nopar-s64-g1-q8_0 dolly-v2/dolly-s64-g2-q4_0
falcon/falcon40b-s64-ggcc-q4_1 falcon/falcon40b-s64-ggcc-q5_0 falcon/falcon40b-s64-ggcc-q5_1
falcon/falcon40b-s64-ggcc-q8_0 falcon/falcon40b-s64-jploski-f16 falcon/falcon7b-k256-ggcc-q4_k
falcon/falcon7b-s64-ggmf-f16 falcon/falcon7b-s64-jploski-f16 falcon/falcon7b-s64-jploski-q4_0
gpt2/gpt2-s64-g0-q8_0 gpt2/gpt2-s64-g04-q4_3 gpt2/gpt2-s64-g1-q5_1 gpt2/gpt2-s64-g2-q5_0 gpt2/gpt2-s64-llmrs-ggjt-q4_0
gpt2/gpt2-s64-llmrs-ggml-q4_1 gpt2/gpt2-s64-pre20230329-h5script-f16
gptj/gptj-s64-g0-q4_1 gptj/gptj-s64-g0-q5_1 gptj/gptj-s64-g04-q4_2 gptj/gptj-s64-g1-q4_1 gptj/gptj-s64-g2-q8_0
gptj/gptj-s64-llmrs-ggjt-q4_1 gptj/gptj-s64-llmrs-ggml-q4_0 gptj/gptj-s64-pre20230329-f16
gptneox/gptneox-par-s64-g1-q5_0 gptneox/gptneox-par-s64-g2-q4_0 gptneox/gptneox-par-s64-llmrs-ggjt-q5_1
gptneox/gptneox-par-s64-llmrs-ggjt-q8_0 gptneox/gptneox-par-s64-llmrs-ggml-q4_1 gptneox/gptneox-seq-s64-f16
mpt/mpt-clip-s64-g2-q4_0 mpt/mpt-s64-f16 mpt/mpt-s64-g1-q4_0 mpt/mpt-s64-llmrs-ggjt-q4_0 mpt/mpt-s64-llmrs-ggml-q5_0
mpt/mpt-s64-llmrs-ggml-q5_1
replit/replit-s64-f16 replit/replit-s64-g1-q4_1 replit/replit-s64-g2-q4_1
rwkv/rwkv4-s64-rwkv100-q4_2 rwkv/rwkv4-s64-rwkv100-q5_0 rwkv/rwkv4-s64-rwkv101-q4_1 rwkv/rwkv4-s64-rwkv101-q5_1
rwkv/rwkv4-s64-rwkvOld-q4_0 rwkv/rwkv4-s64-rwkvOld-q4_1_o
stablelm/stablelm-nopar-s64-f16 stablelm/stablelm-nopar-s64-g0-q5_0 stablelm/stablelm-nopar-s64-g04-q4_0
stablelm/stablelm-nopar-s64-g04-q4_1
starcoder/starcoder-s64-f16 starcoder/starcoder-s64-g1-q4_0 starcoder/starcoder-s64-g2-q5_1
whisper/whisper-v600-q5_0
"""
"""Every family by every program that wrote it, and every block type by every version of the quantizers."""

OTHER_TOO = """
rwkv/expected_logits.bin whisper/for-tests-ggml-tiny.en.bin hf/rwkv4-s64/rwkv4-tiny.pth hf/whisper-v600/tiny.pt
hf/whisper-v600/mel_seed.npz hf/whisper-v600/enc_first8.npy
"""
WEIGHTS = (
    "bloom-s64",
    "falcon40b-s64",
    "falcon7b-s64",
    "gpt2-s64",
    "gptj-s64",
    "gptneox-par-s64",
    "gptneox-seq-s64",
    "mpt-clip-s64",
    "mpt-s64",
    "replit-s64",
    "starcoder-s64",
)
"""Their floats are compared with the legacy files'."""
BESIDE = ("config.json", "logits.json", "logits.npy", "spiece.model", "tokenizer.json", "tokenizer_config.json")
"""Of a legacy file's Hugging Face model."""

NOT_CHECKPOINTS = ("llama_linear_rope", "tinyphi")
WHOLE = (
    "hf/out/llama/llama.f32.gguf",
    "hf/out/llama/llama.q8_0.gguf",
    "quantize/k256.Q4_K_M.gguf",
    "quantize/im_k256.IQ1_S.gguf",
)
"""Files that llama.cpp wrote and that are kept as they are; the others are records."""
NOT_AGAIN = ("hf/out/t5/t5.q8_0.gguf",)
"""Has F16 where we keep F32 (the table of relative positions)."""


def copy(corpus: Path, name: str) -> None:
    target = FIXTURES / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(corpus / name, target)


def write_json(name: str, value: Any, indent: int | None = 0) -> None:
    (FIXTURES / name).parent.mkdir(parents=True, exist_ok=True)
    (FIXTURES / name).write_text(json.dumps(value, indent=indent, ensure_ascii=indent is None) + "\n")


def select_llama(corpus: Path) -> None:
    folder, wanted = "legacy-llama", {f"{name}.bin" for name in LLAMA.split()}
    manifest = json.loads((corpus / folder / "MANIFEST.json").read_text())
    manifest["files"] = [
        {key: value for key, value in entry.items() if not key.startswith(("logits_era", "logits_e07"))}
        for entry in manifest["files"]
        if entry["file"] in wanted
    ]
    for entry in manifest["files"]:
        parts = sorted((corpus / folder).glob(f"{entry['file']}*"))
        for part in (path for path in parts if path.suffix != ".npy"):
            copy(corpus, str(part.relative_to(corpus)))
        if "logits_f64" in entry:
            copy(corpus, f"{folder}/{entry['logits_f64']}")
    for pattern in ("sentences.txt", "tokens16.txt", "tokenizer.model", "lora/*", "pth/*/*"):
        for path in (corpus / folder).glob(pattern):
            copy(corpus, str(path.relative_to(corpus)))
    copy(corpus, f"{folder}/ggmf1-20230330/f16.bin.logits_f64.npy")  # what the pth shards compute
    write_json(f"{folder}/MANIFEST.json", manifest)


def select_other(corpus: Path) -> None:
    folder, wanted = "legacy-other", {f"{name}.bin" for name in OTHER.split()}
    entries = [e for e in json.loads((corpus / folder / "MANIFEST.json").read_text()) if e["file"] in wanted]
    for entry in entries:
        copy(corpus, f"{folder}/{entry['file']}")
        if (corpus / folder / entry.get("runtime_logits", "/")).is_file():
            copy(corpus, f"{folder}/{entry['runtime_logits']}")
        model = Path(folder, entry["hf_dir"])
        for name in (*BESIDE, *(("model.safetensors",) if model.name in WEIGHTS else ())):
            if (corpus / model / name).is_file():
                copy(corpus, str(model / name))
    for name in OTHER_TOO.split():
        copy(corpus, f"{folder}/{name}")
    for path in (corpus / folder / "dequant").iterdir():
        copy(corpus, str(path.relative_to(corpus)))
    write_json(f"{folder}/MANIFEST.json", entries)


def select_hf(corpus: Path) -> None:
    manifest = json.loads((corpus / "hf/MANIFEST.json").read_text())
    for name in NOT_CHECKPOINTS:
        del manifest["models"][name]
    write_json("hf/MANIFEST.json", manifest)
    for name in manifest["models"]:
        for path in (corpus / "hf/ckpt" / name).iterdir():
            copy(corpus, str(path.relative_to(corpus)))
        for path in (corpus / "hf/out" / name).glob("*_logits_f32.npy"):
            copy(corpus, str(path.relative_to(corpus)))
        for path in (corpus / "hf/out" / name).glob("*.gguf"):
            keep(corpus, str(path.relative_to(corpus)), f"hf/ckpt/{name}", path.name.split(".")[1])


def keep(corpus: Path, name: str, source: str, outtype: str, imatrix: str | None = None) -> None:
    """A GGUF of another program: whole, or its record."""
    if name in WHOLE:
        copy(corpus, name)
    elif name not in NOT_AGAIN:
        write_json(f"{name}.json", record_of(corpus / name, source, outtype, imatrix), indent=None)


def select_quantize(corpus: Path) -> None:
    matrix, f16 = "quantize/k256.imatrix.gguf", "quantize/k256.F16.gguf"
    copy(corpus, matrix)
    keep(corpus, f16, "hf/ckpt/llama_k256", "f16")
    for path in (corpus / "quantize").glob("*k256.*.gguf"):
        name = f"quantize/{path.name}"
        if name not in (matrix, f16):
            keep(corpus, name, f16, path.name.split(".")[1], matrix if path.name.startswith("im_") else None)
    packed = gzip.compress((corpus / "quantize/QUANT_MIX.json").read_bytes(), mtime=0)
    (FIXTURES / "quantize/QUANT_MIX.json.gz").write_bytes(packed)


def main(corpus: Path) -> None:
    for name in ("gguf", "README.md", "quantize/mixtures.json"):
        assert (FIXTURES / name).exists(), name
    for name in ("legacy-llama", "legacy-other", "hf", "lora", "tokenizers"):
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
    for path in (FIXTURES / "quantize").glob("*k256*"):
        path.unlink()
    select_llama(corpus)
    select_other(corpus)
    select_hf(corpus)
    select_quantize(corpus)
    for folder in ("lora", "tokenizers"):
        for path in (corpus / folder).rglob("*"):
            if path.is_file():
                copy(corpus, str(path.relative_to(corpus)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
