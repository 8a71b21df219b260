"""Read tokenizer.json: byte-level BPE → 'gpt2', byte-fallback BPE → 'llama', unigram → 't5', WordPiece → 'bert'."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added, as_entry, check_ids, read_all_added
from ggferry.converters.tokenizers.building_blocks.bpe_document import BpeDocument, read_document, read_vocabulary
from ggferry.converters.tokenizers.building_blocks.byte_level import letters
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.building_blocks.steps import flattened, kind_of, names
from ggferry.converters.tokenizers.encoders.wordpiece import phantom
from ggferry.converters.tokenizers.files.derive_pre_tokenizer import UNICODE_FORMS, derive
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import (
    Sidecars,
    Source,
    TokenizerInputs,
    framing,
    special_text,
)
from ggferry.converters.tokenizers.libraries.ask import ask
from ggferry.converters.tokenizers.libraries.cross_check import TOKENIZERS, ReferenceTokenizer, cross_check, weigh
from ggferry.converters.tokenizers.sample_texts import TEXTS
from ggferry.converters.tokenizers.tokenizer import SPACE, Tokenizer, TokenType, byte_of, encoder, unique
from ggferry.formats.errors import CorruptError, InconsistentError, OutOfRangeError, UnsupportedError
from ggferry.formats.json_files import kinds as json_kinds
from ggferry.formats.json_files.kinds import JSONObject
from ggferry.formats.limits import MAX_TOKEN_BYTES, MAX_VOCAB
from ggferry.support.content_cache import Recent, held

ORIGIN = "tokenizer.json"
NO_VOCAB = "--no-vocab writes the tensors alone"
UNREACHED_SCORE = -1e9
_KNOWN: Recent[Tokenizer] = Recent(128 << 20)
"""(Digest of tokenizer.json, added tokens, --pre) → the proved tokenizer that was made of it."""


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of tokenizer.json with all added tokens, before special roles, flags and padding.

    Raises CorruptError for a file that contradicts itself, UnsupportedError for a kind without a GGUF form.
    """
    sidecars, added, pre = inputs.sidecars, inputs.added, inputs.pre
    document = sidecars.object(ORIGIN)
    path = sidecars.path(ORIGIN) or ORIGIN
    model = json_kinds.as_object(document.get("model"), "model", path)
    kind = json_kinds.text(model, "type", path) or ("BPE" if "merges" in model else None)
    framing(document.get("post_processor"), path)  # its own mistakes are named here; the library's words name no place
    check_ids([*read_all_added(document, path), *_unlisted(inputs)], model.get("vocab"), inputs.rows, path)
    if kind == "BPE":
        key = sidecars.digest(ORIGIN), added, pre
        found = _KNOWN.get(key)
        if found is None:
            found = _bpe(replace(read_document(document, path), added=added), _reference(inputs), pre)
            if key[0] is not None:
                _KNOWN.put(key, found, held(found.texts()))
        return found
    if kind == "Unigram":
        return _sayable(with_added(_unigram(document, path), added), _reference(inputs))
    if kind == "WordPiece":
        made = word_piece(read_vocabulary(model.get("vocab"), path), sidecars, added, path)
        return _sayable(made, _reference(inputs))
    raise UnsupportedError(
        "a tokenizer.json of this type has no GGUF form", path=path, found=kind, expected="BPE, Unigram, WordPiece"
    )


def _reference(inputs: TokenizerInputs) -> ReferenceTokenizer:
    """Return tokenizers with the file as it is; tokens that only sidecar files list are added, as in transformers."""
    sidecars, path = inputs.sidecars, inputs.sidecars.path(ORIGIN)
    document = sidecars.object(ORIGIN)
    listed = json_kinds.objects(document, "added_tokens", path)
    more = [as_entry(one) for one in _unlisted(inputs)]
    data = json.dumps({**document, "added_tokens": [*listed, *more]}).encode() if more else sidecars.raw(ORIGIN)
    return ReferenceTokenizer(TOKENIZERS, data, path, inputs.added, forced=inputs.pre is not None)


def _unlisted(inputs: TokenizerInputs) -> list[Added]:
    """Return the added tokens that only other files list, which transformers adds after those of tokenizer.json."""
    listed = json_kinds.objects(inputs.sidecars.object(ORIGIN), "added_tokens", inputs.sidecars.path(ORIGIN) or ORIGIN)
    known = {entry.get("content") for entry in listed}
    return [one for one in inputs.added if one.content not in known]


def _sayable(tokenizer: Tokenizer, reference: ReferenceTokenizer) -> Tokenizer:
    """Return `tokenizer`, if its encoder gives the library's ids.

    Raises UnsupportedError naming the first text for which it does not, and which no kind of vocabulary could express.
    """
    found = cross_check(reference, tokenizer, encoder(tokenizer))
    if found.check.first is not None:
        first = found.check.first
        raise UnsupportedError(
            f"this tokenizer.json does what a {tokenizer.model!r} vocabulary in GGUF cannot say: other ids for "
            f"{first.text!r}",
            path=reference.path,
            found=list(first.b),
            expected=list(first.a),
            hint=NO_VOCAB,
        )
    notes = [f"{why}: a runtime gives other ids than {found.by}; no GGUF key says so" for why in found.excused]
    return tokenizer.noted(*notes)


def _bpe(document: BpeDocument, reference: ReferenceTokenizer, pre: str | None) -> Tokenizer:
    if _is_byte_level(document):
        return _byte_level(document, reference, pre)
    if document.byte_fallback:
        return _byte_fallback(document, reference)
    raise UnsupportedError("BPE is neither byte-level nor has a byte fallback", path=document.path)


def in_order(vocabulary: dict[str, int]) -> tuple[tuple[str, ...], tuple[int, ...], list[int]]:
    """Return the texts by id, their types, and the ids that nobody uses (named [PADi], type UNUSED)."""
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
    """Return whether a step of the file spells bytes as letters, or the vocabulary holds every letter."""
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


def _byte_level(document: BpeDocument, reference: ReferenceTokenizer, pre: str | None) -> Tokenizer:
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
    forms = names(document.normalizer, "normalizer", document.path)
    if forms:
        if pre is None and not UNICODE_FORMS.issuperset(forms):
            raise UnsupportedError(
                "the normalizer changes ordinary text and byte-level BPE in GGUF has no normalizer",
                path=document.path,
                found=", ".join(forms),
                hint="--pre NAME converts without it",
            )
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
    return derive(document, reference, tokenizer)


def _adds_space(document: BpeDocument) -> bool:
    todo = [document.pre_tokenizer]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            if node.get("type") == "ByteLevel":
                return json_kinds.flag(node, "add_prefix_space", document.path, True)
            todo += json_kinds.items(node, "pretokenizers", document.path)
    return False


def _byte_fallback(document: BpeDocument, reference: ReferenceTokenizer) -> Tokenizer:
    """Make a tokenizer of Llama 2's kind: SentencePiece BPE written as ranked merges.

    Scores follow from the ranks and are then proved.
    """
    tokens, types, gaps = in_order(document.vocabulary)
    kinds = [
        TokenType.UNKNOWN if text == document.unk_token else TokenType.BYTE if byte_of(text) is not None else kind
        for text, kind in zip(tokens, types, strict=True)
    ]
    special = {one.content for one in document.added}
    normal = [kind == TokenType.NORMAL and text not in special for text, kind in zip(tokens, kinds, strict=True)]
    scores = _scores(document, [text for text, is_normal in zip(tokens, normal, strict=True) if is_normal])
    texts = (*TEXTS, "a")
    answer = ask(reference.library, reference.data, texts, path=reference.path, normalize=True)
    tokenizer = Tokenizer(
        model="llama",
        pre="default",
        tokens=tokens,
        scores=tuple(scores[text] if is_normal else 0.0 for text, is_normal in zip(tokens, normal, strict=True)),
        types=tuple(kinds),
        ids={} if document.unk_token not in document.vocabulary else {"unk": document.vocabulary[document.unk_token]},
        flags={
            "add_bos": True,
            "add_eos": False,
            "add_space_prefix": _starts_with_space(document, answer.ids(len(TEXTS))),
        },
        notes=gaps_note(gaps),
        origins={"scores": "rank of the first merge that makes a piece, proved"}
        | dict.fromkeys(("tokens", "types", "add_space_prefix"), ORIGIN),
    )
    tokenizer = with_added(tokenizer, document.added)
    found = weigh(reference, tokenizer, encoder(tokenizer), texts, answer)
    if found.check.first is not None:
        first, steps = found.check.first, _other_steps(document)
        raise InconsistentError(
            f"merges by score give other ids than this tokenizer.json for {first.text!r}" + steps,
            path=document.path,
            found=list(first.b),
            expected=list(first.a),
            hint=f"the model's tokenizer.model has the scores; {NO_VOCAB}",
        )
    if found.excused:
        tokenizer = tokenizer.noted(
            "before text that begins with a space or follows a special token this tokenizer.json puts no space, "
            "today's runtimes of a 'llama' vocabulary do"
        )
    return tokenizer


def _other_steps(document: BpeDocument) -> str:
    """Return, in words, the steps that a 'llama' vocabulary cannot have."""
    path = document.path
    steps = [name for name in names(document.normalizer, "normalizer", path) if name not in ("Prepend", "Replace")]
    steps += [name for name in names(document.pre_tokenizer, "pre_tokenizer", path) if name != "Metaspace"]
    return f" ({', '.join(steps)}: no 'llama' vocabulary has such steps)" if steps else ""


def _scores(document: BpeDocument, pieces: list[str]) -> dict[str, float]:
    """Return scores that make SentencePiece's merging choose as the ranked merges do.

    Where the merges make the pieces in the order of their ids, as in every vocabulary that SentencePiece trained, these
    are the trainer's own scores: 0, -1, -2 … by id. Otherwise they follow the rank of the first merge that makes a
    piece.
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


def _starts_with_space(document: BpeDocument, ids: list[int]) -> bool:
    """Return whether the first of the ids, of a text without a space, is a piece with one."""
    first = next((text for text, token in document.vocabulary.items() if [token] == ids[:1]), "")
    return first.startswith(SPACE)


def _unigram(document: JSONObject, path: str) -> Tokenizer:
    model = document["model"]
    entries = model.get("vocab")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_VOCAB:
        raise CorruptError("no vocabulary", path=path, found=type(entries).__name__, expected="[[piece, score], …]")
    texts, scores = [], []
    for token, entry in enumerate(entries):
        if (
            not isinstance(entry, list)
            or len(entry) != 2
            or not isinstance(entry[0], str)
            or type(entry[1]) not in (int, float)
            or entry[1] != entry[1]
            or len(entry[0]) > MAX_TOKEN_BYTES
        ):
            raise CorruptError(f"piece {token} is not [text, score]", path=path, found=entry)
        texts.append(entry[0])
        scores.append(float(entry[1]))
    unknown = model.get("unk_id")
    if unknown is not None and (type(unknown) is not int or not 0 <= unknown < len(texts)):
        raise OutOfRangeError("unk_id is not a piece", path=path, found=unknown)
    fallback = json_kinds.flag(model, "byte_fallback", path, False)
    types = [TokenType.BYTE if fallback and byte_of(text) is not None else TokenType.NORMAL for text in texts]
    if unknown is not None:
        types[unknown] = TokenType.UNKNOWN
    charsmap, tidy = _charsmap(document.get("normalizer"), path)
    prefix, split = _metaspace(document.get("pre_tokenizer"), path)
    return Tokenizer(
        model="t5",
        pre="default",
        tokens=tuple(texts),
        scores=tuple(scores),
        types=tuple(types),
        ids={} if unknown is None else {"unk": unknown},
        flags={
            "add_space_prefix": prefix,
            "remove_extra_whitespaces": tidy or split,
        },
        charsmap=charsmap,
        origins=dict.fromkeys(("tokens", "scores", "types", "charsmap", "add_space_prefix"), ORIGIN),
    )


def _charsmap(node: Any, path: str) -> tuple[bytes | None, bool]:
    """Return the charsmap of a normalizer, and whether runs of blanks become one. Raises UnsupportedError for more."""
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
            raise _unrepresentable("normalizer", str(kind), "unigram", path)
    return data or None, tidy


def _metaspace(node: Any, path: str) -> tuple[bool, bool]:
    """Return whether a space is put in front of a text, and whether blanks around words are removed.

    Raises UnsupportedError for steps that are neither Metaspace nor WhitespaceSplit: GGUF has no other for a unigram
    vocabulary.
    """
    prefix = tidy = False
    for step in flattened(node, "pre_tokenizer", path):
        kind = kind_of(step, path)
        if kind == "WhitespaceSplit":
            tidy = True
        elif kind == "Metaspace" and json_kinds.text(step, "replacement", path, SPACE) == SPACE:
            before = "always" if json_kinds.flag(step, "add_prefix_space", path, True) else "never"
            prefix = json_kinds.text(step, "prepend_scheme", path, before) != "never"
        else:
            raise _unrepresentable("pre-tokenizer", kind, "unigram", path)
    return prefix, tidy


def _unrepresentable(what: str, found: str, kind: str, path: str) -> UnsupportedError:
    return UnsupportedError(f"a {kind} {what} without a GGUF form", path=path, found=found, hint=NO_VOCAB)


def word_piece(vocabulary: dict[str, int], sidecars: Sidecars, added: Sequence[Added], path: str) -> Tokenizer:
    """Return a 'bert' tokenizer of WordPiece tokens; the normalizer is from tokenizer.json or tokenizer_config.json."""
    texts, types, gaps = in_order(vocabulary)
    document = sidecars.object(ORIGIN)
    config = sidecars.object("tokenizer_config.json")
    beside = sidecars.path("tokenizer_config.json")
    model = json_kinds.members(document, "model", path)
    prefix = json_kinds.text(model, "continuing_subword_prefix", path, "##")
    bert = json_kinds.members(document, "normalizer", path)
    _check_bert(document, config, path, beside)
    declared = json_kinds.flag(config, "do_lower_case", beside, True)
    lowercase = json_kinds.flag(bert, "lowercase", path, declared)
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
    spelled = tuple(
        unique(phantom(text, prefix) if kind == TokenType.NORMAL else text, taken)
        for text, kind in zip(texts, kinds, strict=True)
    )
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


def _check_bert(document: json_kinds.Object, config: json_kinds.Object, path: str, beside: str | None) -> None:
    """Raise UnsupportedError for steps that runtimes of a 'bert' vocabulary do not take.

    These always clean text, set Chinese characters apart, and cut at blanks and punctuation.
    """
    bert = json_kinds.members(document, "normalizer", path)
    if document and bert.get("type") != "BertNormalizer":
        raise _unrepresentable("normalizer", str(bert.get("type")), "WordPiece", path)
    for name in ("handle_chinese_chars", "clean_text"):
        if json_kinds.flag(bert, name, path, True) is False:
            raise _unrepresentable("normalizer", f"{name}: false", "WordPiece", path)
    for name in ("tokenize_chinese_chars", "do_basic_tokenize"):
        if not document and json_kinds.flag(config, name, beside, True) is False:
            raise _unrepresentable("normalizer", f"{name}: false", "WordPiece", beside or path)
    steps = names(document.get("pre_tokenizer"), "pre_tokenizer", path)
    if document and steps != ("BertPreTokenizer",):
        raise _unrepresentable("pre-tokenizer", ", ".join(steps) or "none", "WordPiece", path)


SOURCE = Source("tokenizer.json", 30, ORIGIN, lambda sidecars: sidecars.path(ORIGIN) is not None, load, _reference)
