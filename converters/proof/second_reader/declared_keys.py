"""Compare keys that no forward pass shows with the source's own files: chat templates, sampling, special tokens.

This reads the files a second time, by the rules of those who read them: transformers' `from_pretrained` for templates,
`GenerationConfig` and llama.cpp's names for sampling. It shares no rule with what wrote the keys.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ggferry.converters.tokenizers.of_checkpoint import VocabOptions, vocabulary_files
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import VerificationError
from ggferry.formats.files.local_files import read_text
from ggferry.formats.gguf.values import Value
from ggferry.formats.json_files.text import load_object

SAMPLING: Mapping[str, tuple[str, ...]] = {
    "temp": ("temperature", "temp"),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "penalty_repeat": ("repetition_penalty", "penalty_repeat"),
    "penalty_last_n": ("penalty_last_n",),
    "xtc_probability": ("xtc_probability",),
    "xtc_threshold": ("xtc_threshold",),
    "mirostat": ("mirostat",),
    "mirostat_tau": ("mirostat_tau",),
    "mirostat_eta": ("mirostat_eta",),
    "sequence": ("sequence",),
}
"""llama.cpp's name (src/llama-arch.cpp, general.sampling.*) → the names that generation_config.json may give it."""
WHOLE = ("top_k", "penalty_last_n", "mirostat")
SAMPLED = "general.sampling."
TEMPLATE = "tokenizer.chat_template"
RERANK = f"{TEMPLATE}.rerank"
_PLACES = re.compile(r"\{query\}|\{document\}")
FOLDER = "additional_chat_templates/"
IDS = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "pad": "padding_token_id",
    "unk": "unknown_token_id",
    "cls": "cls_token_id",
    "mask": "mask_token_id",
    "sep": "seperator_token_id",
}
TURNS = {"eot_token_id": "<|eot_id|> <|im_end|> <end_of_turn>", "eom_token_id": "<|eom_id|>"}
NORMAL = 1
MOST = 256  # templates


def check_declared(
    source: Checkpoint,
    again: Checkpoint,
    options: VocabOptions,
    overrides: Mapping[str, Any] | None = None,
    apart: Collection[str] = (),
    template: str = "",
) -> dict[str, int]:
    """Count the keys that the source's files state, having checked that the output has them so, and no others.

    Args:
        source: The source.
        again: The output.
        options: What the user said about the vocabulary.
        overrides: Keys that the user gave (`--metadata`).
        apart: Keys that may differ.
        template: The text that a reranker is asked with, which no file states.

    Raises VerificationError naming the first key that is not what the source's files state.
    """
    held = _Held(again, {*apart, *(overrides or {})})
    counts = {"sampling": held.sampling(source)}
    files = None if options.none else vocabulary_files(source, options)
    if files is not None and "tokenizer.ggml.tokens" in again.metadata:
        counts |= {"templates": held.templates(files, template), "special": held.special(files) + held.flags(files)}
    return counts


class _Held:
    """The output's keys, with a check for each kind."""

    def __init__(self, again: Checkpoint, free: Collection[str]) -> None:
        self.keys, self.path, self.free = again.metadata, again.path, free

    def sampling(self, source: Checkpoint) -> int:
        """Check the keys of sampling by generation_config.json; those of a GGUF source by its own."""
        if source.container == "gguf":
            expected = {key: value.data for key, value in source.metadata.items() if key.startswith(SAMPLED)}
        else:
            declared = _object(source.sidecars.get("generation_config"))
            named = {
                f"{SAMPLED}{name}": next((declared[field] for field in fields if declared.get(field) is not None), None)
                for name, fields in SAMPLING.items()
            }
            expected = {key: value for key, value in named.items() if _sayable(key.removeprefix(SAMPLED), value)}
        found = {key: value.data for key, value in self.keys.items() if key.startswith(SAMPLED)}
        return self._compare(found, expected)

    def templates(self, files: Mapping[str, str], template: str) -> int:
        """Check every chat template, and which of them became the default."""
        expected = {}
        for name, text in declared_templates(files).items():
            safe = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_-") else "_" for sign in name)
            expected[TEMPLATE if name == "default" else f"{TEMPLATE}.{safe}"] = text
        if template and not {"{query}", "{document}"} <= set(_PLACES.findall(expected.get(RERANK, ""))):
            expected[RERANK] = template
        found = {key: value.data for key, value in self.keys.items() if key.split(".", 2)[:2] == TEMPLATE.split(".")}
        return self._compare(found, expected) if len(expected) < MOST else 0

    def special(self, files: Mapping[str, str]) -> int:
        """Check special ids: by the texts that name them, else by the numbers of the configurations."""
        tokens, count = self.keys["tokenizer.ggml.tokens"].data, 0
        config, generation = _object(files.get("config.json")), _object(files.get("generation_config.json"))
        naming = [_object(files.get(name)) for name in ("tokenizer_config.json", "special_tokens_map.json")]
        for role, key in IDS.items():
            text = next(_texts(naming, f"{role}_token"), None)
            token, code = self._data(f"tokenizer.ggml.{key}"), _end_of_codes(config) if role == "eos" else None
            if code is not None:
                self._same(f"tokenizer.ggml.{key}", token, len(tokens) + code)
                count += 1
            elif text is not None and text in tokens:
                if token is None or tokens[token] != text:
                    self._fail(f"tokenizer.ggml.{key}", None if token is None else tokens[token], text)
                count += 1
            elif role in ("bos", "eos", "pad") and set(files).isdisjoint(OTHERS) and "tokenizer.json" in files:
                numbers = [
                    number for declared in (config, generation) for number in _ids(declared, f"{role}_token_id")[:1]
                ]
                number = next((number for number in numbers if 0 <= number < len(tokens)), None)
                if number is not None and self._type(number) != NORMAL and not self._framing(role, token):
                    self._same(f"tokenizer.ggml.{key}", token, number)
                    count += 1
        ends = _ids(generation, "eos_token_id")
        for key, texts in TURNS.items():
            token = self._data(f"tokenizer.ggml.{key}")
            if ends and token is not None and set(files).isdisjoint(OTHERS):
                if token not in ends or tokens[token] not in texts.split():
                    self._fail(f"tokenizer.ggml.{key}", token, f"one of {ends}")
                count += 1
        return count

    def _framing(self, role: str, token: int | None) -> bool:
        """Return whether a token stands before or behind a text by the tokenizer, whatever config.json says.

        The tokenizer of a BERT is stated by its file, and the configuration beside it often has its class's numbers.
        """
        beside = {"bos": "cls_token_id", "eos": "seperator_token_id"}.get(role)
        word_piece = self._data("tokenizer.ggml.model") == "bert"
        return token is not None and (
            word_piece or (beside is not None and token == self._data(f"tokenizer.ggml.{beside}"))
        )

    def flags(self, files: Mapping[str, str]) -> int:
        """Check add_bos and add_eos by tokenizer_config.json where no tokenizer.json frames a text."""
        config, count = _object(files.get("tokenizer_config.json")), 0
        for role in ("bos", "eos"):
            declared, key = config.get(f"add_{role}_token"), f"tokenizer.ggml.add_{role}_token"
            known = self._data(f"tokenizer.ggml.{role}_token_id") is not None
            if isinstance(declared, bool) and known and "tokenizer.json" not in files and key not in self.free:
                self._same(key, self._data(key), declared)
                count += 1
        return count

    def _compare(self, found: Mapping[str, Any], expected: Mapping[str, Any]) -> int:
        for key in sorted({*found, *expected} - set(self.free)):
            self._same(key, found.get(key), expected.get(key))
        return len(expected)

    def _same(self, key: str, found: Any, expected: Any) -> None:
        if key in self.free or found == expected:
            return
        number = isinstance(found, float) and isinstance(expected, int | float)
        if not number or struct.pack("<f", found) != struct.pack("<f", expected):
            self._fail(key, found, expected)

    def _fail(self, key: str, found: Any, expected: Any) -> None:
        if key in self.free:
            return
        shown = [value if value is None else f"{value!r:.60}" for value in (found, expected)]
        raise VerificationError(
            f"{key} is not what the source's files state",
            path=self.path,
            found=shown[0] or "none",
            expected=shown[1] or "none",
            hint=f"--allow-keys '{key}' lets it differ",
        )

    def _data(self, key: str) -> Any:
        value = self.keys.get(key)
        return value.data if isinstance(value, Value) else None

    def _type(self, token: int) -> int:
        kinds = self._data("tokenizer.ggml.token_type")
        return NORMAL if kinds is None else int(kinds[token])


OTHERS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "qwen.tiktoken")
"""Vocabularies that have special tokens of their own, whatever the configurations say."""


def declared_templates(files: Mapping[str, str]) -> dict[str, str]:
    """Return every chat template by name, 'default' among them.

    A template's own file wins over chat_template.json, and that over tokenizer_config.json, as in transformers
    (`tokenization_utils_base.py`, from_pretrained).
    """
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "chat_template.json"):
        declared = _object(files.get(name)).get("chat_template")
        if isinstance(declared, str):
            found["default"] = declared
        elif isinstance(declared, list):
            found |= {entry["name"]: entry["template"] for entry in declared if isinstance(entry.get("template"), str)}
    for name, path in files.items():
        if name.startswith(FOLDER):
            root = os.path.dirname(os.path.dirname(path))
            found[name.removeprefix(FOLDER).removesuffix(".jinja")] = read_text(path, root=root)
    if "chat_template.jinja" in files:
        found["default"] = read_text(files["chat_template.jinja"])
    return found


def _end_of_codes(config: Mapping[str, Any]) -> int | None:
    """Return the code behind which nothing follows, counted from the last token; None for a model of texts alone.

    Source: qwen-tts 0.1.1, `Qwen3TTSForConditionalGeneration.generate`, whose end is no token of its tokenizer.
    """
    part, named = config.get("talker_config"), config.get("architectures")
    if not isinstance(named, list) or "Qwen3TTSForConditionalGeneration" not in named or not isinstance(part, dict):
        return None
    taken = {"codec_eos_token_id": 4198, "vocab_size": 3072}  # where the configuration states none, or null
    end, count = (default if part.get(key) is None else part[key] for key, default in taken.items())
    return int(end) - int(count)


def _object(path: str | None) -> Mapping[str, Any]:
    """Return the JSON object in a file; empty where there is none."""
    return {} if path is None else load_object(path)


def _sayable(name: str, value: Any) -> bool:
    if name == "sequence" or isinstance(value, bool | str) or value is None:
        return name == "sequence" and isinstance(value, str)
    if name in WHOLE:
        return isinstance(value, int) and -(2**31) <= value < 2**31
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2.0**127


def _texts(naming: Iterable[Mapping[str, Any]], key: str) -> Iterator[str]:
    """Yield the texts by which tokenizer_config.json, then special_tokens_map.json, name a token."""
    for declared in naming:
        entry = declared.get(key)
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield text


def _ids(declared: Mapping[str, Any], key: str) -> list[int]:
    """Return the ids under a key, which is one or a list."""
    found = declared.get(key)
    return [one for one in (found if isinstance(found, list) else [found]) if type(one) is int]
