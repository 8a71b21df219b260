"""Chat templates rendered in processes of their own: by Jinja as transformers does, and by llama.cpp; and the page."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ggferry.converters.convert import Request, convert
from ggferry.converters.proof.witnesses import conversations
from ggferry.converters.proof.witnesses.conversations import CONVERSATIONS, construct, rendered
from helpers.hf_llama import hf_llama
from helpers.witnesses import FIXTURES, ROOT

SPEC = importlib.util.spec_from_file_location("chat_templates", ROOT / "tools" / "chat_templates.py")
assert SPEC is not None and SPEC.loader is not None
PAGE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGE)
TEMPLATES = sorted((FIXTURES / "chat_templates").glob("*.jinja"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    return convert(Request(str(hf_llama(folder / "hf")), str(folder / "x.gguf"))).path


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_jinja_renders_as_transformers(path: Path) -> None:
    job = {
        "template": path.read_text(),
        "bos": "<s>",
        "eos": "</s>",
        "given": CONVERSATIONS,
        "prompts": [],
        "seconds": 20,
    }
    answer = conversations._asked("jinja_chat", job, 0)
    assert answer.why is None
    for name, given in CONVERSATIONS.items():
        try:
            texts, _ = render_jinja_template(
                [given["messages"]], tools=given.get("tools"), chat_template=path.read_text(),
                add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **given.get("more", {}),
            )  # fmt: skip
        except Exception:
            assert "error" in answer.facts["rendered"][name], name
        else:
            assert answer.facts["rendered"][name] == {"text": texts[0]}, name


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_page_says_what_comes_out(path: Path, model: str) -> None:
    found = rendered(path.read_text(), "<s>", "</s>", model)
    assert found.runtime == "b11549" and len(found.alike) + len(found.apart) + len(found.refused) == len(CONVERSATIONS)
    assert PAGE.row(path.stem, found) in (ROOT / "docs" / "chat-templates.md").read_text().splitlines()


HOSTILE = {
    "a loop without end": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "all memory": "{% set x = 'a' * 9999999999 %}{{ x }}",
    "no template": "{% for %}",
    "a way out": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "all memory" else kind for kind in HOSTILE]
)
def test_a_hostile_template_is_a_note(kind: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "SECONDS", 2)
    found = rendered(HOSTILE[kind], "<s>", "</s>", model)
    assert not found.alike
    if kind in ("a loop without end", "no template"):
        assert "Jinja rendered nothing" in found.jinja and not found.apart
    if kind == "a loop without end":
        assert "SIGXCPU" in found.jinja or "SIGKILL" in found.jinja


def test_what_llama_cpp_cannot_do_is_a_note_of_the_conversion(tmp_path: Path) -> None:
    folder = hf_llama(tmp_path / "hf")
    (folder / "chat_template.jinja").write_text(
        (FIXTURES / "chat_templates" / "google-gemma-2-2b-it.jinja").read_text()
    )
    result = convert(Request(str(folder), str(tmp_path / "x.gguf"), witness=("llama.cpp",)))
    said = {one.what: one for one in result.proof.testimonies if one.witness == "llama.cpp"}
    assert said["texts"].count > 50 and said["texts"].missed == ()
    assert said["conversations"].count == 9
    (note,) = [note for note in result.proof.notes if "chat template" in note]
    assert "System role not supported" in note and "a system prompt, a system prompt and two turns" in note


def test_the_construct_is_named() -> None:
    assert construct("\n\nerror: unknown filter 'frob' at line 3\n  ^\n") == "error: unknown filter 'frob' at line 3"
    assert construct("") == "no reason given"
