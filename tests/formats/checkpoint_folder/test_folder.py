"""Folders of training checkpoints: what is taken for the weights, what stands beside them, JSON of strangers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats import errors
from ggferry.formats.checkpoint_folder.folder import claim, find_weights, locate
from ggferry.formats.checkpoint_folder.sidecars import architectures, configuration, sidecars
from ggferry.formats.json_files.text import load_json

CASES: tuple[tuple[str, tuple[str, ...], tuple[str, tuple[str, ...], str | None] | None], ...] = (
    ("nothing", ("README.md", "config.json", "ggml-model-q4_0.bin", "x.gguf"), None),
    ("single", ("model.safetensors", "config.json"), ("safetensors", ("model.safetensors",), None)),
    ("both kinds", ("model.safetensors", "pytorch_model.bin"), ("safetensors", ("model.safetensors",), None)),
    ("bin", ("pytorch_model.bin",), ("pytorch", ("pytorch_model.bin",), None)),
    (
        "index",
        ("model.safetensors.index.json", "model-00001-of-00001.safetensors"),
        ("safetensors", (), "model.safetensors.index.json"),
    ),
    ("bin index", ("pytorch_model.bin.index.json",), ("pytorch", (), "pytorch_model.bin.index.json")),
    (
        "numbered bin",
        ("pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin"),
        ("pytorch", ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"), None),
    ),
    (
        "single before index",
        ("model.safetensors", "model.safetensors.index.json"),
        ("safetensors", ("model.safetensors",), None),
    ),
    ("Mistral", ("consolidated.safetensors", "params.json"), ("safetensors", ("consolidated.safetensors",), None)),
    (
        "Meta",
        ("consolidated.01.pth", "consolidated.00.pth", "params.json"),
        ("pytorch-meta", ("consolidated.00.pth", "consolidated.01.pth"), None),
    ),
    ("adapter", ("adapter_model.safetensors",), ("safetensors", ("adapter_model.safetensors",), None)),
    ("old adapter", ("adapter_config.json", "adapter_model.bin"), ("pytorch", ("adapter_model.bin",), None)),
    ("adapter beside its base", ("adapter_model.bin", "pytorch_model.bin"), ("pytorch", ("pytorch_model.bin",), None)),
    ("another name", ("weights.safetensors",), ("safetensors", ("weights.safetensors",), None)),
    ("RWKV", ("RWKV-4-Pile-169M.pth",), ("pytorch", ("RWKV-4-Pile-169M.pth",), None)),
    ("Lightning", ("last.ckpt", "config.json"), ("pytorch", ("last.ckpt",), None)),
    ("a variant", ("pytorch_model.fp16.bin",), ("pytorch", ("pytorch_model.fp16.bin",), None)),
    (
        "a numbered variant",
        ("pytorch_model.fp16-00001-of-00002.bin", "pytorch_model.fp16-00002-of-00002.bin"),
        ("pytorch", ("pytorch_model.fp16-00001-of-00002.bin", "pytorch_model.fp16-00002-of-00002.bin"), None),
    ),
)


def fill(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        (folder / name).write_bytes(b"")
    return os.fspath(folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_weights_of_a_folder(case: Any, tmp_path: Path) -> None:
    _, names, expected = case
    weights = find_weights(fill(tmp_path, names))
    claimed = claim(os.fspath(tmp_path), "safetensors", "pytorch", "pytorch-meta")
    assert claimed == (expected and expected[0])
    if expected is None:
        assert weights is None
        with pytest.raises(errors.UnknownFormatError):
            locate(os.fspath(tmp_path), "safetensors")
        return
    assert weights is not None
    container, files, index = expected
    assert weights.container == container
    assert tuple(map(os.path.basename, weights.files)) == files
    assert (weights.index and os.path.basename(weights.index)) == index


def test_what_was_not_read_is_told(tmp_path: Path) -> None:
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "consolidated.00.pth")
    weights = find_weights(fill(tmp_path, names))
    assert weights is not None
    for name in names[1:]:
        assert any(name in note and "not read" in note for note in weights.notes)


@pytest.mark.parametrize(
    ("names", "kind", "words"),
    [
        (("model-00001-of-00003.safetensors",), errors.NotFoundError, "2 of 3.*00002-of-00003"),
        (("consolidated.01.pth",), errors.NotFoundError, "consolidated.00.pth"),
        (("consolidated.00.pth", "consolidated.02.pth"), errors.NotFoundError, "consolidated.01.pth"),
        (("consolidated.99.pth",), errors.OutOfRangeError, "parts"),
        (
            ("model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors"),
            errors.AmbiguousError,
            "more than one",
        ),
        (("model-00000-of-00000.safetensors",), errors.OutOfRangeError, "shards"),
        (("model-00001-of-99999.safetensors",), errors.OutOfRangeError, "shards"),
        (("a.safetensors", "b.safetensors"), errors.AmbiguousError, "several"),
    ],
)
def test_folders_that_cannot_be_a_model(
    names: tuple[str, ...], kind: type[errors.GgferryError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        find_weights(fill(tmp_path, names))
    assert claim(os.fspath(tmp_path), "safetensors") == "safetensors"


def test_roles_of_the_files_beside(tmp_path: Path) -> None:
    names = ("model.safetensors", "config.json", "spiece.model", "tokenizer.json", "chat_template.jinja", "README.md")
    weights = find_weights(fill(tmp_path, names))
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ x }}")
    assert weights is not None
    found = sidecars(weights)
    assert {role: os.path.relpath(path, tmp_path) for role, path in found.items()} == {
        "config": "config.json",
        "tokenizer.model": "spiece.model",
        "tokenizer.json": "tokenizer.json",
        "chat_template.jinja": "chat_template.jinja",
        "chat_template:tool_use": os.path.join("additional_chat_templates", "tool_use.jinja"),
        "README.md": "README.md",
    }


def test_llama_1_kept_its_tokenizer_one_folder_up(tmp_path: Path) -> None:
    (tmp_path / "7B").mkdir()
    fill(tmp_path, ("tokenizer.model",))
    weights = find_weights(fill(tmp_path / "7B", ("consolidated.00.pth", "params.json")))
    assert weights is not None
    assert sidecars(weights)["tokenizer.model"] == os.fspath(tmp_path / "tokenizer.model")


def configured(folder: Path, names: tuple[str, ...], **files: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    fill(folder, names)
    for name, text in files.items():
        (folder / f"{name}.json").write_text(text)
    weights = locate(os.fspath(folder), "safetensors")
    return configuration(weights, sidecars(weights))


def test_configuration_and_its_remarks(tmp_path: Path) -> None:
    config, notes = configured(
        tmp_path, ("model.safetensors",), config='{"architectures":["X"],"auto_map":{"AutoModel":"m.X"},"y":Infinity}'
    )
    assert config["architectures"] == ["X"]
    assert config["y"] == float("inf")
    assert any("auto_map" in note and "never run" in note for note in notes)  # H03
    assert any("no tokenizer" in note for note in notes)  # H04


def test_configuration_of_adapters_and_of_meta(tmp_path: Path) -> None:
    adapter, meta = tmp_path / "adapter", tmp_path / "meta"
    adapter.mkdir()
    meta.mkdir()
    found, notes = configured(adapter, ("adapter_model.safetensors",), adapter_config='{"r":8}', config='{"r":1}')
    assert (found, notes) == ({"r": 8}, ())
    found, notes = configured(meta, ("consolidated.00.pth", "tokenizer.model"), params='{"dim":64}', config="{}")
    assert (found, notes) == ({"dim": 64}, ())


def test_no_configuration(tmp_path: Path) -> None:
    assert configured(tmp_path, ("model.safetensors",)) == ({}, ("no config.json stands beside the weights",))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", errors.EncodingError),
        ("not json", errors.EncodingError),
        ("[1]", errors.CorruptError),
        ('{"a":1,"a":2}', errors.DuplicateError),
        ('{"a":{"b":1,"b":1}}', errors.DuplicateError),
        ('{"a":"\\udc00"}', errors.EncodingError),
        ('{"\\udc00":1}', errors.EncodingError),
        ('{"a":' + "[" * 101 + "]" * 101 + "}", errors.EncodingError),
        ("[" * 100_000, errors.EncodingError),
    ],
)
def test_broken_configuration_is_refused(text: str, kind: type[errors.GgferryError], tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        configured(tmp_path, ("model.safetensors",), config=text)
    assert caught.value.path == os.fspath(tmp_path / "config.json")


def test_load_json_bounds_and_marks(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}')
    assert load_json(os.fspath(path)) == {"a": "😀"}
    with pytest.raises(errors.OutOfRangeError):
        load_json(os.fspath(path), cap=10)
    with pytest.raises(errors.NotFoundError):
        load_json(os.fspath(tmp_path / "absent.json"))
    path.write_bytes(b'{"a": \xff}')
    with pytest.raises(errors.EncodingError) as caught:
        load_json(os.fspath(path))
    assert caught.value.offset == 6


def test_duplicate_keys_are_placed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"é": 1, "b": 2, "b": 3}')
    with pytest.raises(errors.DuplicateError) as caught:
        load_json(os.fspath(path))
    assert caught.value.offset == path.read_bytes().rindex(b'"b"')


def test_architectures() -> None:
    assert architectures({"architectures": ["A", "B"]}, "c") == ("A", "B")
    for config in ({}, {"architectures": None}, {"architectures": []}):
        with pytest.raises(errors.MissingError, match="does not say"):
            architectures(config, "c")
    for named in ("LlamaForCausalLM", [1]):
        with pytest.raises(errors.InconsistentError):
            architectures({"architectures": named}, "c")


def test_oracle_adapters_have_their_configuration(fixtures: Path) -> None:
    folders = sorted(path for path in (fixtures / "lora").iterdir() if path.is_dir())
    assert folders
    for folder in folders:
        weights = locate(os.fspath(folder), "safetensors")
        config, _ = configuration(weights, sidecars(weights))
        assert config == json.loads((folder / "adapter_config.json").read_text())
