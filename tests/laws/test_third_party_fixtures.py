"""`fixtures/` has one of everything this project reads, and what it lists is there and is what it was.

A container, header layout, block type, architecture or tokenizer that arrives without a witness fails here. What no
file shows is named with the test that makes it, or that asks another program.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache

import pytest

from ggferry.converters.model_graph.open_checkpoint import architectures, header_layouts, open_checkpoint
from ggferry.converters.schema.architecture import Architecture
from ggferry.converters.tokenizers.files.find import load
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import containers
from ggferry.quant.codec import LLAMA_CPP, codec, codecs, types_by_id
from ggferry.support.registry import scan
from helpers.peers import is_record
from helpers.third_party_fixtures import FIXTURES, ROOT
from helpers.tiny_models import TINY

MOST = 90_000_000
"""Bytes of all committed witnesses: a clone stays a matter of seconds."""

MADE_CONTAINERS = {
    ("gguf", 1): "formats/readers/test_gguf.py",
    ("dcp", None): "formats/readers/test_dcp.py",
    ("deepspeed", None): "formats/readers/test_deepspeed.py",
    ("fsdp", None): "formats/readers/test_fsdp.py",
    ("megatron", None): "converters/test_megatron_names.py",
    ("packed", None): "formats/readers/test_archives.py",
    ("configuration", None): "converters/test_mistral_format.py",
}
MADE_LAYOUTS = {
    "falcon-2023-06-05": "converters/legacy/test_families.py",
    "falcon-2023-06-10": "converters/legacy/test_families.py",
    "llama3-meta": "formats/readers/test_pytorch.py",
}
NAMED = {
    "biogpt-cpp/q5_1.bin": "biogpt.cpp-2023-10",
    "biogpt-cpp/q5_1-2023-05.bin": "biogpt.cpp-2023-05",
}
"""Files that a person must say the layout of."""
MADE_ARCHITECTURES = {
    **dict.fromkeys(
        ("arctic", "bailingmoe", "bailingmoe2", "deepseek"), "converters/architectures/test_published_names.py"
    ),
    **dict.fromkeys(
        (
            "baichuan",
            "codeshell",
            "deci",
            "internlm2",
            "minicpm",
            "openelm",
            "orion",
            "pangu-embedded",
            "qwen",
            "xverse",
        ),
        "converters/architectures/test_publishers_code.py",
    ),
    **dict.fromkeys(
        (
            "arwkv7",
            "cogvlm",
            "jais",
            "kimi-k3",
            "maincoder",
            "maple",
            "nanbeige",
            "plm",
            "refact",
            "rwkv6qwen2",
            "smallthinker",
            "spark2_5",
            "talkie",
        ),
        "converters/architectures/test_runtime_alone.py",
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "converters/architectures/test_publishers_code.py"),
    **dict.fromkeys(("deepseek2-ocr", "grovemoe"), "converters/architectures/test_published_names.py"),
    **dict.fromkeys(
        ("graniteswitch", "grok", "plamo", "plamo2", "plamo3"), "converters/architectures/test_unclassed.py"
    ),
    **dict.fromkeys(
        ("eurobert", "gemma-embedding", "jina-bert-v2", "llama-embed", "modern-bert", "neo-bert"),
        "converters/architectures/test_encoders.py",
    ),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), "converters/architectures/test_drafts.py"),
    "exaone": "converters/architectures/test_published_names.py",
    "jina-bert-v3": "converters/architectures/test_jina_bert_v3.py",
    "nomic-bert-moe": "converters/architectures/test_nomic_bert_moe.py",
    "nomic-bert": "converters/architectures/test_bert.py",
    "pockettts": "converters/architectures/test_pocket_tts.py",
    "qwen3tts": "converters/architectures/test_qwen3_tts.py",
    "rwkv7": "converters/architectures/test_rwkv.py",
    "t5encoder": "converters/architectures/test_t5.py",
    "wavtokenizer-dec": "converters/architectures/test_codes.py",
}
"""By transformers, or by hand from the published code; those of tiny_models are counted from there."""
MADE_TYPES = {
    **dict.fromkeys(("BOOL", "F64"), "formats/readers/test_safetensors.py"),
    **dict.fromkeys(("I16", "I32", "U8", "U16", "U64"), "formats/readers/test_safetensors.py"),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), "quant/codecs/test_checkpoint_types.py"),
    "Q2_K_64": "quant/codecs/test_codecs.py",
    "Q8_1": "quant/codecs/test_codecs.py",
}


def listed(folder: str) -> list[dict]:
    found = json.loads((FIXTURES / folder / "MANIFEST.json").read_text())
    return found["files"] if isinstance(found, dict) else found


@cache
def models() -> tuple[Checkpoint, ...]:
    """The models in `fixtures/`, GGUF aside."""
    other, llama = FIXTURES / "legacy-other", FIXTURES / "legacy-llama"
    paths = [folder / entry["file"] for folder in (llama, other) for entry in listed(folder.name)]
    paths += [*(FIXTURES / "hf/ckpt").iterdir(), *(llama / "pth").iterdir()]
    paths += [*(FIXTURES / "llama2c").glob("v*.bin"), *(FIXTURES / "llmc").glob("*float*.bin")]
    paths += [*(FIXTURES / "bert-cpp").glob("*.bin"), *(FIXTURES / "chatglm-cpp").glob("*.bin")]
    paths += [*(FIXTURES / "biogpt-cpp").glob("*.bin"), *(FIXTURES / "clip-cpp").glob("*.bin")]
    paths += (path.parent for of in ("flax", "tensorflow") for path in FIXTURES.glob(f"{of}/*/tensors.json"))
    paths += (path.parent for path in FIXTURES.glob("keras/*/config.json"))
    paths += [other / "hf/rwkv4-s64/rwkv4-tiny.pth", other / "hf/whisper-v600/tiny.pt", FIXTURES / "mlx-npz/tiny-q4"]
    paths += [FIXTURES / "mlx-npz/meta-q4", FIXTURES / "uqff/q8_0-0.uqff"]
    found = tuple(open_checkpoint(str(path), NAMED.get(f"{path.parent.name}/{path.name}")) for path in paths)
    apart = (path.parent for path in FIXTURES.glob("orbax/*/original"))  # their configuration stands in a folder
    return (*found, *(open_checkpoint(str(path), config=str(path / "original")) for path in apart))


@cache
def checkpoints() -> tuple[Checkpoint, ...]:
    """Models, adapters, and the GGUF files that are kept whole."""
    paths = [*(FIXTURES / "lora").iterdir(), *(FIXTURES / "legacy-llama/lora").glob("*.bin"), *FIXTURES.rglob("*.gguf")]
    return (*models(), *(open_checkpoint(str(path)) for path in paths))


def records() -> list[dict]:
    return [json.loads(path.read_text()) for path in FIXTURES.rglob("*.json") if is_record(path)]


def complete(found: set, made: dict, wanted: set) -> None:
    """What is found and what is made are all that is wanted, and nothing that is found is said to be made."""
    assert wanted - found - set(made) == set(), "without a witness"
    assert found & set(made) == set(), "has a witness by now"
    assert all((ROOT / "tests" / path).is_file() for path in made.values() if isinstance(path, str))


def test_every_container_has_a_witness() -> None:
    read = {(one.name, version) for one in containers().values() for version in one.versions}
    assert {pair for layout in header_layouts() for pair in layout.containers} <= read
    found = {(checkpoint.container, checkpoint.version) for checkpoint in checkpoints()}
    pickled = {pair for pair in found if pair[0].startswith("pytorch")}  # their version is the archive's
    assert {container for container, _ in pickled} == {"pytorch", "pytorch-meta"}
    complete(found, MADE_CONTAINERS, {pair for pair in read if not pair[0].startswith("pytorch")})


def test_every_header_layout_has_a_witness() -> None:
    found = {str(checkpoint.layout) for checkpoint in checkpoints()}
    complete(found, MADE_LAYOUTS, {layout.name for layout in header_layouts()})


def classes(spec: Architecture) -> set[str]:
    """The classes of config.json that can be of this architecture."""
    return {*spec.hf_classes, *(name for dialect in spec.dialects for name in dialect.classes)}


def test_every_architecture_has_a_witness() -> None:
    found = {understand(checkpoint).architecture.name for checkpoint in models()}
    tiny = {model.cls for model in TINY.values()}
    made = {name: "helpers/tiny_models.py" for name, spec in architectures().items() if tiny & classes(spec)}
    made = {name: path for name, path in (made | MADE_ARCHITECTURES).items() if name not in found}
    complete(found, made, set(architectures()))
    assert set(MADE_ARCHITECTURES) <= set(made)


def test_every_block_type_has_a_witness() -> None:
    found = {ref.type.name for checkpoint in checkpoints() for ref in checkpoint.tensors.values()}
    found |= {tensor["type"] for record in records() for tensor in record["tensors"]}
    ggml = {
        kind.name: f"quant/codecs/{'test_codecs' if codec(kind.name).runtime == LLAMA_CPP else 'test_ik_types'}.py"
        for kind in types_by_id().values()
        if kind.quantized
    }
    made = {name: path for name, path in (ggml | MADE_TYPES).items() if name not in found}
    complete(found, made, set(codecs()))
    assert set(MADE_TYPES) <= set(made)


def test_every_tokenizer_has_a_witness() -> None:
    wanted = {model for kind in scan("ggferry.converters.tokenizers.encoders", "SPEC") for model in kind.models}
    folders = [*(path for path in (FIXTURES / "tokenizers").iterdir() if path.is_dir()), FIXTURES / "hf/ckpt/rwkv6"]
    loaded: list[Tokenizer] = [load(str(folder)) for folder in folders]
    assert {tokenizer.model for tokenizer in loaded} == wanted


@pytest.mark.parametrize("folder", ["legacy-llama", "legacy-other"])
def test_files_are_what_their_manifest_says(folder: str) -> None:
    for entry in listed(folder):
        path = FIXTURES / folder / entry["file"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], path
        for logits in ("logits_f64", "oracle_logits"):
            assert logits not in entry or (FIXTURES / folder / entry[logits]).is_file(), path


def test_no_file_is_without_its_provenance() -> None:
    """Models are listed in a manifest or stand in a folder that README.md tells of."""
    text = (FIXTURES / "README.md").read_text()
    for path in FIXTURES.rglob("*"):
        if path.is_dir() and not any(child.is_dir() for child in path.iterdir()):
            above = [str(each.relative_to(FIXTURES)) for each in (path, *path.parents) if each.is_relative_to(FIXTURES)]
            assert any(f"`{name}/`" in text for name in above if name != "."), path
    known = {entry["file"] for entry in (*listed("legacy-llama"), *listed("legacy-other"))}
    for folder in ("legacy-llama", "legacy-other"):
        for path in (FIXTURES / folder).glob("*/*.bin"):
            name = str(path.relative_to(FIXTURES / folder))
            assert name in known or f"`{path.name}`" in text or path.parent.name == "lora", path


def test_the_witnesses_stay_small() -> None:
    assert sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()) <= MOST
