"""The examples of the pages: what is typed, what is shown, and the files that they are typed among."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

from helpers.attack_tools import Typed, typed
from helpers.checkpoints import MEGATRON_LLAMA, write_checkpoint
from helpers.ollama_store import make_model
from helpers.page_models import MODELS
from helpers.third_party_fixtures import ROOT

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.S | re.M)
INLINE = re.compile(r"`((?:ggferry|convert) [a-z][^`]*)`")
NUMBER = re.compile(r"-?\d[\d,.]*(?:e-?\d+)?%?")


@dataclass(frozen=True)
class Example:
    """A command of a page.

    Attributes:
        page: the page, from the root
        command: what is typed, its lines joined, without the comment behind it
        shown: what the page shows of its output; None where the block shows none
    """

    page: str
    command: str
    shown: str | None


def examples(page: str) -> list[Example]:
    """Return the commands of a page's blocks, in their order."""
    found = []
    for kind, block in BLOCK.findall((ROOT / page).read_text()):
        if kind == "console":
            parts = (part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.M)[1:])
            found += [Example(page, without_comment(command), shown) for command, _, shown in parts]
            continue
        lines = block.replace("\\\n", " ").splitlines()
        found += [Example(page, without_comment(line), None) for line in lines if without_comment(line)]
    return found


def without_comment(line: str) -> str:
    """Return a line of a shell without what stands behind a hash."""
    return re.sub(r"(^|\s+)#.*", "", line).strip()


def equal_to_shown(printed: str, shown: str, figures: bool = True) -> bool:
    """Whether an output is what a page shows: `…` stands for anything. Figures of a proof may be any, as libraries
    round in the last digits; without `figures`, all of them may."""
    printed = re.sub("(?m)^note     compiling the kernels.*\n", "", printed)
    pattern = re.sub("(?m)^…\n", "\0", with_one_figure(shown, figures))
    pattern = re.escape(pattern).replace("\\\0", "(?:.*\n)*").replace("\0", "(?:.*\n)*").replace("…", ".*")
    return re.fullmatch(pattern, with_one_figure(printed, figures)) is not None


def with_one_figure(text: str, figures: bool) -> str:
    """Return a text with one figure for every figure in its lines of proof, or in all."""
    lines = text.splitlines(True)
    return "".join(
        line if figures and not line.startswith("proved") else re.sub(" +", " ", NUMBER.sub("0", line))
        for line in lines
    )


def line_of(example: Example) -> str:
    """Return a command in which the page's placeholders are files of the folder, and what may be left out is."""
    line = example.command
    for name, value in NAMES.get(example.page, {}).items():
        line = re.sub(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", value, line)
    return re.sub(r"\s\[(?:--|\S+ …)[^\]]*\]|…(?=\s|$)", "", line)


def run(line: str) -> Typed:
    """Type a command of ours in this process, and any other in a shell. What an example before it wrote is replaced."""
    words = shlex.split(line.partition(" | ")[0]) if line.startswith(("ggferry ", "convert ")) else []
    if words:
        again = "--force" if words[words[0] == "ggferry"] in ("convert", "sign", "merge") or " --out " in line else ""
        return typed(*words[words[0] == "ggferry" :], *filter(None, [again]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    return Typed(done.returncode, done.stdout, done.stderr)


LLAMA, OLD, WIDE = "hf/ckpt/llama", "legacy-llama/ggjt1-20230428/q4_0.bin", "hf/ckpt/llama_k256"
F32, Q8_0 = "hf/out/llama/llama.f32.gguf", "hf/out/llama/llama.q8_0.gguf"
COMMANDS = {
    "old.bin": OLD, "DIR": LLAMA, "in.gguf": F32, "x.gguf": F32, "B.gguf": F32, "C.gguf": Q8_0, "models/old.bin": OLD
}  # fmt: skip
FILES: dict[str, dict[str, str]] = {
    "README.md": COMMANDS,
    "docs/cli.md": COMMANDS,
    "docs/archives.md": {"models/old.bin": OLD, "models/llama": LLAMA},
    "docs/compare.md": {"wide": WIDE, "A": F32, "B": Q8_0, "C": Q8_0},
    "docs/doctor.md": {"sha256-abc": F32},
    "docs/edit-split-merge.md": {"model.gguf": F32},
    "docs/export.md": {"old.bin": OLD, "wide": WIDE},
    "docs/hash-diff-verify.md": {"model.gguf": F32, "model-q8_0.gguf": Q8_0, "llama": LLAMA},
    "docs/inspect.md": {"llama.q8_0.gguf": Q8_0},
    "docs/mlx.md": {"wide": WIDE},
    "docs/ollama.md": {"DIR": LLAMA},
    "docs/publish.md": {"llama": LLAMA},
    "docs/quality.md": {"wide": WIDE},
    "docs/recipes.md": {"DIR": LLAMA},
    "docs/traces.md": {"DIR": LLAMA},
    "docs/formats/ik-llama.md": {"X-IQ4_K.gguf": "ik-llama/own.gguf"},
    "docs/formats/training-checkpoints.md": {
        "run/global_step_500/actor": "training/fsdp",
        "run/checkpoints": "training/megatron/llama/torch",
    },
    "docs/formats/llama2c-llmc.md": {
        "stories15M.bin": "llama2c/v0.bin",
        "tokenizer.bin": "llama2c/tokenizer.bin",
        "gpt2_124M.bin": "llmc/float32.bin",
        "gpt2_tokenizer.bin": "llmc/gpt2_tokenizer.bin",
    },
    "docs/formats/small-ggml-programs.md": {
        "ggml-model-q4_0.bin": "clip-cpp/q4_0.bin",
        "ggml-model-f16.bin": "clip-cpp/f16.bin",
        "clip-vit-base-patch32": "clip-cpp/checkpoint",
    },
}
"""Page → the files and folders that its examples name: copies of fixtures."""

KEY = "openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out private.pem"
MADE: dict[str, tuple[str, ...]] = {
    "README.md": (KEY,),
    "docs/compare.md": tuple(
        f"ggferry convert wide --outtype {name} -o {name}.gguf --verify none"
        for name in ("f16", "q4_0", "q8_0", "q2_k", "q4_k_m")
    ),
    "docs/export.md": ("ggferry convert wide --outtype q4_k_m -o model.gguf --verify none",),
    "docs/hash-diff-verify.md": ("ggferry convert llama -o proved.gguf --verify fast",),
    "docs/mlx.md": ("ggferry convert wide --outtype q4_k_m -o model.Q4_K_M.gguf --verify none",),
    "docs/publish.md": ("mkdir out", "ggferry convert llama --outtype q8_0 -o out/b-q8_0.gguf --verify fast"),
    "docs/quality.md": ("ggferry convert wide -o model.gguf --verify none",),
}
"""Page → what is typed before its examples."""

NAMES: dict[str, dict[str, str]] = {
    "README.md": {
        "FILE": "text.txt", "inspect text.txt": "inspect in.gguf", "SOURCE OUTPUT": "in.gguf out.gguf", "A": "in.gguf",
        "B": "B.gguf", "C": "C.gguf", "model.gguf": "out.gguf",
    },
    "docs/cli.md": {
        "CHECKPOINT_DIR": "DIR", "--text FILE": "--text text.txt", "--file F": "", "MODEL": "x.gguf",
        "SOURCE OUTPUT": "old.bin new.gguf", "FILE": "in.gguf", "--coverage LIST": "--coverage classes.json",
        "A B": "in.gguf B.gguf", "C": "C.gguf", "general.name=…": "general.name=x", "4G": "200K",
        "merge SHARD": "merge in-00001-of-00003.gguf", "/models s3://old/models": "models", "s3://new/gguf": "out",
    },
    "docs/archives.md": {"/models": "models", "/gguf": "out"},
    "docs/hash-diff-verify.md": {
        "model.gguf --receipt model.gguf.receipt.json": "proved.gguf --receipt proved.gguf.receipt.json",
        "verify model.gguf --sample": "verify proved.gguf --sample", "sign model.gguf": "sign proved.gguf",
        "verify model.gguf --signed": "verify proved.gguf --signed",
    },
    "docs/recipes.md": {"MODEL": "DIR"},
    "docs/traces.md": {
        "MODEL": "DIR",
        "tools/trace_times.py": f"{ROOT}/tools/trace_times.py",
        "tools/trace_scaling.py": f"{ROOT}/tools/trace_scaling.py",
    },
    "docs/ollama.md": {"~/.ollama": ".home/.ollama", "/archive": "archive"},
    "docs/formats/training-checkpoints.md": {
        "run/checkpoints/iter_0005000": "run/checkpoints/iter_0000007", "--tokenizer Llama-3.1-8B": "--no-vocab",
        "--hf-config Llama-3.1-8B": "--hf-config Llama-3.1-8B --no-vocab",
    },
}  # fmt: skip
"""Page → what stands for a file of yours → the file of the folder that is taken for it."""


def prepare(page: str, folder: Path, fixtures: Path) -> None:
    """Put the files of a page into a folder."""
    for name, source in FILES.get(page, {}).items():
        target = folder / name
        target.parent.mkdir(exist_ok=True, parents=True)
        if (fixtures / source).is_dir():
            shutil.copytree(fixtures / source, target)
        else:
            shutil.copy(fixtures / source, target)
    text = (fixtures / "legacy-llama" / "sentences.txt").read_text()
    for name in ("text.txt", "a.txt", "code.txt", "calibration.txt"):
        (folder / name).write_text(text * 6)
    if page in MODELS:
        MODELS[page](folder)
    for line in MADE.get(page, ()):
        done = run(line)
        assert done.code == 0, done.err
    if page in ("docs/edit-split-merge.md", "docs/hash-diff-verify.md"):
        raw = (folder / "model.gguf").read_bytes()
        (folder / "model.gguf.part1of2").write_bytes(raw[:300000])
        (folder / "model.gguf.part2of2").write_bytes(raw[300000:])
        (folder / "model.manifest").write_text(typed("hash", folder / "model.gguf", "--no-layer").out)
        (folder / "damaged.gguf").write_bytes(raw[:13_000] + b"\xff" * 8 + raw[13_008:])
    if page == "docs/doctor.md":
        prepare_broken(folder, fixtures)
    if page == "docs/ollama.md":
        store = folder / ".home" / ".ollama" / "models"
        make_model(store, "library/llama3.2/3b", {"model": fixtures / F32})
        make_model(store, "me/model/latest", {"model": fixtures / F32}, {"template": "{{ .Prompt }}"})
    if page == "docs/formats/training-checkpoints.md":
        write_checkpoint(folder / "Qwen3-8B", fixtures)
        (folder / "Llama-3.1-8B").mkdir()
        (folder / "Llama-3.1-8B" / "config.json").write_text(json.dumps(MEGATRON_LLAMA))
    if page == "docs/recipes.md":
        settings = json.loads((folder / "DIR" / "tokenizer_config.json").read_text())
        settings["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
        (folder / "DIR" / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "chat.jsonl").write_text(
            '{"messages": [{"role": "user", "content": "%s"}]}\n' % ("The cat sat. " * 400)
        )
    if page == "docs/cli.md":
        (folder / "classes.json").write_text(json.dumps(["LlamaForCausalLM", "NobodyForCausalLM"]))
        (folder / "manifest").write_text(typed("hash", folder / "in.gguf").out)


def prepare_broken(folder: Path, fixtures: Path) -> None:
    """Put what `doctor` is for into a folder: downloads that went wrong, and models of other programs."""
    lfs = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 134217728\n"
    (folder / "model.safetensors").write_text(lfs)
    (folder / "page.bin").write_text("<!DOCTYPE html>\n<html><body>Sign in</body></html>\n")
    (folder / "cut.gguf").write_bytes((fixtures / Q8_0).read_bytes()[:60_000])
    (folder / "ct2").mkdir()
    (folder / "ct2" / "config.json").write_text("{}")
    (folder / "ct2" / "shared_vocabulary.json").write_text("[]")
    (folder / "ct2" / "model.bin").write_bytes(b"\6\0\0\0\x10\0TransformerSpec\0" + bytes(64))
    big_endian(fixtures / Q8_0, folder / "llama-be.gguf")


def big_endian(model: Path, path: Path, kinds: str = "Q8_0") -> Path:
    """Write a model as gguf-py does it big-endian: numbers are swapped, bytes (BF16, quantized) are not."""
    reader, writer = gguf.GGUFReader(model), gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        if tensor.tensor_type == Q.Q8_0 and kinds != "Q8_0":
            values = gguf.quants.dequantize(tensor.data, Q.Q8_0)
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, Q[kinds]), raw_dtype=Q[kinds])
        else:
            raw = tensor.data if tensor.tensor_type != Q.F32 else np.array(tensor.data)
            writer.add_tensor(tensor.name, raw, raw_dtype=tensor.tensor_type if raw.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
