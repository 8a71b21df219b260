"""Damage to a finished, quantized output, with no receipt beside it: `verify` must name the tensor and end in exit 6.

Each of these was once 'proved', with a note at most: relative RMS 1.4 and a top-1 agreement of 0% passed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ggferry.converters.conversion_plan.steps import Options
from ggferry.converters.convert import Request, convert
from ggferry.converters.verify import reverify
from ggferry.formats.checkpoint import TensorRef
from ggferry.formats.errors import VerificationError
from ggferry.formats.readers.gguf import open_gguf
from ggferry.support.progress import silent
from helpers.witnesses import FIXTURES

SOURCE = str(FIXTURES / "legacy-llama" / "ggjt3-20230821" / "G256-q4_0.bin")
TYPES = ("q4_k_m", "q3_k_m", "q2_k", "q6_k", "q5_1", "iq4_xs", "q8_0")
Blocks = dict[str, np.ndarray]


@pytest.fixture(scope="module", params=TYPES)
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("quantized") / f"{request.param}.gguf"
    options = Options(outtype=request.param, allow_requantize=True)
    convert(Request(SOURCE, str(out), options, level="fast"))
    Path(f"{out}.receipt.json").unlink()
    yield out
    out.unlink()


def tensors(path: Path) -> dict[str, TensorRef]:
    checkpoint = open_gguf(str(path))
    found = dict(checkpoint.tensors)
    checkpoint.close()
    return found


def damaged(path: Path, to: Path, change: Callable[[Blocks], None]) -> str:
    """A copy of the file after `change` was made to its quantized tensors, given as arrays of blocks by name."""
    shutil.copy(path, to)
    quantized = {name: ref for name, ref in tensors(path).items() if ref.type.quantized}
    data = np.memmap(to, np.uint8, "r+")
    blocks = {}
    for name, ref in quantized.items():
        start = ref.spans[0].offset
        blocks[name] = data[start : start + ref.nbytes].reshape(-1, ref.type.block_bytes)
    change(blocks)
    data.flush()
    return str(to)


def check(output: str, level: str = "fast") -> str:
    return reverify(Request(SOURCE, level=level, jobs=2), output, silent).line


def one(blocks: Blocks) -> np.ndarray:
    return blocks["blk.1.ffn_down.weight"]


def zero_a_tensor(blocks: Blocks) -> None:
    one(blocks)[:] = 0


def zero_all(blocks: Blocks) -> None:
    for each in blocks.values():
        each[:] = 0


def zero_a_block(blocks: Blocks) -> None:
    one(blocks)[3] = 0


def shuffle_all(blocks: Blocks) -> None:
    rng = np.random.default_rng(0)
    for each in blocks.values():
        each[:] = each[rng.permutation(len(each))]


def exchange_blocks(blocks: Blocks) -> None:
    each = one(blocks)
    each[[3, 4]] = each[[4, 3]]


def exchange_layers(blocks: Blocks) -> None:
    first, second = blocks["blk.0.attn_q.weight"], blocks["blk.1.attn_q.weight"]
    first[:], second[:] = second.copy(), first.copy()


def exchange_token_rows(blocks: Blocks) -> None:
    each = blocks["token_embd.weight"]
    row = len(each) // 512 or 1
    each[5 * row : 6 * row], each[7 * row : 8 * row] = each[7 * row : 8 * row].copy(), each[5 * row : 6 * row].copy()


DAMAGE = (zero_a_tensor, zero_all, zero_a_block, shuffle_all, exchange_blocks, exchange_layers, exchange_token_rows)


@pytest.mark.parametrize("change", DAMAGE, ids=lambda change: change.__name__)
def test_damage_to_quantized_weights_is_no_proof(
    change: Callable[[Blocks], None], quantized: Path, tmp_path: Path
) -> None:
    output = damaged(quantized, tmp_path / "bad.gguf", change)
    with pytest.raises(VerificationError, match=r"tensor '(token_embd|blk\.\d)"):
        check(output)


def test_what_was_not_damaged_is_proved_to_the_byte(quantized: Path) -> None:
    line = check(str(quantized), "full")
    found = re.search(r"(\d+) of (\d+) rounded tensors encoded again to the same bytes", line)
    assert found is not None and found[1] == found[2]
