"""The mixtures of llama-quantize as ordered data, and the tables that accompany them.

Source: src/llama-quant.cpp of llama.cpp as vendored in llama_cpp_python 0.3.36, described in
docs/formats/todays-converter.md "Mixtures"; NVFP4 as a file type of its own since the summer of 2026. Where the C++
nests branches, here **the last line that fits decides**: from the general to the particular.
`tests/quant/recipes/test_choose.py` compares the result with llama-quantize's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

from ggferry.quant.codec import codecs
from ggferry.quant.recipes.file_types import GUESSED, file_types
from ggferry.quant.recipes.rules import ANY, Rule, parse_rule

LOW = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
"""The recipes of about two bits and below, which have rules of their own for everything but output and token_embd."""

MIXTURES = """
    # any recipe                  | tensors     conditions                     -> type
    MXFP4_MOE                     | any                                        -> Q8_0
    MXFP4_MOE                     | any                stacked                 -> MXFP4
    # MLA's projections have three axes, too
    MXFP4_MOE                     | any                arch=bailingmoe3        -> Q8_0
    MXFP4_MOE                     | ffn_up,ffn_gate,ffn_down stacked arch=bailingmoe3 -> MXFP4

    IQ1_S IQ1_M IQ2_XXS IQ2_XS    | token_embd                                 -> Q2_K
    IQ2_S IQ2_M IQ3_XXS           | token_embd                                 -> IQ3_S
    TQ1_0 TQ2_0 Q2_0              | token_embd                                 -> Q4_K

    # a tied token_embd is the output as well: the lines of both fit it
    * -Q8_0                       | output                                     -> Q6_K
    LOW IQ3_XXS                   | output                                     -> Q5_K
    *                             | output             ragged                  -> Q8_0
    *                             | output             arch=falcon             -> Q8_0
    MXFP4_MOE                     | output                                     -> Q8_0

    IQ1_S IQ1_M IQ2_XXS IQ2_XS    | attn_v                                     -> Q2_K
    IQ2_S IQ2_M                   | attn_v                                     -> IQ3_S
    LOW                           | attn_v             gqa>=4                  -> Q4_K
    LOW                           | attn_v             experts>=4              -> Q4_K
    LOW                           | attn_k             experts=8               -> Q4_K
    IQ1_S IQ1_M IQ2_XXS IQ2_XS    | ffn_down           count<n/8               -> Q2_K
    IQ2_S IQ2_M                   | ffn_down           count<n/8               -> IQ3_S
    IQ1_S IQ1_M                   | attn_output                                -> IQ2_XXS
    IQ2_S IQ2_M                   | attn_output                                -> IQ3_S
    LOW                           | attn_output        experts=8               -> Q5_K

    Q2_K                          | attn_v                                     -> Q3_K
    IQ3_XXS                       | attn_v             !imatrix                -> IQ3_S
    Q2_K Q2_K_S IQ3_XXS IQ3_XS IQ3_S | attn_v          gqa>=4                  -> Q4_K
    IQ3_M Q3_K_M                  | attn_v                                     -> Q4_K
    Q3_K_M                        | attn_v             count<2                 -> Q5_K
    Q3_K_L                        | attn_v                                     -> Q5_K
    IQ4_NL IQ4_XS                 | attn_v             gqa>=4                  -> Q5_K
    Q4_K_S                        | attn_v             count<4                 -> Q5_K
    Q4_K_M Q5_K_M                 | attn_v             more                    -> Q6_K
    # LLM_TYPE_70B: V is an eighth of Q there and cheap to keep
    * -LOW                        | attn_v type=Q3_K,Q4_K arch=llama,llama-embed layers=80 grouped experts!=8 -> Q5_K
    * -LOW                        | attn_v type=Q3_K,Q4_K arch=qwen2,deci,olmo layers=80 -> Q5_K
    * -LOW                        | attn_v type=Q3_K,Q4_K arch=jais2 layers=68 -> Q5_K
    * -LOW -MXFP4_MOE             | attn_v             experts=8               -> Q8_0

    IQ3_XS                        | attn_k,attn_q                              -> IQ3_XXS
    IQ3_XXS                       | attn_k,attn_q                              -> IQ2_S
    * -LOW -MXFP4_MOE             | attn_k             experts=8               -> Q8_0

    Q2_K                          | ffn_down                                   -> Q3_K
    Q2_K_S                        | ffn_down           layer<n/8               -> Q4_K
    IQ3_XXS                       | ffn_down           !imatrix                -> Q3_K
    IQ3_XXS                       | ffn_down           !imatrix layer<n/8      -> Q4_K
    Q3_K_M                        | ffn_down                                   -> Q4_K
    Q3_K_M                        | ffn_down           arch=falcon             -> Q3_K
    Q3_K_M                        | ffn_down           arch=falcon more        -> Q4_K
    Q3_K_M                        | ffn_down           layer<n/16              -> Q5_K
    IQ3_M                         | ffn_down           layer<n/8               -> Q4_K
    IQ3_M                         | ffn_down           experts=8 more          -> Q4_K
    Q3_K_L                        | ffn_down                                   -> Q5_K
    Q3_K_L                        | ffn_down           arch=falcon             -> Q4_K
    Q4_K_M Q5_K_M                 | ffn_down           more                    -> Q6_K
    Q4_K_M                        | ffn_down           arch=falcon more        -> Q5_K
    Q4_K_M                        | ffn_down           arch=falcon layer<n/16  -> Q6_K
    IQ4_NL IQ4_XS                 | ffn_down           !imatrix layer<n/8      -> Q5_K
    Q4_K_S                        | ffn_down           arch!=falcon layer<n/8  -> Q5_K
    Q4_0                          | ffn_down           imatrix layer<n/8       -> Q4_1
    Q5_0                          | ffn_down           imatrix layer<n/8       -> Q5_1

    Q2_K                          | attn_output        arch!=falcon            -> Q3_K
    IQ3_XXS                       | attn_output        arch!=falcon            -> IQ3_S
    Q3_K_M IQ3_M                  | attn_output        arch!=falcon            -> Q4_K
    Q3_K_L                        | attn_output        arch!=falcon experts!=8 -> Q5_K
    Q3_K_L                        | attn_output        arch=falcon             -> Q4_K
    Q2_K IQ3_XS IQ3_XXS IQ3_S IQ3_M Q3_K_S Q3_K_M | attn_output arch!=falcon experts=8 -> Q5_K
    IQ4_NL IQ4_XS Q4_K_S Q4_K_M   | attn_output        arch!=falcon experts=8  -> Q5_K

    IQ3_XS                        | ffn_gate,ffn_up    layer>=n/8 layer<7n/8   -> IQ3_XXS

    *                             | *attn_q_a*,*attn_q_b*,*nextn.eh_proj* arch=glm5-next -> Q8_0
"""
"""Lines `RECIPES | RULE`; `*` is every recipe that quantizes, `-X` excludes X, LOW is the list above."""

FALLBACKS: Mapping[str, str] = {
    name: fallback
    for fallback, names in {
        "IQ4_NL": "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS",
        "Q4_0": "Q2_0 Q2_K Q3_K TQ1_0 TQ2_0",
        "Q5_0": "Q4_K",
        "Q5_1": "Q5_K",
        "Q8_0": "Q6_K",
        "F16": "IQ4_NL Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 MXFP4",
    }.items()
    for name in names.split()
}
"""The type a tensor gets whose rows are not whole blocks of its own type; followed until they are.

Q1_0 and NVFP4 have none.
"""

NEVER = """
    a normalization          | any       | _norm.weight
    routes tokens to experts | any       | ffn_gate_inp.weight ffn_gate_tid2eid.weight
    very small               | any       | altup laurel
    small                    | any       | per_layer_model_proj
    positions                | any       | =position_embd.weight .position_embd sam.pos_embd
    token types              | any       | =token_types.weight
    a small convolution      | any       | ssm_conv1d shortconv.conv.weight
    a small indexer          | any       | indexer.k_proj.weight indexer.q_proj.weight
    a small indexer          | glm5-next | indexer.attn_q_b indexer.attn_k indexer.proj indexer_compressor_gate
    a small indexer          | glm5-next | indexer_compressor_ape
    small                    | glm5-next | hc_ ssm_f_a.weight ssm_f_b.weight ssm_g_a.weight ssm_g_b.weight
    small                    | glm5-next | ssm_beta.weight
    sensitive                | glm5-next | attn_kv_a_mqa.weight attn_k_b.weight attn_v_b.weight
    small though a matrix    | any       | time_mix_first.weight time_mix_w0.weight time_mix_w1.weight
    small though a matrix    | any       | time_mix_w2.weight time_mix_v0.weight time_mix_v1.weight
    small though a matrix    | any       | time_mix_v2.weight time_mix_a0.weight time_mix_a1.weight
    small though a matrix    | any       | time_mix_a2.weight time_mix_g1.weight time_mix_g2.weight
    small though a matrix    | any       | time_mix_decay_w1.weight time_mix_decay_w2.weight
    small though a matrix    | any       | time_mix_lerp_fused.weight
    relative positions       | any       | attn_rel_b.weight .rel_pos
    vision, kept as it is    | any       | sam.neck. sam.net_ .patch_embd .patch_merger
    an audio codebook        | any       | a.rvq.codebook mm.a.code_embd
"""
"""Weights that no recipe changes: `WHY | ARCHITECTURE | what their names contain (=: are)`.

Source: tensor_allows_quantization of llama-quant.cpp.
"""

ALSO_NEEDS_IMATRIX: Mapping[str, frozenset[str]] = {"Q2_K_S": frozenset({"Q2_K"})}
"""Types that only one recipe must not make without an importance matrix."""


@cache
def needing_imatrix() -> frozenset[str]:
    """Return the types that are garbage without an importance matrix, except in token_embd and output.

    Source: tensor_requires_imatrix of llama-quant.cpp.
    """
    return frozenset(name for name, one in codecs().items() if one.needs_imatrix)


def quantizing(name: str) -> bool:
    """Return whether the recipe's own type is a quantized one; mixtures do not apply to F32, F16 and BF16."""
    return name not in {"F32", "F16", "BF16"}


@cache
def recipe_ids() -> Mapping[str, int]:
    """Return name → file type of every recipe that llama-quantize offers, and NVFP4."""
    left_out = {GUESSED, 4}  # nothing makes Q4_1_SOME_F16 since GGML's days
    return {entry.name: entry.id for entry in file_types().values() if not entry.removed and entry.id not in left_out}


@cache
def rules_of(name: str) -> tuple[Rule, ...]:
    """Return the lines of MIXTURES that belong to one recipe, in order."""
    rows = (line.split("|") for line in MIXTURES.splitlines() if line.strip() and not line.strip().startswith("#"))
    return tuple(parse_rule(rule) for recipes, rule in rows if _belongs(name, recipes.split()))


@lru_cache(1 << 12)
def never_quantized(name: str, architecture: str) -> str | None:
    """Return why a tensor of two or more axes is left as it is, or None."""
    if not name.endswith("weight"):
        return "not a weight"
    for part, arch, why in _never():
        if arch in {ANY, architecture} and (part in name if part[0] != "=" else part[1:] == name):
            return why
    return None


@cache
def _never() -> tuple[tuple[str, str, str], ...]:
    rows = ([cell.strip() for cell in line.split("|")] for line in NEVER.strip().splitlines())
    return tuple((part, arch, why) for why, arch, parts in rows for part in parts.split())


def _belongs(name: str, words: list[str]) -> bool:
    belongs = False
    for word in words:
        group = word.removeprefix("-")
        if name in (LOW if group == "LOW" else {group}) or (group == "*" and quantizing(name)):
            belongs = word[0] != "-"
    return belongs
