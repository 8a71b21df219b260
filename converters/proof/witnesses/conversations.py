"""Render the output's chat template twice, by Jinja as transformers sets it up and by llama.cpp's own engine.

A template is never rendered in our process. What differs is no failure of the conversion: the template is the source's,
letter by letter. It is said by name, so that nobody has to find out in a conversation.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from ggferry.converters.model_graph.graph import ModelGraph
from ggferry.converters.proof.witnesses.child_process import Answer, ask
from ggferry.converters.proof.witnesses.llama_cpp import NAME, link_model
from ggferry.converters.proof.witnesses.testimony import Testimony
from ggferry.converters.tokenizers.in_llama_cpp import PROBES, runtime
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import Tokenizer, encoder
from ggferry.support.records import dataclass

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Get the weather of a place.",
        "parameters": {
            "type": "object", "properties": {"place": {"type": "string", "description": "A place."}},
            "required": ["place"],
        },
    },
}  # fmt: skip
CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Oslo"}}}
ASKED = {"role": "user", "content": "What is the weather in Oslo?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOLD = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"degrees": 3}'}
SYSTEM = {"role": "system", "content": "You are brief."}
HELLO, HI = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi, how can I help?"}

CONVERSATIONS: Mapping[str, Mapping[str, Any]] = {
    "one turn": {"messages": [HELLO]},
    "a system prompt": {"messages": [SYSTEM, HELLO]},
    "two turns": {"messages": [HELLO, HI, {"role": "user", "content": "And now?"}]},
    "a system prompt and two turns": {"messages": [SYSTEM, HELLO, HI, {"role": "user", "content": "And now?"}]},
    "an empty message": {"messages": [{"role": "user", "content": ""}]},
    "blanks and line ends": {"messages": [{"role": "user", "content": "  a\n\n\tb  \n"}]},
    "Unicode": {"messages": [{"role": "user", "content": "Žluťoučký kůň 今天 👩‍👩‍👧 \u00a0é"}]},
    "braces and quotes": {"messages": [{"role": "user", "content": "{{ x }} {% y %} \"'<>&\\n</s>"}]},
    "tools": {"messages": [ASKED], "tools": [WEATHER]},
    "a tool's result": {"messages": [ASKED, CALLED, TOLD], "tools": [WEATHER]},
    "thinking": {
        "messages": [HELLO, {**HI, "reasoning_content": "They greet."}, {"role": "user", "content": "And now?"}]
    },
    "no thinking": {"messages": [HELLO], "more": {"enable_thinking": False}},
}
STATED: Mapping[str, str | bool] = {"enable_thinking": True, "date_string": "today"}
"""What llama.cpp states to a template, and transformers leaves out (common/chat.cpp)."""
SECONDS = 10  # of CPU for Jinja; real templates take hundredths
SHOWN = 60  # characters around the first difference
SOME = 6  # differences that are named


@dataclass(frozen=True, slots=True)
class Rendered:
    """What two programs made of one template.

    Attributes:
        jinja: Jinja's version, or why it rendered nothing.
        runtime: llama.cpp's build, or why it rendered nothing.
        apart: Conversation → how the two differ.
        alike: Names of the conversations of which they made one text.
        refused: Names of those that the template has no text for, by both.
    """

    jinja: str
    runtime: str
    apart: Mapping[str, str]
    alike: tuple[str, ...]
    refused: tuple[str, ...]


def rendered(template: str, bos: str, eos: str, model: str, nbytes: int = 0) -> Rendered:
    """Render a template over conversations by both programs, each in a bounded process.

    Args:
        template: Its text.
        bos: The text that begins a document; both may leave it out.
        eos: The text that ends one.
        model: A GGUF file for llama.cpp, whose own template is not used.
        nbytes: Its bytes, which set the limits of time and memory.
    """
    job = {
        "template": template, "bos": bos, "eos": eos, "given": CONVERSATIONS, "stated": STATED, "prompts": [],
        "seconds": SECONDS,
    }  # fmt: skip
    first = _asked("jinja_chat", job, 0)
    if first.why is not None:
        return Rendered(f"Jinja rendered nothing: {first.why}", "", {}, (), ())
    second = _asked("llama_cpp_chat", {**job, "model": os.path.abspath(model)}, nbytes)
    if second.why is not None:
        return Rendered(first.version, f"llama.cpp rendered nothing: {second.why}", {}, (), ())
    apart, alike, refused = {}, [], []
    for name in CONVERSATIONS:
        here, there = (answer.facts["rendered"][name] for answer in (first, second))
        if "error" in here and "error" in there:
            refused.append(name)
        elif difference := _difference(here, there, bos):
            apart[name] = _stated(first.facts["stated"], name, there, bos) or difference
        else:
            alike.append(name)
    return Rendered(first.version, second.version, apart, tuple(alike), tuple(refused))


def _asked(program: str, job: Mapping[str, Any], nbytes: int) -> Answer:
    with tempfile.TemporaryDirectory(prefix="ggferry-chat-") as folder:
        return ask(program, job, folder, nbytes)


def _difference(here: Mapping[str, str], there: Mapping[str, str], bos: str) -> str | None:
    """Return how a text of Jinja and one of llama.cpp differ; None where they do not."""
    if "error" in there:
        return f"llama.cpp cannot: {construct(there['error'])}"
    if "error" in here:
        return f"Jinja cannot: {here['error']}"
    first, second = (text.removeprefix(bos) if bos else text for text in (here["text"], there["text"]))
    if first == second:
        return None
    at = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))
    start = max(0, at - 12)
    return f"Jinja {first[start : start + SHOWN]!r}, llama.cpp {second[start : start + SHOWN]!r}"


def _stated(variants: Mapping[str, Any], name: str, there: Mapping[str, str], bos: str) -> str | None:
    """Return which variable makes Jinja's text llama.cpp's; None where none does."""
    for variable, texts in variants.items():
        if "text" in there and not _difference(texts[name], there, bos):
            return f"llama.cpp states {variable}, which transformers leaves to the template"
    return None


def construct(words: str) -> str:
    """Return the part of llama.cpp's message that names what it cannot do."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    named = next(
        (line for line in lines if re.search("error|unknown|expected|not (supported|implemented)", line, re.I)), ""
    )
    return (named or (lines[0] if lines else "no reason given"))[:160]


def testify(output: ModelGraph, before: Iterable[Testimony]) -> tuple[Testimony, ...]:
    """Return what llama.cpp makes of sample texts, and what it and Jinja make of the output's chat template.

    Nothing is returned where llama.cpp is not among those that testified `before`.
    """
    if not any(said.witness == NAME and said.why is None for said in before):
        return ()
    tokenizer, nbytes = Tokenizer.from_kv(output.checkpoint.metadata), output.checkpoint.nbytes
    with tempfile.TemporaryDirectory(prefix="ggferry-witness-") as folder:
        model = os.path.join(folder, link_model(output, folder))
        texts = _texts(tokenizer, model, nbytes)
        if "" not in tokenizer.templates:
            return (texts,)
        bos, eos = (tokenizer.tokens[tokenizer.ids[role]] if role in tokenizer.ids else "" for role in ("bos", "eos"))
        return texts, _conversations(rendered(tokenizer.templates[""], bos, eos, model, nbytes))


def _texts(tokenizer: Tokenizer, model: str, nbytes: int) -> Testimony:
    """Compare llama.cpp's ids of sample texts with those that our rules foretell."""
    texts = {f"sample {number}": text for number, text in enumerate(TEXTS)} | PROBES
    texts = {name: text for name, text in texts.items() if "\0" not in text}
    answer = _asked("llama_cpp_chat", {"given": {}, "texts": texts, "model": model, "prompts": []}, nbytes)
    if answer.why is not None:
        return Testimony("llama.cpp", what="texts", side="output", why=answer.why)
    theirs, own = runtime(tokenizer), encoder(tokenizer)
    foretold = {
        name: own.encode(text, bos=False) if theirs is None else theirs.encode(text) for name, text in texts.items()
    }
    apart = [name for name in texts if answer.facts["ids"][name] != foretold[name]]
    return Testimony(
        "llama.cpp", answer.version, "texts", "output", count=len(texts) - len(apart),
        missed=tuple(f"it cuts {texts[name]!r:.60} otherwise than foretold" for name in apart[:SOME]),
    )  # fmt: skip


def _conversations(found: Rendered) -> Testimony:
    why = next((said for said in (found.jinja, found.runtime) if "rendered nothing" in said), None)
    grouped: dict[str, list[str]] = {}
    for name, difference in found.apart.items():
        grouped.setdefault(difference, []).append(name)
    return Testimony(
        "llama.cpp", found.runtime if why is None else "", "conversations", "output", count=len(found.alike), why=why,
        missed=tuple(
            f"the chat template is rendered otherwise than by Jinja for {', '.join(names)}: {difference}"
            for difference, names in list(grouped.items())[:SOME]
        ),
    )  # fmt: skip
