"""Decoding and the plain encoders, bit for bit, against the programs that defined them.

Witnesses: the gguf package (numpy), ggml's C functions (xllamacpp), sha256 digests of legacy weights decoded by each
era's own llama.cpp, blocks decoded by ggml's releases of 2023, and llama-quantize's Q8_0.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest

from ggferry.quant.accuracy.bad_values import scan_bad
from ggferry.quant.blocks import TILE_ELEMENTS, ValueRefused, as_blocks
from ggferry.quant.codec import LLAMA_CPP, block_type, codec, codecs, types_by_id
from ggferry.quant.codecs import grids
from ggferry.quant.types import BlockError
from helpers.peers import Peers
from helpers.third_party_fixtures import FIXTURES, entry_cases, legacy_llama

KNOWN_TO_GGUF = [*sorted(t.name for t in gguf.quants._type_traits), "F16", "F32"]
KNOWN_TO_GGML = [
    k.name for k in types_by_id().values() if k.quantized and k.name != "Q8_1" and codec(k.name).runtime == LLAMA_CPP
]
ENCODERS = ["BF16", "F16", "F32", "Q8_0"]


def test_the_gguf_package_knows_what_it_knew() -> None:
    assert len(KNOWN_TO_GGUF) >= 26
    assert len(KNOWN_TO_GGML) == 26


@pytest.mark.parametrize("filling", ["any", "finite"])
@pytest.mark.parametrize("name", KNOWN_TO_GGUF)
def test_decodes_as_the_gguf_package(name: str, filling: str, blocks, same) -> None:
    kind = block_type(name)
    rows = blocks[filling](kind, 3, 7 * 256)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])
    found = codec(name).decode(rows, 7 * 256)
    assert found.dtype == np.float32
    assert found.shape == (3, 7 * 256)
    assert same(found, np.ascontiguousarray(expected, np.float32)).all()
    assert filling == "any" or np.isfinite(found).all()


@pytest.mark.parametrize("filling", ["any", "finite"])
@pytest.mark.parametrize("name", KNOWN_TO_GGML)
def test_decodes_as_ggml(name: str, filling: str, ggml, blocks, same) -> None:
    kind = block_type(name)
    rows = blocks[filling](kind, 5, 3 * 256)
    assert same(codec(name).decode(rows, 3 * 256), ggml.decode(kind, rows, 3 * 256)).all()


def test_q8_1_is_levels_times_d(blocks) -> None:
    """ggml has no dequantize_row for it: s, the scaled sum of the levels, is only a help for dot products."""
    rows = blocks["finite"](block_type("Q8_1"), 2, 64)
    parts = as_blocks(block_type("Q8_1"), rows)
    expected = parts["qs"].astype(np.float32) * parts["d"].astype(np.float32)
    assert np.array_equal(codec("Q8_1").decode(rows, 64), expected.reshape(2, 64))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_16_bit_float_decodes_as_ggml(name: str, ggml, same) -> None:
    halves = np.arange(1 << 16, dtype="<u2")
    expected = ggml.convert({"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}[name], halves, "f4")
    assert same(codec(name).decode(halves.view(np.uint8)[None], 1 << 16)[0], expected).all()
    finite = halves[np.isfinite(expected)]  # the way without infinities is another one
    assert same(codec(name).decode(finite.view(np.uint8)[None], finite.size)[0], expected[np.isfinite(expected)]).all()


@pytest.mark.parametrize(("name", "dtype"), [("I8", "i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8")])
def test_integers_become_the_nearest_float32(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([[limits.min, -1, 0, 1, limits.max, limits.max - 1]], dtype)
    assert codec(name).decode(values.view(np.uint8), 6).tolist() == [[float(np.float32(int(v))) for v in values[0]]]


def test_float64_is_rounded_to_nearest_even() -> None:
    values = np.array([[1 + 2.0**-24, 1 + 3 * 2.0**-24, -1e-320, 1e39, np.nan, 0.1]])
    decoded = codec("F64").decode(values.view(np.uint8), 6)[0]
    assert decoded[:4].tolist() == [1.0, 1 + 2.0**-22, 0.0, np.inf]
    assert np.isnan(decoded[4])
    assert decoded[5] == np.float32(0.1)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "Q4_1_PLANAR", "IQ3_S", "F16"])
def test_tiles_leave_no_seam(name: str, blocks) -> None:
    """More than a tile at once, rows that straddle tiles, a row longer than a tile: the same as row by row."""
    kind = block_type(name)
    columns = 11 * 256
    rows = blocks["finite"](kind, 2 * TILE_ELEMENTS // columns + 3, columns)
    whole = codec(name).decode(rows, columns)
    assert all(np.array_equal(whole[i], codec(name).decode(rows[i : i + 1], columns)[0]) for i in range(len(rows)))
    columns = TILE_ELEMENTS + 512
    rows = blocks["finite"](kind, 2, columns)
    whole = codec(name).decode(rows, columns)
    assert np.array_equal(whole, np.concatenate([codec(name).decode(rows[i : i + 1], columns) for i in range(2)]))
    assert kind.planar or np.array_equal(whole[1, :512], codec(name).decode(rows[1:, : kind.row_bytes(512)], 512)[0])


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q8_0", "Q5_K", "IQ3_S", "TQ1_0", "Q4_1_PLANAR", "Q6_K_64"])
def test_decoding_needs_little_more_than_its_result(name: str, blocks) -> None:
    kind = block_type(name)
    for rows, columns in ((512, 8192), (1, 512 * 8192)):
        data = blocks["any"](kind, rows, columns)
        tracemalloc.start()
        values = codec(name).decode(data, columns)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak - values.nbytes < 40 * TILE_ELEMENTS


def test_threads_share_the_codecs(blocks, same) -> None:
    kinds = [block_type(name) for name in ("IQ2_XS", "MXFP4", "Q4_0_V1", "F16", "Q6_K")] * 8
    rows = {kind: blocks["any"](kind, 16, 4096) for kind in kinds}
    alone = {kind: codec(kind.name).decode(rows[kind], 4096) for kind in kinds}
    with ThreadPoolExecutor(8) as pool:
        for kind, found in zip(kinds, pool.map(lambda k: codec(k.name).decode(rows[k], 4096), kinds), strict=True):
            assert same(found, alone[kind]).all()


@pytest.mark.parametrize("name", ["Q4_K", "Q4_0_PLANAR", "F32", "BF16"])
def test_decode_refuses_rows_of_another_size(name: str) -> None:
    kind = block_type(name)
    size = kind.row_bytes(512)
    for rows in (np.zeros((2, size - 1), np.uint8), np.zeros(size, np.uint8), np.zeros((2, size), np.int8)):
        with pytest.raises(BlockError, match=f"{name} rows of 512 elements are uint8 .R, {size}."):
            codec(name).decode(rows, 512)
    if kind.elements > 1:
        with pytest.raises(BlockError, match="multiple of"):
            codec(name).decode(np.zeros((1, size), np.uint8), 511)


# The lattices


def test_the_committed_lattices_are_those_of_the_gguf_package() -> None:
    assert grids.FILE.read_bytes() == grids.from_gguf()


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"])
def test_lattice_points(name: str) -> None:
    source = getattr(gguf.quants, name)
    source.init_grid()
    assert np.array_equal(grids.grid(name), source.grid[0, 0])


def test_sign_codes_are_those_of_the_gguf_package() -> None:
    ksigns = np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8)
    assert np.array_equal(grids.even_signs() < 0, np.unpackbits(ksigns[:, None], axis=1, bitorder="little"))


def test_a_lattice_with_a_foreign_level_is_refused() -> None:
    lattice = grids.grid("IQ3_S").astype(float)
    lattice[3, 2] = 2
    with pytest.raises(ValueError, match="IQ3_S"):
        grids.pack("IQ3_S", lattice)


# The eras

ERAS = {
    "ggml-20230310-planar": {2: "Q4_0_PLANAR"},
    "ggml-20230315": {3: "Q4_1_PLANAR"},
    "ggml-20230320": {2: "Q4_0_V1"},
    "ggmf1-20230330": {3: "Q4_1_V1"},
    "ggjt1-0.1.25": {2: "Q4_0_V1"},
    "ggjt1-20230425": {6: "Q8_0_V1"},
    "ggjt1-20230428": {2: "Q4_0_V1", 5: "Q4_3", 7: "Q5_1_V1"},
    "ggjt1-20230511": {3: "Q4_1_V1", 6: "Q5_0_V1", 8: "Q8_0_V1"},
    "ggjt1-convertpy-20230821": {},
    "ggjt2-20230519": {2: "Q4_0_V2", 6: "Q5_0", 7: "Q5_1"},
    "ggjt3-20230520": {3: "Q4_1", 6: "Q5_0", 8: "Q8_0"},
    "ggjt3-0.1.77": {11: "Q3_K", 12: "Q4_K", 14: "Q6_K"},
    "ggjt3-20230821": {2: "Q4_0", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 11: "Q3_K", 14: "Q6_K"},
    "ggjt3-qkk64": {11: "Q3_K_64", 12: "Q4_K_64", 13: "Q5_K_64", 14: "Q6_K_64"},
}
"""Folder of `legacy-llama` → what the type codes in its files mean, besides 0 (F32) and 1 (F16)."""


DIGESTED = [(root, entry) for root, entry in legacy_llama() if "dequant_f32_sha256_file_order" in entry]


def types_of(entry: dict) -> dict[int, str]:
    return {0: "F32", 1: "F16"} | ERAS[entry["file"].split("/")[0].removesuffix("-2part")]


@pytest.mark.parametrize(("root", "entry"), entry_cases(DIGESTED))
def test_legacy_files_decode_to_what_their_era_read(root: Path, entry: dict, llama_tensors) -> None:
    digest, names = hashlib.sha256(), types_of(entry)
    for code, rows, columns in llama_tensors(root / entry["file"], names):
        digest.update(codec(names[code]).decode(rows, columns).tobytes())
    assert digest.hexdigest() == entry["dequant_f32_sha256_file_order"]


def test_every_type_of_every_era_has_a_file(llama_tensors) -> None:
    met = {
        types_of(entry)[code]
        for root, entry in DIGESTED
        if root.is_relative_to(FIXTURES)
        for code, _, _ in llama_tensors(root / entry["file"], types_of(entry))
    }
    assert met == {"F32", "F16"} | {name for names in ERAS.values() for name in names.values()}


OTHERS = {
    "gpt2--gpt2-s64-g1-q8_0": "Q8_0_V1",
    "gptj--gptj-s64-g1-q4_1": "Q4_1_V2",
    "replit--replit-s64-g1-q4_1": "Q4_1_V2",
    "starcoder--starcoder-s64-g1-q4_0": "Q4_0_V2",
    "mpt--mpt-s64-g1-q5_1": "Q5_1",
    "rwkv--rwkv4-s64-rwkv100-q4_2": "Q4_2",
    "rwkv--rwkv4-s64-rwkvOld-q4_0": "Q4_0_V1",
    "stablelm--stablelm-nopar-s64-g0-q5_0": "Q5_0_V1",
    "falcon--falcon40b-s64-ggcc-q5_0": "Q5_0",
    "gpt2--gpt2-s64-llmrs-ggjt-q4_1": "Q4_1",
    "gptneox--gptneox-par-s64-llmrs-ggjt-q5_1": "Q5_1",
    "mpt--mpt-clip-s64-g2-q4_0": "Q4_0",
    "dolly-v2--dolly-k256-g2-q2_k": "Q2_K",
    "starcoder--starcoder-k256-g2-q2_k": "Q2_K",
    "replit--replit-k256-g2-q3_k": "Q3_K",
    "mpt--mpt-k256-g2-q4_k": "Q4_K",
}
"""Files of `legacy-other/dequant`: raw blocks and what the ggml of that day made of them."""


FUSED = {"gptj--gptj-s64-g1-q4_1", "replit--replit-s64-g1-q4_1"}
"""Their ggml was compiled with FMA: level × d + m rounded once. We round twice, as the portable build does."""


def fused(name: str, rows: np.ndarray, columns: int) -> np.ndarray:
    """Levels by our codec, from blocks of d = 1 and m = 0; the product and the sum in float64."""
    kind = block_type(name)
    plain = rows.copy()
    as_blocks(kind, plain)["d"][...] = 1
    as_blocks(kind, plain)["m"][...] = 0
    levels = codec(name).decode(plain, columns).reshape(-1, kind.elements).astype(np.float64)
    d, m = (as_blocks(kind, rows)[field][0].astype(np.float64) for field in ("d", "m"))
    return (levels * d + m).astype(np.float32).reshape(-1, columns)


@pytest.mark.parametrize("file", OTHERS)
def test_other_legacy_blocks_decode_as_their_ggml(file: str, fixtures: Path) -> None:
    with np.load(fixtures / "legacy-other" / "dequant" / f"{file}.npz") as witness:
        raw, expected = witness["raw"], witness["deq"]
    rows, columns = raw.reshape(len(expected), -1), expected.shape[1]
    decoded = codec(OTHERS[file]).decode(rows, columns)
    if file in FUSED:
        assert np.abs(decoded - expected).max() < 2.0**-24
        decoded = fused(OTHERS[file], rows, columns)
    assert np.array_equal(decoded.view(np.uint32), expected.view(np.uint32))


def test_no_legacy_witness_is_left_out(fixtures: Path) -> None:
    assert {path.stem for path in (fixtures / "legacy-other" / "dequant").iterdir()} == set(OTHERS)


SMALL_K = {
    "Q2_K_64": "3d90d0e4bcb41549be5c321b2609f8d6faf1684414ce2ecb4646a34c56792810",
    "Q3_K_64": "dc41c98fce67d9d662c8804d174508954b83915ec359e9158cf2d4f1619bf1e4",
    "Q4_K_64": "e50f6e0e31fabeb5db3d65ad62e7399786b1a72093f0695507439a019e767504",
    "Q5_K_64": "3b551e147f0de68e594fe5786cdc79c82a4b0364d98d752989f8fe34b26bccd3",
    "Q6_K_64": "6c23283e6bda84402d67a09c814b8d89684360c5eaeeb9339a6670113cc35d1b",
}
"""sha256 of what k_quants.c, compiled with GGML_QKK_64 at llama.cpp ec2a24fed (8 September 2023), made of
`small_k_blocks`. No file with Q2_K_64 is at hand."""


def small_k_blocks(name: str) -> np.ndarray:
    """64 rows of 8 blocks: bytes of SHAKE-256, the float16 scales below 2."""
    kind = block_type(name)
    data = hashlib.shake_256(name.encode()).digest(64 * kind.row_bytes(512))
    rows = np.frombuffer(data, np.uint8).reshape(64, -1).copy()
    for array in as_blocks(kind, rows).values():
        if array.dtype.kind == "f":
            array.view("<u2")[...] &= 0xBFFF
    return rows


@pytest.mark.parametrize("name", SMALL_K)
def test_blocks_of_64_decode_as_k_quants_c_of_2023(name: str) -> None:
    decoded = codec(name).decode(small_k_blocks(name), 512)
    assert np.isfinite(decoded).all()
    assert hashlib.sha256(decoded.tobytes()).hexdigest() == SMALL_K[name]


# Encoders


FUNCTIONS = {"F16": "ggml_fp32_to_fp16_row", "BF16": "ggml_fp32_to_bf16_row_ref"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_16_bit_floats_round_as_ggml(name: str, ggml) -> None:
    """Both neighbors and the middle of every pair of 16-bit floats, their surroundings, and random bits."""
    kind, encode = block_type(name), codec(name).encode
    bits = np.arange(1 << 16, dtype="<u2").view(np.uint8)[None]
    exact = np.sort(codec(name).decode(bits, 1 << 16)[0])
    exact = exact[np.isfinite(exact)]
    middles = (exact[:-1].astype(np.float64) + exact[1:]) / 2
    middles = middles.astype(np.float32)  # exact: a bit more than a 16-bit float has
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    values = np.concatenate([exact, middles, np.nextafter(middles, -9), np.nextafter(middles, 9), random])
    limit = 65520 if name == "F16" else np.float32(float.fromhex("0x1.ffp127"))
    values = values[np.abs(values) < limit]
    expected = ggml.convert(FUNCTIONS[name], values, "<u2")
    assert np.array_equal(encode(values[None], None).view("<u2")[0], expected)
    assert np.isfinite(codec(name).decode(expected.view(np.uint8)[None], values.size)).all()
    assert kind.row_bytes(values.size) == 2 * values.size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("F16", 65520.0),
        ("F16", -7e4),
        ("BF16", float.fromhex("0x1.ffp127")),
        ("Q8_0", 3e38),
        *((name, value) for name in ENCODERS for value in (np.nan, np.inf, -np.inf)),
    ],
)
def test_values_that_do_not_fit_are_refused_by_place(name: str, value: float) -> None:
    values = np.zeros((4, 64), np.float32)
    values[2, 37] = values[3, 1] = value
    with pytest.raises(ValueRefused, match=r"^row 2, column 37: ") as caught:
        codec(name).encode(values, None)
    assert (caught.value.row, caught.value.column) == (2, 37)
    assert str(values[2, 37]) in caught.value.why
    assert name in caught.value.why


@pytest.mark.parametrize(("name", "value"), [("F16", 65519.99), ("BF16", 3.3895e38), ("Q8_0", 8.32e6)])
def test_the_largest_values_fit(name: str, value: float) -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 5] = -value
    decoded = codec(name).decode(codec(name).encode(values, None), 32)
    assert decoded[0, 5] == pytest.approx(-value, rel=1e-2)


def adversarial(columns: int) -> np.ndarray:
    """Rows that search the edges of Q8_0: zeros, ties, one-sided, sparse, subnormal, huge, and plain noise."""
    generator = np.random.default_rng(8)
    noise = generator.standard_normal((16, columns)).astype(np.float32)
    ties = (generator.integers(-254, 255, (8, columns)) / 2).astype(np.float32)
    ties[:, ::32] = 127
    steps = np.float32(10.0) ** np.arange(-45, 7, dtype=np.float32)[:, None]
    rows = [
        noise,
        np.abs(noise[:4]),
        ties,
        -ties,
        np.nextafter(ties, np.float32(0)),
        noise[:1] * steps,
        np.where(generator.random((4, columns)) < 0.02, noise[:4], 0),
        np.zeros((1, columns)),
        -np.zeros((1, columns)),
        np.full((1, columns), 1e-45),
        np.full((1, columns), 3.25),
        noise.astype(np.float16),
    ]
    return np.concatenate(rows).astype(np.float32)


def test_q8_0_is_byte_equal_to_ggml(ggml) -> None:
    values = adversarial(512)
    encoded = codec("Q8_0").encode(values, None)
    assert np.array_equal(encoded, ggml.encode(block_type("Q8_0"), values))


def test_q8_0_is_what_llama_quantize_wrote(peer: Peers) -> None:
    source = {t.name: t for t in gguf.GGUFReader(peer("quantize/k256.F16.gguf")).tensors}
    compared = 0
    for tensor in gguf.GGUFReader(peer("quantize/k256.Q8_0.gguf")).tensors:
        if tensor.tensor_type.name != "Q8_0":
            continue
        halves = np.ascontiguousarray(source[tensor.name].data).view(np.uint8)
        columns = int(tensor.shape[0])
        values = codec("F16").decode(halves.reshape(-1, 2 * columns), columns)
        assert np.array_equal(codec("Q8_0").encode(values, None), tensor.data.reshape(len(values), -1))
        compared += 1
    assert compared > 10


def test_encoders_take_views_and_leave_the_source_alone() -> None:
    wide = np.random.default_rng(3).standard_normal((6, 128)).astype(np.float32)
    before = wide.copy()
    for name in ENCODERS:
        view = wide[::2, :64]
        assert np.array_equal(codec(name).encode(view, None), codec(name).encode(view.copy(), None))
    assert np.array_equal(wide, before)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_refuse_other_arrays(name: str) -> None:
    for values in (np.zeros((2, 32)), np.zeros(32, np.float32)):
        with pytest.raises(BlockError, match=f"{name} is encoded from float32"):
            codec(name).encode(values, None)
    if name == "Q8_0":
        with pytest.raises(BlockError, match="multiple of Q8_0's block of 32"):
            codec(name).encode(np.zeros((2, 33), np.float32), None)


# Bad values in files


@pytest.mark.parametrize("name", sorted(codecs()))
def test_scan_finds_the_first_bad_row(name: str, blocks) -> None:
    """Against decoding everything, on random blocks: most of them hold some infinity or NaN where the type can."""
    kind = block_type(name)
    for filling, columns in (("any", 256), ("any", 512), ("finite", 1024)):
        rows = blocks[filling](kind, 48, columns)
        bad = np.flatnonzero(~np.isfinite(codec(name).decode(rows, columns)).all(axis=1))
        for start in (0, *(bad[:3] + 1)) if kind.interleaved == 1 else (0, kind.interleaved):
            expected = next((int(b) - start for b in bad if b >= start), None)
            assert scan_bad(kind, rows[start:], columns) == expected


def test_scan_sees_products_that_overflow() -> None:
    rows = np.zeros((3, 40), np.uint8)
    as_blocks(block_type("Q4_0_V1"), rows)["d"][0, 5] = 1e38
    rows[2, 20 + 4 :] = 0x88  # level 0 everywhere: 0 × 1e38 is a number
    assert scan_bad(block_type("Q4_0_V1"), rows, 64) is None
    rows[2, 20 + 9] = 0x08  # level −8
    assert scan_bad(block_type("Q4_0_V1"), rows, 64) == 2
