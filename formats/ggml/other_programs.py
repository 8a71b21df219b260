"""Files of programs on ggml that are named and not read: what stands before their tensors, and how the first is called.

They have GGML's magic and records, and models that no GGUF architecture describes. Sources: `convert-pth-to-ggml.py` of
ggml's examples/sam, `convert.py` of PABannier/encodec.cpp (041e60f) and PABannier/bark.cpp (8087e97, 418da6a, 1786f23),
`models/convert.py` of leejet/stable-diffusion.cpp (3aca342e, bd621387, c8740634).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from ggferry.formats.errors import CorruptError, UnsupportedError
from ggferry.formats.fields import Cursor, Struct
from ggferry.formats.files.sources import Source
from ggferry.formats.limits import MAX_GGML_VOCAB, MAX_NAME, MAX_TOKEN_BYTES
from ggferry.support.records import dataclass

MAX_AXES, MAX_CODE = 5, 40
VOCABULARY = None
"""Among the parts of a prelude: a number of tokens, each behind its length."""
_TYPE = "ftype  i32  0..100000"
_GPT = """
    layers   i32  1..MAX_LAYERS
    heads    i32  1..MAX_HEADS
    width    i32  1..MAX_WIDTH
    context  i32  1..MAX_WIDTH
    {bias}
    input    i32  1..MAX_GGML_VOCAB
    output   i32  1..MAX_GGML_VOCAB
    outputs  i32  1..64
    inputs   i32  1..64
"""
_BIAS = "bias     i32  0..1"


def _bark(bias: str = "", *more: str) -> Struct:
    return Struct("bark.cpp header", "\n".join((_GPT.format(bias=bias), *more)))


_SAM = Struct(
    "sam.cpp header",
    f"""
    width     i32  1..MAX_WIDTH
    layers    i32  1..MAX_LAYERS
    heads     i32  1..MAX_HEADS
    channels  i32  1..MAX_WIDTH
    points    i32  1..64
    {_TYPE}
    """,
)
_ENCODEC = Struct(
    "encodec.cpp header",
    f"""
    channels   i32  1..64
    hidden     i32  1..MAX_WIDTH
    filters    i32  1..MAX_WIDTH
    kernel     i32  1..64
    residual   i32  1..64
    bins       i32  1..MAX_WIDTH
    bandwidth  i32  1..1024
    rate       i32  1000..1000000
    {_TYPE}
    """,
)
_DIFFUSION = Struct("stable-diffusion.cpp header", "kind  i32  0..")  # the model's version << 16 | GGML_FTYPE


@dataclass(frozen=True, slots=True)
class Program:
    """A program whose files are not read.

    Attributes:
        what: What such a file is.
        remedy: What can be done.
        preludes: What stands before the tensors, one for each form it had.
        names: Shell patterns of which the first tensor's name fits one.
    """

    what: str
    remedy: str
    preludes: Sequence[Sequence[Struct | None]]
    names: Sequence[str]


PROGRAMS = (
    Program(
        "a file of sam.cpp: Segment Anything, which makes masks of pictures",
        "take the checkpoint it was made of, such as sam_vit_b_01ec64.pth",
        ((_SAM,),),
        ("image_encoder.*", "prompt_encoder.*", "mask_decoder.*"),
    ),
    Program(
        "a file of encodec.cpp: a codec of sound",
        "take the checkpoint it was made of, such as facebook/encodec_24khz, which transformers runs",
        ((_ENCODEC,), ()),
        ("encoder.model.*", "decoder.model.*", "quantizer.vq.*"),
    ),
    Program(
        "a file of bark.cpp: models that make speech, of which GGUF has no architecture",
        "take the checkpoint it was made of, such as suno/bark, which transformers runs",
        ((VOCABULARY, _bark(_BIAS, _TYPE, "tensors  i32  1..MAX_GGML_TENSORS")), (_bark("", _TYPE),), (_bark(),)),
        ("model/wte/*", "model/wpe", "model/h*", "model/ln_f/*", "model/lm_head/*"),
    ),
    Program(
        "a file of stable-diffusion.cpp of 2023: a model that makes pictures",
        "take the checkpoint it was made of: stable-diffusion.cpp reads it today, and makes GGUF of it",
        ((_DIFFUSION, VOCABULARY), (_DIFFUSION,)),
        ("cond_stage_model.*", "model.diffusion_model.*", "first_stage_model.*", "alphas_cumprod", "betas", "lora_*"),
    ),
)


def refuse_other_program(source: Source) -> None:
    """Raise UnsupportedError if the file is of one of these programs; return if it is of none of them."""
    for program in PROGRAMS:
        for prelude in program.preludes:
            name = _first_name(source, prelude)
            if name is not None and any(fnmatch.fnmatchcase(name, pattern) for pattern in program.names):
                hint = program.remedy
                raise UnsupportedError(f"this is {program.what}", path=source.path, offset=0, found=name, hint=hint)


def is_minigpt4(head: bytes) -> bool:
    """Return whether a file is of minigpt4.cpp: a magic, its version, a type, and a text of JSON about the Q-Former.

    The magic is chatglm.cpp's. Source: Maknee/minigpt4.cpp `minigpt4/convert.py` (`write_file`), `minigpt4.cpp`
    (`quantize_model`).
    """
    text = head[16 : 16 + int.from_bytes(head[12:16], "little")]
    return head.startswith(b"ggml") and text.startswith(b"{") and b'"Qformer"' in text


def _first_name(source: Source, prelude: Sequence[Struct | None]) -> str | None:
    """Return the name of the first tensor behind a prelude; None where the bytes are no such prelude and record."""
    cursor = Cursor(source, 4)
    try:
        for part in prelude:
            if part is VOCABULARY:
                count = cursor.integer("i32", "number of tokens", 1, MAX_GGML_VOCAB)
                cursor.strings(count, "i32", "token", MAX_TOKEN_BYTES)
            else:
                part.read(cursor)
        axes = cursor.integer("i32", "axes", 1, MAX_AXES)
        length = cursor.integer("i32", "length of a name", 1, MAX_NAME)
        cursor.integer("i32", "type", 0, MAX_CODE)
        cursor.skip(4 * axes, "sizes")
        return cursor.take(length, "a tensor's name").decode()
    except (CorruptError, UnicodeDecodeError):
        return None
