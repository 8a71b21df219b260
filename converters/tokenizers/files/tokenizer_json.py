"""tokenizer.json → GGUF: byte-level BPE 'gpt2', BPE with byte fallback 'llama', unigram 't5', WordPiece 'bert'."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.tokenizers.building_blocks.byte_level import letters
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.compare import compare
from ggferry.converters.tokenizers.encoders.wordpiece import phantom
from ggferry.converters.tokenizers.files.derive_pre_tokenizer import UNICODE_FORMS, derive
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, Wanted, special_text
from ggferry.converters.tokenizers.hugging_face.bpe import (
    Added,
    BpeDocument,
    JsonBpe,
    read_document,
    read_vocabulary,
)
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType, byte_of, encoder, unique
from ggferry.formats.errors import CorruptError, InconsistentError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB
from ggferry.support.content_cache import Recent, held

ORIGIN = "tokenizer.json"
UNREACHED_SCORE = -1e9
_KNOWN: Recent[Tokenizer] = Recent(128 << 20)
"""(Digest of tokenizer.json, added tokens, --pre) → what was made of it and proved."""


def load(wanted: Wanted) -> Tokenizer:
    """The tokenizer of tokenizer.json with all added tokens, before special roles, flags and padding.

    Raises CorruptError for a file that contradicts itself, UnsupportedError for a kind without a GGUF form.
    """
    sidecars, added, pre = wanted.sidecars, wanted.added, wanted.pre
    document = sidecars.object(ORIGIN)
    path = sidecars.path(ORIGIN) or ORIGIN
    model = json_kinds.as_object(document.get("model"), "model", path)
    kind = json_kinds.text(model, "type", path) or ("BPE" if "merges" in model else None)
    if kind == "BPE":
        key = sidecars.digest(ORIGIN), added, pre
        found = _KNOWN.get(key)
        if found is None:
            found = _bpe(replace(read_document(document, path), added=added), pre)
            if key[0] is not None:
                _KNOWN.put(key, found, held(found.texts()))
        return found
    if kind == "Unigram":
        return with_added(_unigram(document, path), added)
    if kind == "WordPiece":
        return word_piece(read_vocabulary(model.get("vocab"), path), sidecars, added, path)
    raise UnsupportedError(
        "a tokenizer.json of this type has no GGUF form", path=path, found=kind, expected="BPE, Unigram, WordPiece"
    )


def _bpe(document: BpeDocument, pre: str | None) -> Tokenizer:
    if _is_byte_level(document):
        return _byte_level(document, pre)
    if document.byte_fallback:
        return _byte_fallback(document)
    raise UnsupportedError("a BPE that is neither byte-level nor has a byte fallback", path=document.path)


def in_order(vocabulary: dict[str, int]) -> tuple[tuple[str, ...], tuple[int, ...], list[int]]:
    """Texts by id, their types, and the ids that nobody uses (named [PADi], type UNUSED)."""
    by_id = {token: text for text, token in vocabulary.items()}
    taken = set(vocabulary)
    texts, types, gaps = [], [], []
    for token in range(max(by_id) + 1):
        text = by_id.get(token)
        if text is None:
            gaps.append(token)
        texts.append(unique(f"[PAD{token}]", taken) if text is None else text)
        types.append(TokenType.UNUSED if text is None else TokenType.NORMAL)
    return tuple(texts), tuple(types), gaps


def gaps_note(gaps: list[int]) -> tuple[str, ...]:
    if not gaps:
        return ()
    return (f"repair 'pad': {len(gaps)} ids without a token, the first {gaps[0]}, became [PADi], type unused",)


def _is_byte_level(document: BpeDocument) -> bool:
    """Whether a step of the file spells bytes as letters, or the vocabulary holds every letter."""
    todo = [document.pre_tokenizer, document.normalizer, document.decoder]
    for _ in range(64):
        if not todo:
            break
        node = todo.pop()
        if isinstance(node, dict):
            if node.get("type") == "ByteLevel":
                return True
            todo += [child for value in node.values() if isinstance(value, list) for child in value]
    return not document.byte_fallback and all(letter in document.vocabulary for letter in letters())


def _byte_level(document: BpeDocument, pre: str | None) -> Tokenizer:
    source = JsonBpe(document)
    texts, types, gaps = in_order(document.vocabulary)
    tokenizer = Tokenizer(
        model="gpt2",
        tokens=texts,
        types=types,
        merges=tuple(f"{left} {right}" for left, right in document.merges),
        flags={"add_space_prefix": True} if _adds_space(document) else {},
        notes=gaps_note(gaps),
        origins=dict.fromkeys(("tokens", "types", "merges"), ORIGIN),
    )
    tokenizer = with_added(tokenizer, document.added)
    forms = source.normalizer.names
    if forms:
        if pre is None and not UNICODE_FORMS.issuperset(forms):
            raise UnsupportedError(
                "the normalizer changes ordinary text and byte-level BPE in GGUF has no normalizer",
                path=document.path, found=", ".join(forms), hint="--pre NAME converts without it",
            )  # fmt: skip
        tokenizer = tokenizer.noted(
            f"tokenizer.json normalizes text ({', '.join(forms)}); no GGUF key says so: runtimes take it as it stands"
        )
    if _adds_space(document):
        tokenizer = tokenizer.noted(
            "tokenizer.json puts a space before the text; runtimes of 'gpt2' vocabularies do not heed add_space_prefix"
        )
    if pre is not None:
        find_pre(pre)
        return replace(tokenizer, pre=pre, origins={**tokenizer.origins, "pre": "--pre"})
    found, _ = derive(source, tokenizer)
    return found


def _adds_space(document: BpeDocument) -> bool:
    todo = [document.pre_tokenizer]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            if node.get("type") == "ByteLevel":
                return json_kinds.flag(node, "add_prefix_space", document.path, True)
            todo += json_kinds.items(node, "pretokenizers", document.path)
    return False


def _byte_fallback(document: BpeDocument) -> Tokenizer:
    """Llama-2 kind: SentencePiece BPE written as ranked merges. Scores follow from the ranks and are then proved."""
    texts, types, gaps = in_order(document.vocabulary)
    kinds = [
        TokenType.UNKNOWN if text == document.unk_token else TokenType.BYTE if byte_of(text) is not None else kind
        for text, kind in zip(texts, types, strict=True)
    ]
    special = {one.content for one in document.added}
    normal = [kind == TokenType.NORMAL and text not in special for text, kind in zip(texts, kinds, strict=True)]
    scores = _scores(document, [text for text, is_normal in zip(texts, normal, strict=True) if is_normal])
    source = JsonBpe(document)
    tokenizer = Tokenizer(
        model="llama",
        pre="default",
        tokens=texts,
        scores=tuple(scores[text] if is_normal else 0.0 for text, is_normal in zip(texts, normal, strict=True)),
        types=tuple(kinds),
        ids={} if document.unk_token not in document.vocabulary else {"unk": document.vocabulary[document.unk_token]},
        flags={"add_bos": True, "add_eos": False, "add_space_prefix": _starts_with_space(source)},
        notes=gaps_note(gaps),
        origins={"tokens": ORIGIN, "types": ORIGIN, "scores": "rank of the first merge that makes a piece, proved"},
    )
    tokenizer = with_added(tokenizer, document.added)
    ours = encoder(tokenizer)
    plain = [text for text in TEXTS if not any(content in text for content in special)]
    plain = [text for text in plain if not text.startswith((" ", SPACE))]
    check = compare(source, ours, plain)
    if check.first is not None:
        raise InconsistentError(
            f"merges by score give other ids than this tokenizer.json for {check.first.text!r}",
            path=document.path, found=list(check.first.b), expected=list(check.first.a),
            hint="the model's tokenizer.model has the scores",
        )  # fmt: skip
    if not compare(source, ours).passed:
        tokenizer = tokenizer.noted(
            "before text that begins with a space or follows a special token this tokenizer.json puts no space, "
            "today's runtimes of a 'llama' vocabulary do"
        )
    return tokenizer


def _scores(document: BpeDocument, pieces: list[str]) -> dict[str, float]:
    """Scores that make SentencePiece's merging choose as the ranked merges do.

    Where the merges make the pieces in the order of their ids, as in every vocabulary that SentencePiece trained, it
    is the trainer's own scores: 0, -1, -2 … by id. Otherwise the rank of the first merge that makes a piece.
    """
    rank: dict[str, int] = {}
    for position, (left, right) in enumerate(document.merges):
        rank.setdefault(left + right, position)
    made = [rank[piece] for piece in pieces if piece in rank]
    if made == sorted(made):
        return {piece: -float(place) for place, piece in enumerate(pieces)}
    place_of = {piece: place for place, piece in enumerate(sorted(rank, key=rank.__getitem__))}
    return {
        piece: -float(place_of[piece]) if piece in place_of else 0.0 if len(piece) == 1 else UNREACHED_SCORE
        for piece in pieces
    }


def _starts_with_space(source: JsonBpe) -> bool:
    texts = {token: text for text, token in source.document.vocabulary.items()}
    return any(texts.get(token, "").startswith(SPACE) for token in source.encode("a")[:1])


def _unigram(document: dict[str, Any], path: str) -> Tokenizer:
    model = document["model"]
    entries = model.get("vocab")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_VOCAB:
        raise CorruptError("no vocabulary", path=path, found=type(entries).__name__, expected="[[piece, score], …]")
    texts, scores = [], []
    for token, entry in enumerate(entries):
        if (
            not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str)
            or type(entry[1]) not in (int, float) or entry[1] != entry[1] or len(entry[0]) > MAX_TOKEN_BYTES
        ):  # fmt: skip
            raise CorruptError(f"piece {token} is not [text, score]", path=path, found=entry)
        texts.append(entry[0])
        scores.append(float(entry[1]))
    unknown = model.get("unk_id")
    if unknown is not None and (type(unknown) is not int or not 0 <= unknown < len(texts)):
        raise OutOfRangeError("unk_id is no piece", path=path, found=unknown)
    fallback = json_kinds.flag(model, "byte_fallback", path, False)
    types = [TokenType.BYTE if fallback and byte_of(text) is not None else TokenType.NORMAL for text in texts]
    if unknown is not None:
        types[unknown] = TokenType.UNKNOWN
    charsmap, tidy = _charsmap(document.get("normalizer"), path)
    return Tokenizer(
        model="t5",
        pre="default",
        tokens=tuple(texts),
        scores=tuple(scores),
        types=tuple(types),
        ids={} if unknown is None else {"unk": unknown},
        flags={
            "add_space_prefix": _metaspace_prefix(document.get("pre_tokenizer"), path),
            "remove_extra_whitespaces": tidy,
        },
        charsmap=charsmap,
        origins=dict.fromkeys(("tokens", "scores", "types", "charsmap", "add_space_prefix"), ORIGIN),
    )


def _charsmap(node: Any, path: str) -> tuple[bytes | None, bool]:
    """The charsmap of a normalizer, and whether runs of blanks become one. Raises UnsupportedError for more."""
    todo, data, tidy = [node], None, False
    while todo:
        step = todo.pop(0)
        if step is None:
            continue
        kind = json_kinds.text(json_kinds.as_object(step, "normalizer", path), "type", path)
        if kind == "Sequence":
            todo = [*json_kinds.items(step, "normalizers", path), *todo]
        elif kind == "Precompiled":
            try:
                data = base64.b64decode(json_kinds.text(step, "precompiled_charsmap", path, ""), validate=True)
            except (binascii.Error, ValueError):
                raise CorruptError("precompiled_charsmap is not base64", path=path) from None
        elif kind == "Replace" and step.get("pattern") in ({"Regex": " {2,}"}, {"Regex": "\\s{2,}"}):
            tidy = True
        elif kind != "Strip":
            raise UnsupportedError("a unigram normalizer without a GGUF form", path=path, found=kind)
    return data or None, tidy


def _metaspace_prefix(node: Any, path: str) -> bool:
    nodes = [node]
    while nodes:
        step = nodes.pop()
        if step is not None:
            step = json_kinds.as_object(step, "pre_tokenizer", path)
            if step.get("type") == "Metaspace":
                before = "always" if json_kinds.flag(step, "add_prefix_space", path, True) else "never"
                return json_kinds.text(step, "prepend_scheme", path, before) != "never"
            nodes += json_kinds.items(step, "pretokenizers", path)
    return False


def word_piece(vocabulary: dict[str, int], sidecars: Sidecars, added: Sequence[Added], path: str) -> Tokenizer:
    """A 'bert' tokenizer from WordPiece tokens by id; normalizer from tokenizer.json or tokenizer_config.json."""
    texts, types, gaps = in_order(vocabulary)
    document = sidecars.object(ORIGIN)
    config = sidecars.object("tokenizer_config.json")
    beside = sidecars.path("tokenizer_config.json")
    model = json_kinds.members(document, "model", path)
    prefix = json_kinds.text(model, "continuing_subword_prefix", path, "##")
    bert = json_kinds.members(document, "normalizer", path)
    if document and bert.get("type") != "BertNormalizer":
        raise UnsupportedError("a WordPiece whose normalizer is not BERT's", path=path, found=bert.get("type"))
    said = json_kinds.flag(config, "do_lower_case", beside, True)
    lowercase = json_kinds.flag(bert, "lowercase", path, said)
    stripped = json_kinds.flag(config, "strip_accents", beside)
    accents = json_kinds.flag(bert, "strip_accents", path) if "strip_accents" in bert else stripped
    flags = {"add_bos": True, "add_eos": True, "add_sep": False, "lowercase": lowercase}
    if accents is not None and accents != lowercase:
        flags["strip_accents"] = accents
    unknown = json_kinds.text(model, "unk_token", path) or "[UNK]"
    roles = [special_text(config, f"{role}_token", beside) for role in ("cls", "sep", "pad", "mask")]
    named = {unknown, *filter(None, roles), *(one.content for one in added)}
    kinds = [TokenType.CONTROL if text in named else kind for text, kind in zip(texts, types, strict=True)]
    taken: set[str] = set()
    spelled = tuple(unique(phantom(text, prefix) if kind == TokenType.NORMAL else text, taken)
                    for text, kind in zip(texts, kinds, strict=True))  # fmt: skip
    special = {"unk": unknown, "cls": "[CLS]", "sep": "[SEP]", "bos": "[CLS]", "eos": "[SEP]"}
    tokenizer = Tokenizer(
        model="bert",
        pre="default",
        tokens=spelled,
        types=tuple(kinds),
        ids={role: vocabulary[text] for role, text in special.items() if text in vocabulary},
        flags=flags,
        token_type_count=2,
        notes=gaps_note(gaps),
        origins=dict.fromkeys(("tokens", "types", "lowercase"), path),
    )
    return with_added(tokenizer, added)


SOURCE = Source("tokenizer.json", 30, ORIGIN, lambda sidecars: sidecars.path(ORIGIN) is not None, load)
