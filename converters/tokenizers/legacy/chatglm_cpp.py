"""Read the vocabulary within a file of chatglm.cpp: SentencePiece's own, or of GLM-4 a base64 token and rank a line.

The special tokens come behind it, by their order in the program. Source: li-plus/chatglm.cpp `chatglm.cpp`
(`ChatGLM2Tokenizer`, `ChatGLM3Tokenizer`, `ChatGLM4Tokenizer`).
"""

from __future__ import annotations

from dataclasses import replace

from ggferry.converters.tokenizers.building_blocks.added_tokens import Added
from ggferry.converters.tokenizers.building_blocks.byte_level import merges_by_rank, spell
from ggferry.converters.tokenizers.building_blocks.pre_tokenizers import find_pre
from ggferry.converters.tokenizers.building_blocks.sentencepiece_proto import parse_model
from ggferry.converters.tokenizers.building_blocks.steps import placed
from ggferry.converters.tokenizers.encoders import sentencepiece_bpe as spm
from ggferry.converters.tokenizers.encoders import unigram
from ggferry.converters.tokenizers.files.repairs import with_added
from ggferry.converters.tokenizers.files.sidecar_settings import Sidecars, Source, TokenizerInputs
from ggferry.converters.tokenizers.files.tiktoken import in_rank_order, ranks_in
from ggferry.converters.tokenizers.libraries.cross_check import SENTENCEPIECE, ReferenceTokenizer
from ggferry.converters.tokenizers.tokenizer import Tokenizer, TokenType
from ggferry.formats.readers.chatglm_cpp import CHATGLM_2, CHATGLM_3, CHATGLM_4, VOCABULARY, vocabulary

PRE = "chatglm-bpe"
_SECOND = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_FOURTH = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
    "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|>"
)
SPECIALS = {
    CHATGLM_2: _SECOND,
    CHATGLM_3: (*_SECOND, "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    CHATGLM_4: tuple(_FOURTH.split()),
}
_PREFIX = "ChatGLM begins every text with [gMASK] and sop, which no GGUF key says: a prompt must hold them"


def _added(model: int, count: int) -> tuple[Added, ...]:
    return tuple(Added(count + number, text, special=True) for number, text in enumerate(SPECIALS[model]))


def load(inputs: TokenizerInputs) -> Tokenizer:
    """Return the tokenizer of the file, with its special tokens."""
    path = inputs.sidecars.files[VOCABULARY]
    prelude, data = vocabulary(path)
    if prelude.model == CHATGLM_4:
        found = _ranked(data, path, inputs.pre or PRE)
        end = len(found.tokens)
    else:
        model = parse_model(data, path)
        found = spm.from_model(model) if model.model_type == "bpe" else unigram.from_model(model)
        end = found.ids.get("eos", -1)
    made = with_added(found, _added(prelude.model, len(found.tokens)))
    ids = {**made.ids, "eos": end} if end >= 0 else made.ids
    if prelude.model != CHATGLM_2:
        ids = {**ids, "eot": made.tokens.index("<|user|>")}
    origins = dict.fromkeys((*ids, "add_bos", "add_eos"), "chatglm.cpp")
    return replace(
        made,
        ids=ids,
        flags={**made.flags, "add_bos": False, "add_eos": False},
        notes=(*made.notes, _PREFIX),
        origins={**made.origins, **origins},
    )


def _ranked(data: bytes, path: str, pre: str) -> Tokenizer:
    """Return the tokenizer of GLM-4's lines."""
    ranks = ranks_in(data, path)
    ranked = in_rank_order(ranks, path)
    with placed(path):
        merges, how = merges_by_rank(ranks, whole=find_pre(pre).ignore_merges)
    return Tokenizer(
        model="gpt2",
        pre=pre,
        tokens=tuple(map(spell, ranked)),
        types=(TokenType.NORMAL,) * len(ranked),
        merges=tuple(f"{spell(left)} {spell(right)}" for left, right in merges),
        origins={"tokens": "chatglm.cpp", "merges": how, "pre": "the pattern of chatglm.cpp"},
    )


def reference(inputs: TokenizerInputs) -> ReferenceTokenizer | None:
    """Return SentencePiece itself, which chatglm.cpp gives the file to; None for GLM-4."""
    path = inputs.sidecars.files[VOCABULARY]
    prelude, data = vocabulary(path)
    if prelude.model == CHATGLM_4:
        return None
    return ReferenceTokenizer(SENTENCEPIECE, data, path, _added(prelude.model, len(parse_model(data, path).pieces)))


def _probe(sidecars: Sidecars) -> bool:
    return sidecars.path(VOCABULARY) is not None


SOURCE = Source(VOCABULARY, 72, "chatglm-ggml.bin (chatglm.cpp)", _probe, load, reference)
