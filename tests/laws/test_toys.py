"""One of everything, each a file of another distribution: found, converted with proof, and under the laws.

`examples/plugins/` has what the recipes of CONTRIBUTING.md ask for: an architecture, a container, a block type, a
tokenizer and a scheme of quantized checkpoints. They are installed as its pyproject.toml says: with entry points.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from helpers.third_party_fixtures import ROOT

TOYS = ROOT / "examples" / "plugins"
WORDS = ("<unk>", *(f"word{number}" for number in range(1, 71)), "hello")
CONFIG: dict[str, Any] = {
    "architectures": ["ToyForCausalLM"],
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "quantization_config": {"quant_method": "toy"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed distribution of the examples: its modules and its entry points."""
    folder = tmp_path_factory.mktemp("site")
    stated = tomllib.loads((TOYS / "pyproject.toml").read_text())
    name, version = stated["project"]["name"], stated["project"]["version"]
    for module in stated["tool"]["setuptools"]["py-modules"]:
        shutil.copy(TOYS / f"{module}.py", folder)
    facts = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = stated["project"]["entry-points"].items()
    lines = [f"[{group}]\n{key} = {value}\n" for group, entries in points for key, value in entries.items()]
    (facts / "entry_points.txt").write_text("\n".join(lines))
    return folder


def tensors() -> dict[str, np.ndarray]:
    """A tiny model of the toy architecture; the scheme's bytes and scales in place of every matrix of its blocks."""
    rng, wide, ff, kv = np.random.default_rng(4), 64, 96, 32
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (len(WORDS), wide)),
        "model.norm.weight": (wide,),
    }
    for n in range(2):
        block = f"model.layers.{n}"
        shapes |= {f"{block}.{name}_layernorm.weight": (wide,) for name in ("input", "post_attention")}
        for name, rows in (("q", wide), ("k", kv), ("v", kv)):
            shapes |= {
                f"{block}.self_attn.{name}_proj.{of}": (rows, wide)[: 1 + (of == "weight")] for of in ("weight", "bias")
            }
        shapes |= {f"{block}.mlp.{name}_proj.weight": (ff, wide) for name in ("gate", "up")}
        shapes |= {f"{block}.self_attn.o_proj.weight": (wide, wide), f"{block}.mlp.down_proj.weight": (wide, ff)}
    found = {name: rng.normal(len(shape) == 1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in [name for name, shape in shapes.items() if len(shape) == 2 and ".layers." in name]:
        scale = np.abs(found[name]).max(axis=1) / np.float32(127)
        found |= {name: np.rint(found[name] / scale[:, None]).astype(np.int8), f"{name}_toy": scale}
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the toy container that holds such a model; configuration and vocabulary beside it."""
    folder = tmp_path_factory.mktemp("toy") / "toy-1m"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "toy.vocab").write_text("\n".join(WORDS) + "\n")
    found = tensors()
    kinds = {"float32": "F32", "int8": "I8"}
    table = json.dumps({name: [kinds[str(array.dtype)], array.shape] for name, array in found.items()}).encode()
    data = b"".join(array.tobytes() for array in found.values())
    (folder / "toy.toyc").write_bytes(b"TOYC" + len(table).to_bytes(4, "little") + table + data)
    return folder / "toy.toyc"


def python(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A process that has the toys installed."""
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


def pytest_on(site: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    """The cases of these modules that are the toys'."""
    quiet = ("-q", "-rA", "-n0", "-p", "no:cacheprovider")
    return python(site, "-m", "pytest", *quiet, *modules, "-k", "toyllama or TOY8")


def ggferry(site: Path, *arguments: object) -> str:
    done = python(site, "-m", "ggferry", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_one_is_made_of_is_known_to_inspect(site: Path, model: Path) -> None:
    assert ggferry(site, "inspect", model).startswith("Toy")
    facts = json.loads(ggferry(site, "inspect", "--json", model))
    assert (facts["container"], facts["model"]["architecture"]) == ("toyc", "toyllama")
    assert facts["sidecars"]["toy.vocab"] == "toy.vocab"


def test_without_them_it_is_refused(model: Path, tmp_path: Path) -> None:
    """The toys do it, and not something of ours."""
    done = python(tmp_path, "-m", "ggferry", "inspect", model)
    assert done.returncode and "no known model container" in done.stderr


@pytest.mark.slow
def test_one_is_converted_with_proof_and_verified(site: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.gguf"
    ggferry(site, "convert", model, "-o", out, "--outtype", "toy8", "--allow-requantize")
    receipt = json.loads((tmp_path / "toy.gguf.receipt.json").read_text())
    query = next(tensor for tensor in receipt["tensors"] if tensor["name"] == "blk.1.attn_q.weight")
    assert (query["type"], query["dequantized_from"], query["grade"]) == ("TOY8", "toy bytes", "rounded")
    assert query["encoded_again"] and not query["outlier"] and query["band"]
    assert receipt["tokenizer"]["texts"] == receipt["tokenizer"]["equal"] > 0
    assert 0 < receipt["logits"]["relative_rms"] < 0.05
    assert receipt["source"]["container"] == "toyc"
    facts = json.loads(ggferry(site, "inspect", "--json", out))
    assert facts["metadata"]["general.file_type"]["value"] == 900


@pytest.mark.slow
def test_one_is_verified_again_and_a_changed_one_is_not(site: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.gguf"
    ggferry(site, "convert", model, "-o", out, "--outtype", "toy8", "--allow-requantize", "--verify", "fast")
    ggferry(site, "verify", model, out)
    data = bytearray(out.read_bytes())
    data[-1] ^= 0x40
    out.write_bytes(data)
    assert python(site, "-m", "ggferry", "verify", model, out).returncode


def test_its_values_are_what_they_were(site: Path, model: Path, tmp_path: Path) -> None:
    """The gguf package, which knows of no toy, reads what numpy multiplied."""
    out = tmp_path / "toy.gguf"
    ggferry(site, "convert", model, "-o", out, "--outtype", "f32", "--verify", "fast")
    found = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(out).tensors}
    source = tensors()
    assert len(found) == sum(not name.endswith("_toy") for name in source)
    for ours, theirs in (("attn_k", "self_attn.k_proj"), ("ffn_down", "mlp.down_proj")):
        name = f"model.layers.1.{theirs}.weight"
        meaning = source[name].astype(np.float32) * source[f"{name}_toy"][:, None]
        assert np.array_equal(found[f"blk.1.{ours}.weight"], meaning)


def test_it_tokenizes(site: Path, model: Path) -> None:
    assert json.loads(ggferry(site, "tokenize", model, "--text", "hello word7 nobody")) == [71, 7, 0]


CUT = """
import sys
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.errors import GgferryError
path = sys.argv[1]
data = open(path, "rb").read()
for size in (*range(10), *range(10, len(data), len(data) // 100), len(data) - 1):
    open(path, "wb").write(data[:size])
    try: open_checkpoint(path)
    except GgferryError: continue
    raise AssertionError(f"{size} bytes are taken for all")
"""


def test_a_cut_anywhere_in_its_container_ends_in_an_error_of_ours(site: Path, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model.parent, tmp_path / "cut")
    done = python(site, "-c", CUT, tmp_path / "cut" / model.name)
    assert done.returncode == 0, done.stderr[-2000:]


LAWS = {
    "tests/laws/test_names.py": "test_a_name_is_matched_by_its_own_pattern_alone[toyllama-hf]",
    "tests/laws/test_codec_laws.py": "test_encoding_keeps_the_values_within_the_types_bound[TOY8]",
    "tests/quant/accuracy/test_expected_error.py": "test_bands_are_what_is_measured[TOY8]",
    "tests/quant/accuracy/test_similarity.py": "test_what_an_encoder_makes_is_like_its_source[TOY8]",
}
"""Modules of tests that go through a registry, and one that each must have come to."""


def test_the_laws_hold_for_them_from_the_first_day(site: Path) -> None:
    done = pytest_on(site, *LAWS)
    assert done.returncode == 0, done.stdout[-3000:]
    for module, test in LAWS.items():
        assert f"PASSED {module}::{test}" in done.stdout


def test_the_laws_can_be_broken(site: Path, tmp_path: Path) -> None:
    """What is told above holds only if a toy that breaks its promise is seen."""
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    path = broken / "toy_block.py"
    path.write_text(path.read_text().replace("(0.00534, 0.00841)", "(0.001, 0.002)"))
    done = python(
        broken,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "tests/quant/accuracy/test_expected_error.py",
        "-k",
        "TOY8",
    )
    assert done.returncode == 1 and "1 failed" in done.stdout
