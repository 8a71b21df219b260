"""Every value of the small types, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ggferry.quant.codec import codec

EDGES = {"BOOL": [0, 1], "U8": range(256), "U16": range(65536), "U32": [0, 1, 2**24 + 1, 2**32 - 1], "U64": [7, 2**63]}
INTEGERS = {"BOOL": torch.bool, "U8": torch.uint8, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64}


@pytest.mark.parametrize("name", EDGES)
def test_integers_equal_torch(name: str) -> None:
    values = torch.tensor(list(EDGES[name]), dtype=INTEGERS[name])
    rows = np.frombuffer(values.numpy().tobytes(), np.uint8).reshape(2 if len(values) > 1 else 1, -1)
    columns = len(values) // len(rows)
    decoded = codec(name).decode(rows, columns)
    assert codec(name).type.row_bytes(columns) == rows.shape[1]
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded, values.to(torch.float32).numpy().reshape(len(rows), columns))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2), ("F8_E8M0", torch.float8_e8m0fnu)],
)
def test_all_byte_floats_equal_torch(name: str, dtype: torch.dtype) -> None:
    rows = np.arange(256, dtype=np.uint8).reshape(4, 64)
    decoded = codec(name).decode(rows, 64)
    expected = torch.from_numpy(rows).view(dtype).to(torch.float32).numpy()
    same = decoded.view(np.uint32) == expected.view(np.uint32)
    assert np.all(same | (np.isnan(decoded) & np.isnan(expected)))
    assert np.isnan(decoded).sum() == np.isnan(expected).sum() > 0
