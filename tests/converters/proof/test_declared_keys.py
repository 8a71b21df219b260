"""Chat templates, sampling and special tokens are read from the source a second time: planted mistakes are noticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.metadata import general_keys
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.second_reader.declared_keys import declared_templates
from ggferry.converters.tokenizers.files import find
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.errors import VerificationError
from ggferry.formats.gguf.values import Value, f32
from helpers.hf_llama import hf_llama

DEFAULT, TOOLS, RAG = "{{ 'default' }}", "{{ 'tools' }}", "{{ 'rag' }}"
SAMPLED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "eos_token_id": [2, 1]}
NAMED = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>"},
    "add_bos_token": True,
    "add_eos_token": False,
}


def model(folder: Path, template: Any = None, files: Mapping[str, str] | None = None) -> Path:
    made = hf_llama(folder)
    (made / "generation_config.json").write_text(json.dumps(SAMPLED))
    config = {"tokenizer_class": "LlamaTokenizer", **NAMED, **({} if template is None else {"chat_template": template})}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in (files or {}).items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    return made


LIST = [{"name": "default", "template": DEFAULT}, {"name": "tool_use", "template": TOOLS}]
WAYS: dict[str, tuple[Any, dict[str, str]]] = {
    "one": (DEFAULT, {}),
    "list": (LIST, {}),
    "file": (TOOLS, {"chat_template.jinja": DEFAULT}),
    "files": (None, {"chat_template.jinja": DEFAULT, "additional_chat_templates/rag.jinja": RAG}),
    "none": (None, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_templates_are_those_that_transformers_loads(way: str, tmp_path: Path) -> None:
    folder = model(tmp_path / "m", *WAYS[way])
    loaded = transformers.AutoTokenizer.from_pretrained(str(folder)).chat_template
    expected = loaded if isinstance(loaded, dict) else {} if loaded is None else {"default": loaded}
    names = [path for path in folder.rglob("*") if path.is_file()]
    assert declared_templates({str(path.relative_to(folder)): str(path) for path in names}) == expected
    result = convert(Request(str(folder), str(tmp_path / "x.gguf")))[0]
    again = open_checkpoint(result.path)
    assert Tokenizer.from_kv(again.metadata).templates == {
        "" if name == "default" else name: text for name, text in expected.items()
    }
    again.close()


def test_another_template_as_the_default_one_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = find.with_templates

    def swapped(tokenizer: Tokenizer, sidecars: Any) -> Tokenizer:
        made = own(tokenizer, sidecars)
        return replace(made, templates={"": made.templates["tool_use"], "tool_use": made.templates[""]})

    monkeypatch.setattr(find, "with_templates", swapped)
    folder = model(tmp_path / "m", LIST)
    with pytest.raises(VerificationError, match=r"tokenizer\.chat_template is not what"):
        convert(Request(str(folder), str(tmp_path / "x.gguf")))


@pytest.mark.parametrize("key", ["temp", "top_k", "penalty_repeat"])
def test_another_number_of_sampling_is_noticed(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = general_keys.sampling_value

    def halved(name: str, value: Any) -> Value | None:
        made = own(name, value)
        return Value(made.type, made.data // 2 if name == "top_k" else made.data / 2) if made and name == key else made

    monkeypatch.setattr(general_keys, "sampling_value", halved)
    with pytest.raises(VerificationError, match=rf"general\.sampling\.{key} is not what"):
        convert(Request(str(model(tmp_path / "m")), str(tmp_path / "x.gguf")))


def test_sampling_that_the_user_states_is_the_users(tmp_path: Path) -> None:
    given = {"general.sampling.temp": 0.25, "general.sampling.top_k": None}
    result = convert(Request(str(model(tmp_path / "m")), str(tmp_path / "x.gguf"), metadata=given))[0]
    again = open_checkpoint(result.path)
    assert again.metadata["general.sampling.temp"] == f32(0.25) and "general.sampling.top_k" not in again.metadata
    again.close()


@pytest.mark.parametrize("mistake", ["eos", "bos", "add_bos", "add_eos"])
def test_another_special_token_is_noticed(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = find.with_flags

    def wrong(tokenizer: Tokenizer, sidecars: Any) -> Tokenizer:
        made = own(tokenizer, sidecars)
        if mistake in made.flags:
            return replace(made, flags={**made.flags, mistake: not made.flags[mistake]})
        return replace(made, ids={**made.ids, mistake: 7})

    monkeypatch.setattr(find, "with_flags", wrong)
    with pytest.raises(VerificationError, match=r"not what|not the source's"):
        convert(Request(str(model(tmp_path / "m")), str(tmp_path / "x.gguf")))
