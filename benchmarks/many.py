"""Archives of many tiny models: python benchmarks/many.py [--models 300] [--jobs 2] [--verify fast] [--engine local]

Plans an archive of models of about 30 KB each, half of them files of the GGML era, half checkpoint folders, every one
with a name of its own and other weights, and applies the plan. A model is so small that what is measured is what a job
costs beyond its bytes. Printed of either command: models a second, and processor seconds a model, of all processes
together. `--trace` says of how many system calls that flush a job consists (strace must be there).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from plan import _tokenizer

from helpers.builders import Llama

WIDTH, HIDDEN, LAYERS, TOKENS = 32, 32, 1, 300
NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty")


def build(root: Path, models: int) -> None:
    """Fill `root` with so many models, a thousand in each folder, all different."""
    shape = Llama(n_vocab=TOKENS, n_embd=WIDTH, n_head=4, n_head_kv=4, n_layer=LAYERS, n_ff=HIDDEN, kind="F16", ftype=1)
    legacy, texts = bytearray(shape.bytes()), _texts()
    header, size = _header()
    for number in range(models):
        folder = root / f"{number // 1000:03}"
        name = f"{NAMES[number % 10]}-{NAMES[number // 10 % 10]}-{number}"
        mark = struct.pack("<4e", *(1 + number // 64**n % 64 / 64 for n in range(4)))  # exact in either type
        if number % 2:
            folder.mkdir(parents=True, exist_ok=True)
            legacy[-8:] = mark
            (folder / f"{name}.bin").write_bytes(legacy)
            continue
        (folder / name).mkdir(parents=True)
        for file, text in texts.items():
            (folder / name / file).write_text(text)
        weights = random.Random(0).randbytes(size // 2)
        body = b"".join(weights[i : i + 1] + b"\x3f" for i in range(size // 2 - 4)) + _bf16(mark)
        (folder / name / "model.safetensors").write_bytes(header + body)


def _bf16(mark: bytes) -> bytes:
    return b"".join(struct.pack("<f", value)[2:] for value in struct.unpack("<4e", mark))


def _texts() -> dict[str, str]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "vocab_size": TOKENS,
        "hidden_act": "silu",
    }
    return {"config.json": json.dumps(config), **_tokenizer(TOKENS)}


def _header() -> tuple[bytes, int]:
    """The header of a safetensors file, and the bytes of its tensors."""
    square, wide = (WIDTH, WIDTH), (HIDDEN, WIDTH)
    layer = dict.fromkeys((f"self_attn.{each}_proj" for each in "qkvo"), square)
    layer |= {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": wide[::-1]}
    layer |= {"input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (TOKENS, WIDTH), "model.norm": (WIDTH,)}
    shapes |= {f"model.layers.{n}.{name}": shape for n in range(LAYERS) for name, shape in layer.items()}
    table, end = {}, 0
    for name, shape in (shapes | {"lm_head": (TOKENS, WIDTH)}).items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if shape[1:] else 1)
        table[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text, end


def measured(what: str, models: int, *arguments: object, trace: bool = False) -> None:
    """Run a command of ggferry, and print what it took."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "ggferry", *map(str, arguments)]
    counting = ["strace", "-f", "-qq", "-c", "-e", "trace=fsync,fdatasync,syncfs,sync_file_range"] if trace else []
    done = subprocess.run([*counting, *command], capture_output=True, text=True, check=False)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    print(
        f"{what}: {models} models in {wall:.1f} s, {models / wall:.1f} a second; "
        f"{1e3 * (user + system) / models:.2f} ms of CPU a model ({user:.1f} s user, {system:.1f} s system)"
    )
    if trace:
        print(done.stderr)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", type=int, default=300)
    options.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--verify", default="fast")
    options.add_argument("--engine", default="local")
    options.add_argument("--plan-only", action="store_true")
    options.add_argument("--trace", action="store_true")
    options.add_argument("--folder")
    args = options.parse_args()
    root = Path(tempfile.mkdtemp(prefix="ggferry-bench-", dir=args.folder))
    print(f"load before: {os.getloadavg()[0]:.1f}; {args.jobs} processes")
    try:
        build(root / "in", args.models)
        plan, jobs = root / "plan.jsonl", ("-j", args.jobs)
        to = ("--dest", root / "out", "--verify", args.verify)
        measured("plan", args.models, "plan", root / "in", "-o", plan, *to, *jobs)
        if not args.plan_only:
            run = ("apply", plan, "--ledger", root / "ledger.db", "--engine", args.engine, *jobs)
            measured("apply", args.models, *run, trace=args.trace)
            made = sum(1 for _ in (root / "out").rglob("*.gguf"))
            assert made == args.models, f"{made} outputs"
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
