"""Compare the vocabulary of an output with the source's own files, as read by the libraries that define them.

That covers every token's text, score and type as the library gives them, every merge, special tokens by their texts,
and chat templates as they are. The conversion's own reading of these files has no part in it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ggferry.converters.tokenizers.building_blocks.byte_level import spell, unspell
from ggferry.converters.tokenizers.encoders.wordpiece import vocabulary_line
from ggferry.converters.tokenizers.files.sidecar_settings import TEMPLATE_FOLDER, Sidecars, special_text
from ggferry.converters.tokenizers.libraries.cross_check import (
    FAIRSEQ,
    QWEN,
    SENTENCEPIECE,
    TEKKEN,
    TIKTOKEN,
    ReferenceTokenizer,
)
from ggferry.converters.tokenizers.tokenizer import CHAT_TEMPLATE, GGML, SPACE, SPECIAL_KEYS, Tokenizer, TokenType
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import VerificationError
from ggferry.formats.files.local_files import read_text
from ggferry.support.heavy import np

FRAMING = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")
PADDED = re.compile(r"\[(?:PAD|DUP)\d+\]'*")  # our names where the source has no token, or has one twice
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
NAMING = ("special_tokens_map.json", "tokenizer_config.json")  # the last that names a token counts


def check_raw(
    output: Tokenizer,
    reference: ReferenceTokenizer,
    facts: Mapping[str, Any],
    files: Sidecars,
    path: str,
    apart: Collection[str] = (),
) -> dict[str, int]:
    """Count the tokens, merges, special ids and templates of the output, having checked that they are the source's.

    Args:
        output: The vocabulary as it was read again.
        witness: The library, and the tokens added after training.
        facts: The vocabulary as the library gives it.
        files: The source's files.
        path: The output's, for errors.
        apart: Keys that may differ.

    Raises VerificationError naming the first thing that is not the source's.
    """
    held = _Held(output, path)
    held.added(reference)
    merges = 0
    if reference.library in (SENTENCEPIECE, FAIRSEQ):
        held.pieces(facts["vocabulary"], facts["scores"], facts["types"], {one.id for one in reference.added})
    elif reference.library == TEKKEN:
        texts = {rank: spell(base64.b64decode(token)) for token, rank in facts["vocabulary"].items()}
        held.ranks(texts)
        held.specials({int(rank): text for rank, text in facts["special"].items()})
    elif reference.library in (TIKTOKEN, QWEN):
        held.ranks({rank: spell(base64.b64decode(token)) for token, rank in facts["vocabulary"].items()})
        held.specials({int(token): text for token, text in facts.get("special", {}).items()})
    else:
        document = files.object("tokenizer.json").get("model") or {}
        if isinstance(document.get("vocab"), list):  # Unigram: a text may occur more than once
            texts = {token: entry[0] for token, entry in enumerate(document["vocab"])}
            held.scores([entry[1] for entry in document["vocab"]])
        else:
            texts = {token: text for text, token in facts["vocabulary"].items()}
        held.tokens(texts, {int(token): entry for token, entry in facts["added"].items()})
        if output.merges is not None:
            merges = held.merges(document.get("merges"), files)
        whole, plain = facts["framed"]
        held.framed(whole, plain, files.object("tokenizer.json").get("post_processor"), apart)
    special, templates = held.special(files, apart), 0 if CHAT_TEMPLATE in apart else held.templates(files)
    return {"tokens": len(output.tokens), "merges": merges, "special": special, "templates": templates}


def check_held(output: Tokenizer, raw: RawVocab, path: str) -> dict[str, int]:
    """Count the ordinary tokens of the output, having checked them against a file of the GGML era.

    Each must be the file's byte for byte, with its score where the file has scores. Raises VerificationError naming the
    first that is not.
    """
    held, count = _Held(output, path), min(len(raw.tokens), len(output.tokens))
    ordinary = [token for token in range(count) if output.type_of(token) == TokenType.NORMAL]
    spellings = _word_of if output.model == "bert" else _bytes_of
    for token in ordinary:
        if raw.tokens[token] not in spellings(output.tokens[token]):
            raise held.wrong(f"text of token {token}", output.tokens[token], raw.tokens[token])
    if raw.scores and any(raw.scores):
        held.scores(raw.scores, set(range(count)).difference(ordinary))
    return {"tokens": len(ordinary)}


def _bytes_of(text: str) -> set[bytes]:
    """Return what a token of the output may have been in a file of the time.

    That is its bytes, the bytes that it spells, a blank for a visible one, or bytes taken for code points (ggml's MPT
    script).
    """
    spelled = unspell(text)
    plain = {text.encode("utf-8", "surrogateescape"), text.replace(SPACE, " ").encode("utf-8", "surrogateescape")}
    return plain if spelled is None else {*plain, spelled, spelled.decode("latin-1").encode()}


def _word_of(text: str) -> set[bytes]:
    """Return what a WordPiece token of the output may have been in vocab.txt."""
    return {vocabulary_line(text).encode("utf-8", "surrogateescape")}


class _Held:
    """The output's vocabulary, with a check for each thing that the source's files state."""

    def __init__(self, output: Tokenizer, path: str) -> None:
        self.output, self.path = output, path

    def added(self, reference: ReferenceTokenizer) -> None:
        """Check the tokens added after training, at their ids.

        Those that llama.cpp looks for in plain text have real spaces.
        """
        for one in reference.added:
            if one.id < len(self.output.tokens) and not self._stands_for_none(one.id):
                self._text(one.id, {one.content, one.content.replace(SPACE, " ")})

    def pieces(self, texts: Sequence[str], scores: Sequence[float], types: Sequence[int], added: set[int]) -> None:
        """Check SentencePiece's own pieces. User-defined ones may be spelled with real spaces."""
        self.scores(scores, added)
        for token, text in enumerate(self.output.tokens):
            kind = self._type(token)
            if token in added or self._stands_for_none(token):
                continue
            if token >= len(texts):
                raise self.wrong(f"token {token} is none of the source's", text, None)
            spelled = (
                {texts[token], texts[token].replace(SPACE, " ")} if kind == TokenType.USER_DEFINED else {texts[token]}
            )
            self._text(token, spelled)
            if kind != types[token]:
                raise self.wrong(f"type of token {token} ({text!r})", kind, types[token])

    def ranks(self, texts: Mapping[int, str]) -> None:
        """Check the tokens of a file of ranks, each at its id, without a gap. Those around them are special."""
        for token in range(min(texts), max(texts) + 1):
            self._text(token, {texts.get(token, "")})
            if self._type(token) != TokenType.NORMAL:
                raise self.wrong(f"type of token {token} ({texts[token]!r})", self._type(token), TokenType.NORMAL)

    def specials(self, texts: Mapping[int, str]) -> None:
        """Check the special tokens that a file names, each at its id."""
        for token, text in texts.items():
            if token >= len(self.output.tokens):  # --trim-vocab, or a model with fewer rows
                continue
            self._text(token, {text})
            if self._type(token) not in (TokenType.CONTROL, TokenType.USER_DEFINED):
                raise self.wrong(
                    f"type of token {token} ({text!r}), which is special", self._type(token), TokenType.CONTROL
                )

    def scores(self, scores: Sequence[float], but: Collection[int] = ()) -> None:
        """Check the score of every trained piece."""
        count = min(len(scores), len(self.output.tokens))
        if self.output.scores is None:
            raise self.wrong("no scores", None, f"{len(scores)} scores")
        found, expected = (np.asarray(side[:count], np.float32) for side in (self.output.scores, scores))
        for token in np.flatnonzero(found != expected).tolist():
            if token not in but:
                raise self.wrong(f"score of token {token}", float(found[token]), float(expected[token]))

    def tokens(self, texts: Mapping[int, str], added: Mapping[int, Sequence[Any]]) -> None:
        """Check the tokens of a tokenizer.json.

        Special ones are control tokens; those of WordPiece are spelled with a space in front.
        """
        bert = self.output.model == "bert"
        for token in range(len(self.output.tokens)):
            kind = self._type(token)
            content, special = added.get(token, (None, False))
            text = content if content is not None else texts.get(token)
            if self._stands_for_none(token):
                continue
            if text is None:
                raise self.wrong(f"token {token} is none of the source's", self.output.tokens[token], None)
            self._text(token, _spelled(text, kind, bert))
            if special and kind not in (TokenType.CONTROL, TokenType.UNKNOWN):
                raise self.wrong(f"type of token {token} ({text!r}), which is special", kind, TokenType.CONTROL)
            if content is None and kind in (TokenType.CONTROL, TokenType.USER_DEFINED) and not bert:
                raise self.wrong(f"type of token {token} ({text!r}), which was trained", kind, TokenType.NORMAL)

    def merges(self, declared: Any, files: Sidecars) -> int:
        """Check every merge, in the file's order, without those of tokens that --trim-vocab dropped.

        Returns the number of merges.
        """
        if declared is None:
            lines = read_text(files.files["merges.txt"]).split("\n")
            declared = [line.rstrip("\r") for line in lines if line.strip() and not line.startswith("#version")]
        expected = [" ".join(merge) if isinstance(merge, list) else merge for merge in declared]
        found = self.output.merges or ()
        if len(found) < len(expected):
            kept = set(self.output.tokens)
            expected = [merge for merge in expected if {*(halves := merge.split(" ")), "".join(halves)} <= kept]
        for rank, (here, there) in enumerate(zip_longest(found, expected)):
            if here != there:
                raise self.wrong(f"merge {rank}", here, there)
        return len(found)

    def framed(self, whole: Sequence[int], plain: Sequence[int], processor: Any, apart: Collection[str]) -> None:
        """Check that bos and eos are put around a text as the library puts them.

        No flag can state anything but nothing or the one token; and without a template of its own, the file states
        nothing.

        Args:
            whole: The ids of a text with what the library adds.
            plain: The ids of the same text alone.
            processor: The file's post_processor.
            apart: Keys that may differ.
        """
        starts = range(len(whole) - len(plain) + 1)
        start = next((start for start in starts if whole[start : start + len(plain)] == plain), None)
        if start is None or not any(name in str(processor) for name in FRAMING):
            return
        for flag, role, around in (("add_bos", "bos", whole[:start]), ("add_eos", "eos", whole[start + len(plain) :])):
            flag_value, token = self.output.flags.get(flag), self.output.ids.get(role)
            known = not around or list(around) == [token]
            if flag_value is not None and known and flag_value != bool(around) and f"{GGML}{flag}_token" not in apart:
                raise self.wrong(f"{flag}_token", flag_value, bool(around))

    def special(self, files: Sidecars, apart: Collection[str]) -> int:
        """Check the special ids by the texts that the configuration names; return their number."""
        count = 0
        for role in ROLES:
            if any(GGML + key in apart for key in SPECIAL_KEYS[role]):
                continue
            named = [special_text(files.object(name), f"{role}_token", files.path(name)) for name in NAMING]
            text = next((each for each in reversed(named) if each is not None), None)
            token = self.output.ids.get(role)
            if text is None or text not in self.output.tokens:
                continue
            if token is None or self.output.tokens[token] != text:
                raise self.wrong(f"{role} token", None if token is None else self.output.tokens[token], text)
            count += 1
        return count

    def templates(self, files: Sidecars) -> int:
        """Check the default chat template; return the number of templates.

        Where several files state one, chat_template.jinja is the last and wins.
        """
        declared = [files.object(name).get("chat_template") for name in ("tokenizer_config.json", "chat_template.json")]
        texts = [text for text in declared if isinstance(text, str)]
        if "chat_template.jinja" in files.files:
            texts.append(read_text(files.files["chat_template.jinja"]))
        several = any(isinstance(text, list) for text in declared) or f"{TEMPLATE_FOLDER}/default.jinja" in files.files
        if texts and not several and self.output.templates.get("") != texts[-1]:
            raise self.wrong("chat template", self.output.templates.get(""), texts[-1])
        return len(self.output.templates)

    def _type(self, token: int) -> int:
        return self.output.type_of(token)

    def _stands_for_none(self, token: int) -> bool:
        unused = self._type(token) == TokenType.UNUSED
        return unused and PADDED.fullmatch(self.output.tokens[token]) is not None

    def _text(self, token: int, spelled: set[str]) -> None:
        if self.output.tokens[token] not in spelled:
            raise self.wrong(f"text of token {token}", self.output.tokens[token], min(spelled))

    def wrong(self, what: str, found: object, expected: object) -> VerificationError:
        """Return the error for something that is not the source's."""
        return VerificationError(f"not the source's: {what}", path=self.path, found=found, expected=expected)


def _spelled(text: str, kind: int, bert: bool) -> set[str]:
    """Return how GGUF may spell a token of a tokenizer.json."""
    if bert:
        return {text, text.removeprefix("##"), SPACE + text}
    return {text, text.replace(SPACE, " ")} if kind == TokenType.USER_DEFINED else {text}
