"""Render a chat template twice, by Jinja as transformers sets it up and by llama.cpp's own engine.

A template is never rendered in our process. What differs is no failure of the conversion: the template is the source's,
letter by letter. It is said by name, so that nobody has to find out in a conversation. llama.cpp renders on a model of
its own that has a few kilobytes (`small_model`), so that both are done while the output is written.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ggferry.converters.proof.references.child_process import ROOM, Answer, Child, read_answer, write_job
from ggferry.converters.proof.references.cross_check import CrossCheck
from ggferry.converters.proof.references.small_model import write_small_model
from ggferry.converters.tokenizers.tokenizer import Tokenizer
from ggferry.formats.gguf.values import Value
from ggferry.support.records import dataclass

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "A place."}},
            "required": ["place"],
        },
    },
}
CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Oslo"}}}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TOOL_REPLY = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"degrees": 3}'}
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
    "tools": {"messages": [QUESTION], "tools": [WEATHER]},
    "a tool's result": {"messages": [QUESTION, CALLED, TOOL_REPLY], "tools": [WEATHER]},
    "thinking": {
        "messages": [HELLO, {**HI, "reasoning_content": "They greet."}, {"role": "user", "content": "And now?"}]
    },
    "no thinking": {"messages": [HELLO], "more": {"enable_thinking": False}},
}
VARIABLES: Mapping[str, str | bool] = {"enable_thinking": True, "date_string": "today"}
"""What llama.cpp states to a template, and transformers leaves out (common/chat.cpp)."""
SECONDS = 5  # of CPU for each engine; real templates take tenths
LONGEST = 60.0  # seconds to wait for it once all else is done
SHOWN = 60  # characters around the first difference
SOME = 6  # differences that are named
NOTHING = "rendered nothing"


@dataclass(frozen=True, slots=True)
class Rendered:
    """What two programs made of one template.

    Attributes:
        jinja: Jinja's version, or why it rendered nothing.
        runtime: llama.cpp's build, or why it rendered nothing; '' where it was not asked.
        apart: Conversation → how the two differ.
        alike: Names of the conversations of which they made one text; of Jinja's texts, where llama.cpp made none.
        refused: Names of those that the template has no text for, by every program that rendered.
        words: What Jinja says of the first of those.
    """

    jinja: str
    runtime: str
    apart: Mapping[str, str]
    alike: tuple[str, ...]
    refused: tuple[str, ...]
    words: str = ""

    @property
    def testimonies(self) -> tuple[CrossCheck, ...]:
        """One for the programs that rendered, and one for each that did not."""
        names = {"jinja2": self.jinja, "llama.cpp": self.runtime}
        found = {name: version for name, version in names.items() if version and NOTHING not in version}
        silent = [
            CrossCheck(name, what="conversations", side="output", why=why)
            for name, why in names.items()
            if why and name not in found
        ]
        if not found:
            return tuple(silent)
        who = " and ".join(f"{name} {version}" for name, version in found.items())
        check = CrossCheck(
            who, "", "conversations", "output", count=len(self.alike), missed=tuple(self._missed())[:SOME]
        )
        return check, *silent

    def _missed(self) -> list[str]:
        if len(self.refused) == len(CONVERSATIONS):
            return [f"the chat template has no text for any of {len(CONVERSATIONS)} conversations: {self.words}"]
        grouped: dict[str, list[str]] = {}
        for name, difference in self.apart.items():
            grouped.setdefault(difference, []).append(name)
        return [
            f"the chat template is rendered otherwise by llama.cpp than by Jinja for {', '.join(names)}: {difference}"
            for difference, names in grouped.items()
        ]


class Rendering:
    """A template that is being rendered in a process of its own."""

    def __init__(self, template: str, bos: str, eos: str) -> None:
        """Begin.

        Args:
            template: Its text.
            bos: The text that begins a document; both programs may leave it out.
            eos: The text that ends one.
        """
        self.of, self._bos = (template, bos, eos), bos
        self._folder = tempfile.TemporaryDirectory(prefix="ggferry-chat-")
        self._has_xllamacpp = find_spec("xllamacpp") is not None
        job = {
            "template": template,
            "bos": bos,
            "eos": eos,
            "given": CONVERSATIONS,
            "stated": VARIABLES,
            "prompts": [],
            "seconds": SECONDS,
            "memory": ROOM,
            "model": "small.gguf" if self._has_xllamacpp else "",
        }
        self._child: Child | None = None
        self._why = ""
        try:
            write_job(job, self._folder.name)
            if self._has_xllamacpp:
                write_small_model(os.path.join(self._folder.name, "small.gguf"))
            self._child = Child("chat_templates", self._folder.name)
        except OSError as error:
            self._why = f"no process can be started: {error.strerror}"

    def result(self) -> Rendered:
        """Wait, and return what the programs made of it."""
        child, self._child = self._child, None
        try:
            why = child.wait(LONGEST) if child else Answer(why=self._why)
            second = why or read_answer(self._folder.name, 0)
            try:
                with open(os.path.join(self._folder.name, "jinja.json"), encoding="utf-8") as file:
                    first = json.load(file)
            except (OSError, ValueError):
                return Rendered(f"Jinja {NOTHING}: {second.why}", "", {}, (), ())
            return compared(first, second, self._bos, self._has_xllamacpp)
        finally:
            self.close()

    def close(self) -> None:
        """Give up waiting."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
        self._folder.cleanup()


def rendered(template: str, bos: str, eos: str) -> Rendered:
    """Render a template over conversations by both programs; the arguments are those of `Rendering`."""
    return Rendering(template, bos, eos).result()


Given = tuple[str, str, str]
"""A chat template, and the texts that begin and end a document."""


def rendering_of(given: Given | None) -> Rendering | None:
    """Begin to render a chat template; None where there is none, or Jinja is not installed."""
    return None if given is None or find_spec("jinja2") is None else Rendering(*given)


def template_of(tokenizer: Tokenizer) -> Given | None:
    """Return a vocabulary's default chat template; None where it has none."""
    if "" not in tokenizer.templates:
        return None
    bos, eos = (tokenizer.tokens[tokenizer.ids[role]] if role in tokenizer.ids else "" for role in ("bos", "eos"))
    return tokenizer.templates[""], bos, eos


def declared_template(keys: Mapping[str, Value]) -> Given | None:
    """Return the default chat template that a GGUF file states; None where it has none."""
    template, tokens = keys.get("tokenizer.chat_template"), keys.get("tokenizer.ggml.tokens")
    if template is None or tokens is None:
        return None
    ids = [keys.get(f"tokenizer.ggml.{role}_token_id") for role in ("bos", "eos")]
    bos, eos = ("" if token is None else tokens.data[token.data] for token in ids)
    return template.data, bos, eos


def compared(first: Mapping[str, Any], second: Answer, bos: str, has_reference: bool) -> Rendered:
    """Return what both made of it.

    Args:
        first: Jinja's version, and its texts.
        second: llama.cpp's answer.
        bos: The text that begins a document.
        has_reference: Whether llama.cpp was asked.
    """
    texts, apart, alike, refused = first["facts"]["rendered"], {}, [], []
    has_answer = has_reference and second.why is None
    for name in CONVERSATIONS:
        here, there = texts[name], second.facts["rendered"][name] if has_answer else texts[name]
        if "error" in here and "error" in there:
            refused.append(name)
        elif difference := _difference(here, there, bos):
            apart[name] = _declared(first["facts"]["stated"], name, there, bos) or difference
        else:
            alike.append(name)
    runtime = "" if not has_reference else second.version if has_answer else f"llama.cpp {NOTHING}: {second.why}"
    words = texts[refused[0]]["error"] if refused else ""
    return Rendered(first["version"], runtime, apart, tuple(alike), tuple(refused), words)


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


def _declared(variants: Mapping[str, Any], name: str, there: Mapping[str, str], bos: str) -> str | None:
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
