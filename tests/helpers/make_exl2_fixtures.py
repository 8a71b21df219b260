"""Make the EXL2 files of `fixtures/schemes`: packed and dequantized by exllamav2's own kernels, compiled for a CPU.

Run by hand, with a clone of exllamav2 (git) and g++:

    python tests/helpers/make_exl2_fixtures.py GIT_DIR_OF_EXLLAMAV2

Its kernels need little of CUDA (`exl2_shim.h`), and are called for one thread after the other (`exl2_calls.h`).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from make_scheme_fixtures import LAYER, store

HERE = Path(__file__).parent
CUDA = "exllamav2/exllamav2_ext/cuda/"
HEADERS = ("qdq_util", "qdq_2", "qdq_3", "qdq_4", "qdq_5", "qdq_6", "qdq_8")
BITS = (8, 6, 5, 4, 3, 2)


def kernels(repository: str) -> ctypes.CDLL:
    """Compile the kernels that pack, shuffle and reconstruct."""

    def source(name: str) -> str:
        command = ["git", "--git-dir", repository, "show", f"HEAD:{name}"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text = re.sub(r"#include.*", "", text)
        return re.sub(r"half_uint16 (\w+)\((0x[0-9a-f]+ \| [^;]*)\);", r"half_uint16 \1((uint16_t)(\2));", text) + "\n"

    def part(text: str, pattern: str) -> str:
        found = re.search(pattern + r".*?\n}\n", text, re.DOTALL)
        assert found is not None, pattern
        return found[0]

    matrix, packing = source(f"{CUDA}q_matrix.cu"), source(f"{CUDA}pack_tensor.cu")
    code = [(HERE / "exl2_shim.h").read_text(), source("exllamav2/exllamav2_ext/config.h")]
    code += [source(f"{CUDA}quant/{name}.cuh") for name in HEADERS]
    code += [source(f"{CUDA}matrix_view.cuh")]
    code += [part(matrix, rf"__global__ void {name}\b") for name in ("shuffle_kernel", "reconstruct_kernel")]
    code += [
        part(packing, r"__global__ void pack_rows_4_kernel"),
        part(packing, r"__forceinline__ __device__ uint32_t wshift"),
    ]
    code += [part(packing, r"template<int bits>\s*__global__ void pack_columns_kernel")]
    code += [(HERE / "exl2_calls.h").read_text()]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.cpp").write_text("".join(code))
        command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "k.cpp", "-o", "k.so"]
        subprocess.run(command, cwd=folder, check=True)
        return ctypes.CDLL(f"{folder}/k.so")


def make(library: ctypes.CDLL, name: str, groups: list[tuple[int, int]], rows: int) -> None:
    """Pack random levels of groups of (bits, columns) as its converter does; reconstruct them as its loader does."""
    rng = np.random.default_rng(7)
    columns = sum(size for _, size in groups)
    order = rng.permutation(columns).astype(np.uint16)
    words, stated, map_of = [], [], []
    for number, (bits, size) in enumerate(groups):
        levels = rng.integers(0, 1 << bits, (size, rows)).astype(np.uint16)
        packed = np.zeros((size * bits // 32, rows), np.uint32)
        library.pack_levels(_at(levels), _at(packed), len(packed), rows, bits)
        stated += [bits, sum(map(len, words))]
        words.append(packed)
        map_of += [value for left in range(size, 0, -1) for value in (number, left)]
    codes = rng.integers(1, 17, (len(groups), rows)).astype(np.uint16)
    scale = np.zeros((len(groups), rows // 8), np.uint32)
    library.pack_scales(_at(codes), _at(scale), len(groups), rows // 8)
    greatest = rng.uniform(0.05, 0.4, len(groups)).astype(np.float16)
    stored = np.concatenate(words)
    ends = np.cumsum([sum(size for bits, size in groups if bits == kind) for kind in BITS]).astype(np.int32)
    loaded, halves = stored.copy(), greatest / np.float16(256)
    library.shuffle(_at(loaded), columns, rows, _at(ends))
    out = np.zeros((columns, rows), np.float16)
    of_groups = np.array(map_of, np.uint16)
    library.reconstruct(
        _at(loaded),
        _at(order),
        _at(scale),
        _at(halves),
        _at(of_groups),
        columns,
        rows,
        len(groups),
        _at(out),
        _at(ends),
    )
    state = {
        "q_weight": torch.from_numpy(stored.view(np.int32)),
        "q_scale": torch.from_numpy(scale.view(np.int32)),
        "q_scale_max": torch.from_numpy(greatest),
        "q_groups": torch.tensor(stated, dtype=torch.int16),
        "q_invperm": torch.from_numpy(np.argsort(order).astype(np.int32)),
    }
    tensors = {f"{LAYER}.{key}": value for key, value in state.items()}
    settings = {"quant_method": "exl2", "version": "0.3.2", "bits": 4.0}
    store(name, "exllamav2 0.3.2, CUDA kernels on a CPU", tensors, torch.from_numpy(out.T.copy()), settings)


def _at(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


if __name__ == "__main__":
    compiled = kernels(sys.argv[1])
    make(compiled, "exl2-all-bits", [(bits, 32) for bits in BITS], 32)
    make(compiled, "exl2-3.5", [(4, 128), (4, 128), (3, 128), (3, 64), (3, 64)], 64)
