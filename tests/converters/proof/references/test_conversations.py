"""Chat templates rendered in processes of their own: by Jinja as transformers does, and by llama.cpp; and the page."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from ggferry.converters.conversion.request import Request
from ggferry.converters.conversion.run import convert
from ggferry.converters.conversion.verify import reverify
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.converters.proof.references import child_process, conversations
from ggferry.converters.proof.references.conversations import CONVERSATIONS, construct, declared_template, rendered
from ggferry.support.progress import silent
from helpers.hf_llama import hf_llama
from helpers.third_party_fixtures import FIXTURES, ROOT

SPEC = importlib.util.spec_from_file_location("chat_templates", ROOT / "tools" / "chat_templates.py")
assert SPEC is not None and SPEC.loader is not None
PAGE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGE)
TEMPLATES = sorted((FIXTURES / "chat_templates").glob("*.jinja"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_jinja_renders_as_transformers(path: Path, tmp_path: Path) -> None:
    job = {
        "template": path.read_text(),
        "bos": "<s>",
        "eos": "</s>",
        "given": CONVERSATIONS,
        "prompts": [],
        "seconds": 20,
    }
    answer = child_process.ask("jinja_chat", job, str(tmp_path), 0)
    assert answer.why is None
    for name, given in CONVERSATIONS.items():
        try:
            texts, _ = render_jinja_template(
                [given["messages"]],
                tools=given.get("tools"),
                chat_template=path.read_text(),
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
                **given.get("more", {}),
            )
        except Exception:
            assert "error" in answer.facts["rendered"][name], name
        else:
            assert answer.facts["rendered"][name] == {"text": texts[0]}, name


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_the_page_says_what_comes_out(path: Path) -> None:
    found = rendered(path.read_text(), "<s>", "</s>")
    assert found.runtime == "b11549" and len(found.alike) + len(found.apart) + len(found.refused) == len(CONVERSATIONS)
    assert PAGE.row(path.stem, found) in (ROOT / "docs" / "chat-templates.md").read_text().splitlines()


HOSTILE = {
    "a loop without end": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "all memory": "{% set x = 'a' * 9999999999 %}{{ x }}",
    "no template": "{% for %}",
    "a way out": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.unix("limits of processor time; on Windows the clock ends it after a minute")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "all memory" else kind for kind in HOSTILE]
)
def test_a_hostile_template_is_a_note(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "SECONDS", 1)
    found = rendered(HOSTILE[kind], "<s>", "</s>")
    assert not found.alike
    if kind in ("a loop without end", "no template"):
        assert "Jinja rendered nothing" in found.jinja and not found.apart
    if kind == "a loop without end":
        assert "SIGXCPU" in found.jinja or "SIGKILL" in found.jinja
    if kind == "no template":
        assert "line 1 is no Jinja: Expected an expression, got 'end of statement block'" in found.jinja
    notes = [one.note or "" for one in found.testimonies]
    assert all("chat template" in note or "rendered nothing" in note for note in notes)


def with_template(folder: Path, template: str) -> str:
    hf_llama(folder / "hf")
    (folder / "hf" / "chat_template.jinja").write_text(template)
    return str(folder / "hf")


GEMMA = (FIXTURES / "chat_templates" / "google-gemma-2-2b-it.jinja").read_text()
RENDERERS = "jinja2 3.1.6 and llama.cpp b11549"


def test_every_proof_says_what_differs(tmp_path: Path) -> None:
    source = with_template(tmp_path, GEMMA)
    result = convert(Request(source, str(tmp_path / "x.gguf"), level="fast"))[0]
    (said,) = [one for one in result.receipt["testimonies"] if one["what"] == "conversations"]
    assert (said["witness"], said["count"], said["side"]) == (RENDERERS, 9, "output")
    (note,) = [note for note in result.proof.notes if "chat template" in note]
    assert "System role not supported" in note and "a system prompt, a system prompt and two turns" in note
    assert f"chat template rendered over 9 conversations alike by {RENDERERS}" in result.lines[2]
    again = reverify(Request(source, level="fast"), result.path, silent)
    assert note in again.notes
    none = convert(Request(source, str(tmp_path / "y.gguf"), level="none"))[0]
    assert not [one for one in none.proof.testimonies if one.what == "conversations"]


def test_without_llama_cpp_jinja_renders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "find_spec", lambda name: None if name == "xllamacpp" else name)
    result = convert(Request(with_template(tmp_path, GEMMA), str(tmp_path / "x.gguf"), level="fast"))[0]
    (said,) = [one for one in result.proof.testimonies if one.what == "conversations"]
    assert (said.witness, said.count, said.missed) == ("jinja2 3.1.6", 9, ())
    assert "chat template rendered over 9 conversations by jinja2 3.1.6" in result.lines[2]
    monkeypatch.setattr(conversations, "find_spec", lambda name: None)
    result = convert(Request(str(tmp_path / "hf"), str(tmp_path / "y.gguf"), level="fast"))[0]
    assert not [one for one in result.proof.testimonies if one.what == "conversations"]


@pytest.mark.unix("limits of processor time; on Windows the clock ends it after a minute")
def test_a_template_without_an_end_does_not_hold_a_conversion_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "SECONDS", 1)
    source = with_template(tmp_path, HOSTILE["a loop without end"])
    began = time.monotonic()
    result = convert(Request(source, str(tmp_path / "x.gguf"), level="fast"))[0]
    assert time.monotonic() - began < 60
    assert [note for note in result.proof.notes if "Jinja rendered nothing: its process ended with SIG" in note]
    assert "proved" in result.lines[2] and "chat template" not in result.lines[2]


def test_a_template_for_no_conversation_is_a_note() -> None:
    found = rendered("{{ raise_exception('not me') }}", "<s>", "</s>")
    assert len(found.refused) == len(CONVERSATIONS)
    jinja, runtime = (one.note or "" for one in found.testimonies)
    assert "no text for any of 12 conversations: TemplateError: not me" in jinja
    assert "its server does not start with this chat template: Jinja Exception: not me" in runtime


def test_the_template_that_is_rendered_is_the_output_s(tmp_path: Path) -> None:
    """What was begun with the source's is thrown away where the output, which may differ by leave, states another."""
    result = convert(Request(with_template(tmp_path, GEMMA), str(tmp_path / "x.gguf"), level="fast"))[0]
    (tmp_path / "hf" / "chat_template.jinja").write_text("{{ messages | frob }}")
    report = reverify(Request(str(tmp_path / "hf"), level="fast"), result.path, silent, ("*chat_template",))
    (said,) = [one for one in report.proof.testimonies if one.what == "conversations"]
    assert said.count == 9
    given = declared_template(open_checkpoint(result.path).metadata)
    assert given is not None and given[1:] == ("<s>", "</s>")


def test_llama_cpp_is_asked_for_sample_texts_where_it_is_named(tmp_path: Path) -> None:
    result = convert(Request(with_template(tmp_path, GEMMA), str(tmp_path / "x.gguf"), witness=("llama.cpp",)))[0]
    said = {one.what: one for one in result.proof.testimonies if one.witness == "llama.cpp"}
    assert said["texts"].count > 50 and said["texts"].missed == ()


def test_the_construct_is_named() -> None:
    assert construct("\n\nerror: unknown filter 'frob' at line 3\n  ^\n") == "error: unknown filter 'frob' at line 3"
    assert construct("") == "no reason given"
