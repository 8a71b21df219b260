"""Roles of timm's MobileNetV5 as Gemma 3n has it: 84 blocks in four stages, each written with its own number.

Source: timm 1.0.31 `timm/models/mobilenetv5.py` (`_gen_mobilenet_v5`, the definition of `mobilenetv5_300m_enc`),
`_efficientnet_blocks.py`; llama.cpp `tools/mtmd/clip-impl.h` (`TN_MNV5_…`). The widths of the stages are unknowns that
shapes say; kernels and how much a block widens are the definition's.
"""

from ggferry.converters.schema.layouts.parts import Reshape
from ggferry.converters.schema.roles import Roles, roles

TIMM = "model.vision_tower.timm_model."
KERNELS = 3, 5, 3, 5, 3
"""The first convolution's kernel in each block of stage 1."""
WIDE_BLOCKS, STAGE_2, STAGE_3 = 8, 37, 39
"""How many blocks of stage 2 begin with a convolution; how many blocks it has; and stage 3."""


def tower() -> Roles:
    """Return the roles of the stem, the four stages and what fuses the last two of them."""
    blocks = [_edge(n) for n in range(3)]
    blocks += [_inverted(1, n, kernel, 4 if n else 6) for n, kernel in enumerate(KERNELS)]
    blocks += [_inverted(2, n, 5, 4 if n else 6) for n in range(WIDE_BLOCKS)]
    blocks += [_inverted(2, WIDE_BLOCKS, 0, 1), _inverted(3, 0, 5, 6)]
    for stage, first, count in ((2, WIDE_BLOCKS + 1, STAGE_2), (3, 1, STAGE_3)):
        for n in range(first, count, 2):
            blocks += [_attention(stage, n), _inverted(stage, n + 1, 0, 2)]
    stem = roles(
        _conv("conv_stem.conv", "v_stem", "3", 3),
        "conv_stem.conv.bias f32 : 1 v_stem 1 1 | hf conv_stem.conv.bias @bias",
        _norm("conv_stem.bn", "v_stem"),
        under=_TOP,
        bias=Reshape(("1", "v_stem", "1", "1")),
    )
    fused = roles(
        _convolved("msfa.ffn.pw_exp", "2*(v_wide_2+v_wide_3)", "v_wide_2+v_wide_3"),
        _convolved("msfa.ffn.pw_proj", "v_n_embd", "2*(v_wide_2+v_wide_3)"),
        _norm("msfa.norm", "v_n_embd"),
        under=_TOP,
    )
    return roles(stem, *blocks, fused)


_TOP = {"gguf": "v.", "hf": TIMM}


def _block(stage: int, n: int, *lines: str, scaled: str = "") -> Roles:
    """Return a block's roles under both its prefixes; `scaled`: the width of its branch, if that has a scale."""
    under = {"gguf": f"v.blk.{stage}.{n}.", "hf": f"{TIMM}blocks.{stage}.{n}."}
    if not scaled:
        return roles(*lines, under=under)
    scale = f"layer_scale.gamma f32 : 1 {scaled} 1 1 | hf layer_scale.gamma @planes"
    return roles(*lines, scale, under=under, planes=Reshape(("1", scaled, "1", "1")))  # llama.cpp multiplies planes


def _conv(name: str, rows: str, columns: str, kernel: int = 1) -> str:
    flag = "half" if columns == "1" else "plain"  # llama.cpp convolves maps one by one with 16 bits alone
    return f"{name}.weight {flag} : {rows} {columns} {kernel} {kernel} | hf {name}.weight\n"


def _norm(name: str, width: str) -> str:
    return f"{name}.weight f32 : {width} | hf {name}.weight\n"


def _convolved(name: str, rows: str, columns: str, kernel: int = 1) -> str:
    """Return a convolution with the norm behind it."""
    return _conv(f"{name}.conv", rows, columns, kernel) + _norm(f"{name}.bn", rows)


def _widths(stage: int, n: int) -> tuple[str, str]:
    """Return the width of what a block reads, and its own."""
    before = (f"v_wide_{stage - 1}" if stage else "v_stem") if n == 0 else f"v_wide_{stage}"
    return before, f"v_wide_{stage}"


def _edge(n: int) -> Roles:
    """Return a block of stage 0 (`EdgeResidual`)."""
    before, width = _widths(0, n)
    inner = f"4*{before}"
    expanded = _conv("conv_exp", inner, before, 3) + _norm("bn1", inner)
    return _block(0, n, expanded, _conv("conv_pwl", width, inner), _norm("bn2", width))


def _inverted(stage: int, n: int, start: int, wider: int) -> Roles:
    """Return a block of the later stages (`UniversalInvertedResidual`); the first of a stage halves the picture."""
    before, width = _widths(stage, n)
    inner = f"{wider}*{before}"
    return _block(
        stage,
        n,
        _convolved("dw_start", before, "1", start) if start else "",
        _convolved("pw_exp", inner, before),
        _convolved("dw_mid", inner, "1", 5) if n == 0 else "",
        _convolved("pw_proj", width, inner),
        scaled=width,
    )


def _attention(stage: int, n: int) -> Roles:
    """Return a block of attention whose heads share keys and values (`MobileAttention`), of smaller maps in stage 2."""
    _, width = _widths(stage, n)
    every, head = f"v_heads_{stage}*v_head_{stage}", f"v_head_{stage}"
    smaller = "".join(
        _conv(f"attn.{part}.down_conv", width, "1", 3) + _norm(f"attn.{part}.norm", width) for part in ("key", "value")
    )
    return _block(
        stage,
        n,
        _norm("norm", width),
        smaller if stage == 2 else "",
        _conv("attn.query.proj", every, width),
        _conv("attn.key.proj", head, width),
        _conv("attn.value.proj", head, width),
        _conv("attn.output.proj", width, every),
        scaled=width,
    )
