"""Hugging Face checkpoint to GGUF: ggferry against convert_hf_to_gguf.py (and llama-quantize), as ratios in one run.

    python benchmarks/hf.py [--converter convert_hf_to_gguf.py] [--quantize llama-quantize] [--outtypes f16,q8_0,q4_k_m]
        [--ladder q2_k,q3_k_m,q4_k_m,q5_k_m,q6_k,q8_0] [--plot FILE.svg]

The checkpoint is TinyLlama's shapes (1.1 · 10⁹ weights, bf16, 2.2 GB) with random weights. Each command is timed with
an fsync of its output, so that both sides end with the bytes on disk. Beside each stands the floor of the same run
(`floor.py`). Without the peer's paths only ours is measured.
benchmarks/README.md says how to get the peer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from bars import Row, plot
from floor import floor_of
from measured import PREFIX, Cost, best, measure

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER = ROOT / "fixtures" / "legacy-llama" / "tokenizer.model"
WEIGHTS = "model.safetensors"
LEVELS = ("none", "fast", "full")
CONVERTED = ("f16", "bf16", "f32", "q8_0")
"""Types that the peer's converter writes."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 22,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a LlamaForCausalLM, in the order transformers saves them."""
    width, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = width // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "lm_head.weight", (vocab, width)
    yield "model.embed_tokens.weight", (vocab, width)
    shapes = {
        "input_layernorm": (width,),
        "mlp.down_proj": (width, inner),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "post_attention_layernorm": (width,),
        "self_attn.k_proj": (kv, width),
        "self_attn.o_proj": (width, width),
        "self_attn.q_proj": (width, width),
        "self_attn.v_proj": (kv, width),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (width,)


def make(folder: Path, layers: int) -> int:
    """A checkpoint of `layers` blocks in `folder`; returns its size in bytes."""
    folder.mkdir()
    config = CONFIG | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False})
    )
    shutil.copy(TOKENIZER, folder)
    header, at = {}, 0
    for name, shape in tensors(config):
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (at, at + 2 * prod(shape))}
        at += 2 * prod(shape)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    values = np.random.default_rng(0).standard_normal((8 << 20) + 1, np.float32) * np.float32(0.02)
    noise = memoryview((values.view(np.uint32) >> 16).astype("<u2").tobytes())
    with (folder / WEIGHTS).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while at:
            at -= file.write(noise[: min(at, len(noise))])
    return (folder / WEIGHTS).stat().st_size


def pages() -> str:
    """The project's own pages, a text for what reads one."""
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/*.md")))


def ours(source: Path, targets: Sequence[Path], outtype: str, level: str) -> Cost:
    """Convert to the types of `outtype`, one file each; of several, their names differ in the type alone."""
    first, *rest = targets
    out = first.with_name(first.name.replace(outtype.split(",")[0], "{outtype}")) if rest else first
    options = ("-o", out, "--force", "--outtype", outtype, "--verify", level)
    return measure(targets, sys.executable, "-m", "ggferry", "convert", source, *options)


def theirs(source: Path, target: Path, outtype: str, peer: argparse.Namespace) -> dict[str, Cost]:
    """The peer's steps by name. What its converter cannot write goes through a bf16 file and llama-quantize."""
    convert = [peer.python, peer.converter, source, "--outfile"]
    if outtype in CONVERTED:
        return {"convert_hf_to_gguf": measure(target, *convert, target, "--outtype", outtype)}
    between = target.with_suffix(".bf16.gguf")
    try:
        first = measure(between, *convert, between, "--outtype", "bf16")
        second = measure(target, peer.quantize, between, target, outtype.upper())
    finally:
        between.unlink(missing_ok=True)
    return {"convert_hf_to_gguf": first, "llama-quantize": second}


def equal_tensors(a: Path, b: Path) -> str:
    """How many tensors of two GGUF files have the same name, shape, type and bytes."""
    from ggferry.formats.readers.gguf import open_gguf

    left, right = open_gguf(str(a)), open_gguf(str(b))
    same = 0
    for name in left.tensors.keys() & right.tensors.keys():
        x, y = left.tensors[name], right.tensors[name]
        if (x.shape, x.type) == (y.shape, y.type):
            sides = ((left, x), (right, y))
            same += len({side.files[0].read(ref.spans[0].offset, ref.nbytes) for side, ref in sides}) == 1
    return f"{same} of {len(left.tensors.keys() | right.tensors.keys())} tensors are byte-identical"


ROWS: list[Row] = []


def compare_levels(
    source: Path, targets: Sequence[Path], outtype: str, arguments: argparse.Namespace, peer: Cost | None
) -> None:
    """Ours at each level of proof, beside the peer and the floor; `targets`: a file for each type of `outtype`."""
    if peer:
        ROWS.append(Row(outtype, "today's tools", peer))
    rounds = range(arguments.rounds)
    costs = {level: best([ours(source, targets, outtype, level) for _ in rounds]) for level in LEVELS}
    floor = floor_of(source / WEIGHTS, targets, arguments.rounds)
    print(f"  {'floor':<22}{floor}")
    for level, cost in costs.items():
        words = (f"ggferry --verify {level}", floor.under(cost), cost.against(peer) if peer else "")
        print(f"  {words[0]:<22}{cost}", *filter(None, words[1:]), sep="  ")
        ROWS.append(Row(outtype, words[0], cost, peer, floor))


def of_types(folder: Path, outtypes: str) -> list[Path]:
    return [folder / f"ours-{name}.gguf" for name in outtypes.split(",")]


def compare_ladder(source: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Several types at once, against one conversion to bf16 and a run of llama-quantize for each."""
    types = arguments.ladder.split(",")
    print(f"\nladder of {len(types)}: {arguments.ladder}")
    peer = None
    if arguments.converter and arguments.quantize:
        between, made = folder / "theirs.bf16.gguf", folder / "theirs.gguf"
        convert = [arguments.python, arguments.converter, source, "--outfile", between, "--outtype", "bf16"]
        peer = best([measure(between, *convert) for _ in range(arguments.rounds)])
        for name in types:
            runs = [measure(made, arguments.quantize, between, made, name.upper()) for _ in range(arguments.rounds)]
            peer += best(runs)
        print(f"  {'today s tools':<22}{peer}")
        for file in (between, made):
            file.unlink(missing_ok=True)
    files = of_types(folder, arguments.ladder)
    compare_levels(source, files, arguments.ladder, arguments, peer)
    for file in files:
        file.unlink(missing_ok=True)


def compare(source: Path, folder: Path, outtype: str, arguments: argparse.Namespace) -> None:
    mine, other = folder / "ours.gguf", folder / "theirs.gguf"
    has_peer = arguments.converter and (outtype in CONVERTED or (arguments.quantize and outtype != "keep"))
    print(f"\n{outtype}")
    steps = [theirs(source, other, outtype, arguments) for _ in range(arguments.rounds)] if has_peer else []
    peer = None
    if steps:
        chosen = {name: best([round[name] for round in steps]) for name in steps[0]}
        for name, cost in chosen.items():
            print(f"  {name:<22}{cost}")
        first, *rest = chosen.values()
        peer = sum(rest, first)
    compare_levels(source, [mine], outtype, arguments, peer)
    if peer:
        print(f"  {equal_tensors(mine, other)}")
    for file in (mine, other):
        file.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--converter", type=Path, help="convert_hf_to_gguf.py, in its own tree")
    parser.add_argument("--quantize", type=Path, help="llama-quantize")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with the converter's requirements")
    parser.add_argument("--outtypes", default="f16,q8_0,q4_k_m")
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ladder", default="q2_k,q3_k_m,q4_k_m,q5_k_m,q6_k,q8_0", help="types at once; '' for none")
    parser.add_argument("--plot", type=Path, help="write the wall times as an SVG")
    parser.add_argument("--folder", help="where the checkpoint is made; 12 GB are used")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder goes then, too
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=arguments.folder))
    try:
        small, source = folder / "small", folder / "checkpoint"
        make(small, 1)
        size = make(source, arguments.layers)
        empty = folder / "empty"
        base = measure(empty, sys.executable, "-c", "import numpy, sys; open(sys.argv[1], 'w')", empty)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        title = f"{size / 1e9:.2f} GB of bf16, {os.cpu_count()} CPUs, load before {load}, best of {arguments.rounds}"
        print(title)
        print(f"{'python with numpy':<24}{base}")
        for outtype in arguments.outtypes.split(","):
            ours(small, [folder / "warm.gguf"], outtype, "full")  # compiles what is compiled on first use
            compare(source, folder, outtype, arguments)
        if arguments.ladder:
            ours(small, of_types(folder, arguments.ladder), arguments.ladder, "full")
            compare_ladder(source, folder, arguments)
        if arguments.plot:
            arguments.plot.write_text(plot(ROWS, title), encoding="utf-8")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
