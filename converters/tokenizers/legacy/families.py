"""Vocabularies of the GGML-era families other than LLaMA (docs/formats/ggml-era.md "Vocabularies").

Their makers wrote one of these: the bytes of each token (GPT-2, GPT-J, StarCoder, Falcon, Whisper); those bytes as code
points, encoded to UTF-8 once too often (MPT); the text that `decode` gave for each id, in which every fragment of a
character is U+FFFD (GPT-NeoX, Dolly, StableLM, BLOOM, all of llm-rs); SentencePiece pieces with scores (Replit);
nothing (RWKV). The first two are whole. The third needs the model's tokenizer, which is compared with what is left in
the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ggferry.converters.tokenizers.building_blocks.byte_level import unspell
from ggferry.converters.tokenizers.encoders.wordpiece import vocabulary_line
from ggferry.converters.tokenizers.files.find import files_of, load
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars
from ggferry.converters.tokenizers.files.tokenizer_json import word_piece
from ggferry.converters.tokenizers.legacy.byte_level import from_raw_bpe, is_whole
from ggferry.converters.tokenizers.legacy.clip_bpe import CLIP, clip_bpe, spelled
from ggferry.converters.tokenizers.legacy.moses_bpe import moses_bpe
from ggferry.converters.tokenizers.legacy.whisper_names import special_names
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType, byte_of, unique
from ggferry.formats.checkpoint import RawVocab
from ggferry.formats.errors import InconsistentError, RefusedError, UnsupportedError
from ggferry.formats.reader import VocabLayout

LOST = "\ufffd"
WAY_OUT = "--tokenizer DIR or tokenizer.json of the model, or --no-vocab for the tensors alone"


def from_family(
    raw: RawVocab | None,
    rule: VocabLayout,
    *,
    rows: int,
    source: str | None = None,
    pre: str | None = None,
    keep_json: bool = False,
    path: str | None = None,
) -> Tokenizer:
    """Return the GGUF tokenizer of a legacy vocabulary.

    Args:
        raw: The vocabulary as found, if any.
        rule: What the family's files hold.
        rows: Rows of the embedding.
        source: The model's own tokenizer, a folder or a file; it wins, and is compared token by token with the file's.
        pre: Name of the pre-tokenizer.
        keep_json: Whether to store tokenizer.json whole.
        path: The file's path, for errors.

    Raises RefusedError where the file does not hold the vocabulary and no source is given, InconsistentError naming the
    first id where source and file differ.
    """
    if source is not None:
        given = _given(source, rows, pre, keep_json)
        return given if raw is None else matched(given, raw, rule, path)
    if raw is None:
        raise RefusedError("this format holds no vocabulary", path=path, hint=WAY_OUT)
    if rule.texts == "unigram":
        return _from_pieces(raw).padded(rows, path=path)
    if rule.texts == "wordpiece":
        return _from_words(raw, path).padded(rows, path=path)
    if rule.texts == "moses":
        return _from_moses(raw).padded(rows, path=path)
    if rule.texts == "clip":
        return clip_bpe([*map(spelled, raw.tokens)], None, "the file's vocabulary").padded(rows, path=path)
    raw = replace(raw, tokens=repaired(raw.tokens) if rule.texts == "twice" else raw.tokens)
    if not is_whole(raw):
        count = sum(LOST.encode() in token for token in raw.tokens)
        raise RefusedError(
            "the vocabulary was decoded to text when the file was made: what is no character by itself is U+FFFD",
            path=path,
            found=f"{count} of {len(raw.tokens)} tokens lost",
            hint=WAY_OUT,
        )
    base = from_raw_bpe(raw, pre=pre, known_pre=rule.pre, path=path)
    return (_with_names(base, rows) if rule.texts == "whisper" else base).padded(rows, path=path)


def _given(source: str, rows: int, pre: str | None, keep_json: bool) -> Tokenizer:
    return load(files_of(source), rows=rows, pre=pre, keep_json=keep_json)


def repaired(tokens: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the bytes of tokens whose bytes were taken for code points and encoded to UTF-8 (ggml's MPT script).

    What was never encoded so stays as it is.
    """
    return tuple(_once(token) for token in tokens)


def _once(token: bytes) -> bytes:
    try:
        return token.decode("utf-8").encode("latin-1")
    except (UnicodeDecodeError, UnicodeEncodeError):
        return token


# --- what the file says against the tokenizer that was given --------------------------------------------------------


def matched(given: Tokenizer, raw: RawVocab, rule: VocabLayout, path: str | None) -> Tokenizer:
    """Return `given`, if it is this file's: every token that the file holds agrees with it.

    Raises InconsistentError.
    """
    bytes_of, exact = _bytes_of(given), 0
    once = replace(raw, tokens=repaired(raw.tokens))
    tokens = once.tokens if rule.texts == "twice" and is_whole(once) else raw.tokens
    for token, found in enumerate(tokens):
        kind = given.type_of(token) if token < len(given.tokens) else TokenType.UNUSED
        if kind == TokenType.UNUSED:  # padding: each maker wrote something else there
            continue
        expected = bytes_of(token)
        if found == expected:
            exact += 1
        elif not agrees(found, expected):
            raise InconsistentError(
                f"the tokenizer given is not this file's: id {token} differs", path=path, found=found, expected=expected
            )
    lost = len(tokens) - exact
    return given.noted(
        f"the vocabulary is the tokenizer's that was given: {exact} of its {len(tokens)} tokens stand in the file byte "
        "for byte" + (f", {lost} only as their decoded text" if lost else "")
    )


def _bytes_of(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    def spelled(token: int) -> bytes:
        text = tokenizer.tokens[token]
        if tokenizer.model == "bert":
            return vocabulary_line(text).encode("utf-8", "surrogateescape")
        lettered = tokenizer.model == "gpt2" or tokenizer.pre == CLIP
        plain = lettered and tokenizer.type_of(token) in (TokenType.NORMAL, TokenType.UNKNOWN)
        data = unspell(text) if plain else None
        return text.encode("utf-8", "surrogateescape") if data is None else data

    return spelled


def agrees(found: bytes, expected: bytes) -> bool:
    """Return whether `found` may be what a decoder made of `expected`.

    Decoders give U+FFFD for what is no UTF-8, remove blanks in front and before punctuation (transformers'
    `clean_up_tokenization_spaces`), and leave out special tokens.
    """
    if not found:
        return not expected.strip() or expected[:1] == b"<"
    text, left = _decoded(expected), _decoded(found)
    return left.lstrip(" ") in (text.lstrip(" "), _cleaned(text).lstrip(" "))


def _decoded(token: bytes) -> str:
    # decoders differ in how many U+FFFD they make of a run of bad bytes
    return re.sub(f"{LOST}+", LOST, token.decode("utf-8", "replace").replace("\u2581", " "))


def _cleaned(text: str) -> str:
    for piece in (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {piece}", piece)
    return text.replace(" ' ", "'")


# --- Replit -----------------------------------------------------------------------------------------------------


def _from_pieces(raw: RawVocab) -> Tokenizer:
    """Return a tokenizer of SentencePiece unigram pieces with their scores; types follow from names and scores.

    A trained piece has a negative score: the logarithm of its probability. Pieces of score 0 were put there.
    """
    taken: set[str] = set()
    texts, types = [], []
    scores = raw.scores or (0.0,) * len(raw.tokens)
    ids: dict[str, int] = {}
    roles: Mapping[str, str] = {"<s>": "bos", "</s>": "eos", "<unk>": "unk", "<pad>": "pad", "<|endoftext|>": "eos"}
    for token, (piece, score) in enumerate(zip(raw.tokens, scores, strict=True)):
        text = piece.decode("utf-8", "surrogateescape")
        kind = TokenType.NORMAL
        if not text:
            text, kind = f"[PAD{token}]", TokenType.UNUSED
        elif byte_of(text) is not None:
            kind = TokenType.BYTE
        elif text == "<unk>":
            kind = TokenType.UNKNOWN
        elif score == 0.0:
            kind = TokenType.CONTROL if text[0] + text[-1] == "<>" else TokenType.USER_DEFINED
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN) and text in roles:
            ids.setdefault(roles[text], token)
        texts.append(unique(text, taken))
        types.append(int(kind))
    return Tokenizer(
        model="t5",
        pre="default",
        tokens=tuple(texts),
        scores=tuple(scores),
        types=tuple(types),
        ids=ids,
        flags={"add_space_prefix": True, "remove_extra_whitespaces": False, "add_bos": False, "add_eos": False},
        notes=(
            "the file holds pieces and scores of a SentencePiece unigram model: types follow from names and scores; "
            "how text is normalized is assumed (a space in front, blanks kept): --tokenizer spiece.model knows",
        ),
        origins={"tokens": "the file's vocabulary", "scores": "the file's vocabulary", "types": "names and scores"}
        | dict.fromkeys(ids, "the token's name"),
    )


# --- BERT ------------------------------------------------------------------------------------------------------------


def _from_words(raw: RawVocab, path: str | None) -> Tokenizer:
    """Return a WordPiece tokenizer of the lines of vocab.txt, lower case as bert.cpp makes of every text."""
    words: dict[str, int] = {}
    for token, data in enumerate(raw.tokens):
        text = data.decode("utf-8", "surrogateescape")
        words[f"[DUP{token}]" if text in words else text] = token
    if "[UNK]" not in words:
        raise UnsupportedError("the vocabulary has no [UNK]", path=path, found=f"{len(words)} tokens", hint=WAY_OUT)
    note = "the file does not say whether texts keep their case: lower case, as bert.cpp does; --tokenizer DIR says it"
    settings = Sidecars({"tokenizer_config.json": path or ""})
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    settings.preset("tokenizer_config.json", {role: text for role, text in roles.items() if text in words})
    base = word_piece(words, settings, (), path or "")
    ids = {role: words[text] for role, text in (("pad", "[PAD]"), ("mask", "[MASK]")) if text in words}
    return replace(base, ids={**ids, **base.ids}).noted(note)


# --- BioGPT ----------------------------------------------------------------------------------------------------------


def _from_moses(raw: RawVocab) -> Tokenizer:
    """Return the tokens and merges of biogpt.cpp's files, whose words Moses cuts."""
    texts = [token.decode("utf-8", "surrogateescape") for token in raw.tokens]
    merges = [b" ".join(pair).decode("utf-8", "surrogateescape") for pair in raw.merges or ()]
    return moses_bpe(texts, merges, "the file's vocabulary")


# --- Whisper ----------------------------------------------------------------------------------------------------


def _with_names(base: Tokenizer, rows: int) -> Tokenizer:
    """Add the tokens that follow those in whisper.cpp's files, which its programs name by a rule."""
    names = special_names(len(base.tokens), rows)
    if not names:
        return base
    held = set(base.tokens)
    grown = base.extended([name for name in names if name not in held], TokenType.CONTROL, 0.0)
    place = {text: token for token, text in enumerate(grown.tokens)}
    ids = {**base.ids, "eos": place["<|endoftext|>"], "bos": place["<|startoftranscript|>"]}
    return replace(grown, ids=ids).noted(
        f"{len(grown.tokens) - len(base.tokens)} special tokens from id {len(base.tokens)} on are named by the rule of "
        "OpenAI's tokenizer; the file does not hold them"
    )
