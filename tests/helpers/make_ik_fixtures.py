"""Make `fixtures/ik-llama/`: blocks and values by ik_llama.cpp's own functions, and two GGUF files with its types.

    git clone https://github.com/ikawrakow/ik_llama.cpp    # 8337e4cd3861406fc04e0854b1409cd1b027fbc9
    FLAGS="-O2 -fPIC -w -Iggml/include -Iggml/src -DNDEBUG -D_GNU_SOURCE -mavx2 -mfma -mf16c -ffp-contract=off"
    gcc $FLAGS -std=c11 -c ggml/src/ggml-quants.c
    gcc $FLAGS -std=c11 '-Dbarrier_t=void*' -c ggml/src/ggml.c
    g++ $FLAGS -std=c++17 -c ggml/src/iqk/iqk_quantize.cpp
    g++ -shared -o libik.so *.o     # with an empty function for every symbol that is then missing: none is called
    python tests/helpers/make_ik_fixtures.py libik.so

One line of it was corrected: `dequantize_row_mxfp4_r8` counts the blocks of all eight rows as those of one and writes
behind its output (`int nblock = k/kBlockSize`, read here as `n_per_row/kBlockSize`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import sys
from pathlib import Path

import numpy as np

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
from ggferry.formats.gguf.write import write_gguf
from ggferry.quant.codec import IK_LLAMA_CPP, block_type, codecs

FIXTURES = Path(__file__).parents[2] / "fixtures"
COLUMNS = 256
NOISE = 512
OWN = {
    "token_embd.weight": "IQ3_KS", "output.weight": "IQ2_KL", "blk.0.attn_q.weight": "IQ3_K_R4",
    "blk.0.attn_k.weight": "IQ5_KS_R4", "blk.0.attn_v.weight": "IQ6_K", "blk.0.attn_output.weight": "IQ2_KT",
    "blk.0.ffn_gate.weight": "IQ3_KT", "blk.0.ffn_up.weight": "IQ2_KS", "blk.0.ffn_down.weight": "IQ2_K_R4",
}  # fmt: skip
"""Types of the first model, which llama.cpp has not."""
REPACKED = {
    "token_embd.weight": "Q4_0_R8", "output.weight": "Q4_0_R8", "blk.0.attn_q.weight": "Q5_0_R4",
    "blk.0.attn_k.weight": "IQ4_NL_R4", "blk.0.attn_v.weight": "Q8_0_R8", "blk.0.attn_output.weight": "BF16_R16",
    "blk.0.ffn_gate.weight": "MXFP4_R8", "blk.0.ffn_up.weight": "IQ4_NL_R4", "blk.0.ffn_down.weight": "Q5_0_R4",
}  # fmt: skip
"""Types of the second model, whose rows taken apart llama.cpp reads."""


class Init(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Library:
    """The fork's functions."""

    def __init__(self, path: str) -> None:
        self.ik = ctypes.CDLL(path)
        self.ik.ggml_init.restype, self.ik.ggml_init.argtypes = ctypes.c_void_p, [Init]
        self.ik.ggml_init(Init(1 << 20, None, True))  # fills the table of float16
        self.ik.ggml_type_name.restype = ctypes.c_char_p
        self.ik.ggml_row_size.restype = self.ik.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.ik.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
        five = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 2
        self.ik.ggml_quantize_chunk.argtypes = [ctypes.c_int, *five]

    def row_bytes(self, number: int, columns: int) -> int:
        return self.ik.ggml_row_size(number, columns)

    def encode(self, number: int, values: np.ndarray) -> np.ndarray:
        rows, columns = values.shape
        values, weights = np.ascontiguousarray(values, np.float32), np.ones(columns, np.float32)
        out = np.zeros((rows, self.row_bytes(number, columns)), np.uint8)
        if number == block_type("BF16_R16").ggml_id:
            self.ik.repack_f32_bf16_r16.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
            self.ik.repack_f32_bf16_r16(values.ctypes.data, out.ctypes.data, rows, columns)
            return out
        size = self.ik.ggml_quantize_chunk(
            number, values.ctypes.data, out.ctypes.data, 0, rows, columns, weights.ctypes.data, None
        )
        assert size == out.nbytes
        return out

    def decode(self, number: int, rows: np.ndarray, columns: int) -> np.ndarray:
        name = self.ik.ggml_type_name(number).decode()
        name = name if "KV" in name else name.lower()
        function = getattr(self.ik, f"dequantize_row_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p] * 2 + [ctypes.c_int64], None
        out = np.zeros((len(rows), columns), np.float32)
        count = int(name.rpartition("_r")[2]) if name[-2:-1] == "r" else 1
        for at in range(0, len(rows), count):
            group = np.ascontiguousarray(rows[at : at + count])
            function(group.ctypes.data, out[at:].ctypes.data, count * columns)
        return out


def noise(name: str, rows: int, row_bytes: int) -> np.ndarray:
    """Return random bytes, the same in every version of Python and numpy."""
    found = random.Random(name).randbytes(rows * row_bytes)
    return np.frombuffer(found, np.uint8).reshape(rows, row_bytes)


def digest(values: np.ndarray) -> str:
    """Return the sha256 of float32 values: any NaN is any other, and zeros have no sign."""
    plain = np.where(np.isnan(values), np.float32(np.nan), values + np.float32(0))
    return hashlib.sha256(np.ascontiguousarray(plain, "<f4").tobytes()).hexdigest()


def make_blocks(library: Library, folder: Path) -> None:
    """Write blocks of Gaussian weights, and the digests of the values of these and of random bytes."""
    blocks, facts = {}, {}
    for name, one in sorted(codecs().items()):
        number, rows = one.type.ggml_id, max(4, one.type.interleaved)
        if one.runtime != IK_LLAMA_CPP or number is None:
            continue
        weights = np.random.default_rng(number).normal(0, 0.02, (rows, COLUMNS)).astype(np.float32)
        blocks[name] = library.encode(number, weights)
        facts[name] = {"id": number, "row_bytes": library.row_bytes(number, COLUMNS)}
        if name == "BF16_R16":
            facts[name]["values"] = digest((weights.view(np.uint32) >> 16 << 16).view(np.float32))
            continue
        facts[name]["values"] = digest(library.decode(number, blocks[name], COLUMNS))
        random_rows = noise(name, 2 * rows, library.row_bytes(number, NOISE))
        facts[name]["noise"] = digest(library.decode(number, random_rows, NOISE))
    np.savez_compressed(folder / "blocks.npz", **blocks)
    (folder / "values.json").write_text(json.dumps(facts, indent=1) + "\n")


def make_model(library: Library, source: Path, types: dict[str, str], target: Path, work: Path) -> dict[str, str]:
    """Write a model of one block in the fork's types; return the digest of each tensor's values as the fork's."""
    whole, plain = work / "whole.gguf", work / "plain.gguf"
    ggferry.convert(source, whole, outtype="f32", verify="none", force=True)
    ggferry.quantize(whole, plain, outtype="f32", prune_layers="1", verify="none", force=True)
    checkpoint = open_checkpoint(str(plain))
    tensors, digests = [], {}
    for ref in checkpoint.tensors.values():
        data = checkpoint.files[0].read(ref.spans[0].offset, ref.nbytes)
        kind = block_type(types.get(ref.name, "F32"))
        if ref.name in types:
            values = np.frombuffer(data, np.float32).reshape(ref.shape)
            blocks = library.encode(kind.ggml_id or 0, values)
            data = blocks.tobytes()
            if kind.name != "BF16_R16":
                digests[ref.name] = digest(library.decode(kind.ggml_id or 0, blocks, ref.columns))
        tensors.append((ref.name, kind, ref.shape, data))
    write_gguf(target, dict(checkpoint.metadata), tensors, overwrite=True)
    checkpoint.close()
    return digests


if __name__ == "__main__":
    made = FIXTURES / "ik-llama"
    made.mkdir(exist_ok=True)
    shared = Library(sys.argv[1])
    make_blocks(shared, made)
    scratch = Path(sys.argv[2] if len(sys.argv) > 2 else "/tmp")
    values, sources = {}, {"own.gguf": ("llama_k256", OWN), "interleaved.gguf": ("llama", REPACKED)}
    for name, (source, types) in sources.items():
        values[name] = make_model(shared, FIXTURES / "hf/ckpt" / source, types, made / name, scratch)
    (made / "models.json").write_text(json.dumps(values, indent=1) + "\n")
