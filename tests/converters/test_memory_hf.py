"""A training checkpoint of over a gigabyte is converted within a fixed memory; without torch, or with all of it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

# A process starts with the peak of the one it was forked from, so a small one stands between pytest and the measured.
LAUNCH = """
import os, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""
CONVERT = """
import sys
from ggferry.service.cli.app import _run
code = _run(sys.argv[1:])
assert "numpy" in sys.modules
print("imported:", [name for name in ("torch", "transformers", "safetensors") if name in sys.modules])
sys.exit(code)
"""
WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 10, 32, 4, 32000
BUDGET, FAST_BUDGET = 400 << 20, 250 << 20
PIECE = bytes(4 << 20)


def checkpoint(folder: Path, tokenizer: Path) -> Path:
    """A LlamaForCausalLM of TinyLlama's shapes in bf16, 1.14 GB of zeros. Every matrix begins with one weight of 1.
    It is written in large pieces, as downloads are, so that Linux has it in large pages."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "rope_theta": 10000.0,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(tokenizer, folder / "tokenizer.model")
    kv = WIDTH // HEADS * KV_HEADS
    shapes = {"lm_head": (VOCAB, WIDTH), "model.embed_tokens": (VOCAB, WIDTH), "model.norm": (WIDTH,)}
    for layer in range(LAYERS):
        blocks = {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (kv, WIDTH),
            "self_attn.v_proj": (kv, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in blocks.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, at, len(PIECE)):
            file.write(PIECE[: at - start])
        for entry in header.values():
            file.seek(8 + len(text) + entry["data_offsets"][0])
            file.write(struct.pack("<H", 0x3F80))
    return folder


def peak(script: str, *arguments: str) -> tuple[int, str]:
    """Peak RSS in bytes of an interpreter that runs `script`, and what it printed."""
    command = [sys.executable, "-S", "-c", LAUNCH, sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("outtype", ["f16", "q8_0", "q2_k,q4_k_m,q8_0,f16"])
def test_a_checkpoint_over_a_gigabyte_stays_within_the_budget(outtype: str, fixtures: Path, tmp_path: Path) -> None:
    """All processes: the library that reads samples of the source, too."""
    source = checkpoint(tmp_path / "model", fixtures / "legacy-llama" / "tokenizer.model")
    assert (source / "model.safetensors").stat().st_size > 1 << 30
    out = tmp_path / "out-{outtype}.gguf"
    used, said = peak(CONVERT, "convert", str(source), "-o", str(out), "--outtype", outtype, "--verify", "fast")
    targets = [tmp_path / f"out-{name}.gguf" for name in outtype.split(",")]
    assert all(target.stat().st_size > 100 << 20 for target in targets)
    assert "imported: []" in said
    assert used <= FAST_BUDGET, f"{used >> 20} MiB"
    for target in targets:
        target.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("outtype", ["q4_k_m", "q2_k,q3_k_m,q4_k_m,q5_k_m,q6_k,q8_0"])
def test_the_whole_proof_stays_within_the_budget(outtype: str, fixtures: Path, tmp_path: Path) -> None:
    """All of the process, torch included. A run that compiles kernels takes more, once a machine."""
    source = checkpoint(tmp_path / "model", fixtures / "legacy-llama" / "tokenizer.model")
    command = ("convert", str(source), "-o", str(tmp_path / "out-{outtype}.gguf"), "--outtype", outtype, "--force")
    for _ in range(2):
        used, said = peak(CONVERT, *command)
    assert "imported: ['torch']" in said and "logits of both sides" in said
    assert used <= BUDGET, f"{used >> 20} MiB"
    for name in outtype.split(","):
        (tmp_path / f"out-{name}.gguf").unlink()
