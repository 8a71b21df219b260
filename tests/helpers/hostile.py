"""Values that no configuration and no header should hold, and the demand that they be answered."""

from __future__ import annotations

from ggferry.converters.forward.evaluate import forward
from ggferry.converters.understand import understand
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.errors import GgferryError
from ggferry.formats.gguf.values import ValueType, array, boolean, f32, i32, string, u32, u64
from helpers.tiny_models import TOKENS

JSON = (
    None,
    "",
    -1,
    0,
    1,
    2,
    7,
    0.5,
    1.0,
    -0.5,
    1e308,
    1e-300,
    10**30,
    2**31,
    2**32 - 1,
    True,
    False,
    "x",
    [],
    {},
    [1],
    {"a": 1},
    ["full_attention"] * 3,
    [1e300] * 4,
    float("nan"),
    float("inf"),
)
GGUF = (
    u32(0),
    u32(1),
    u32(3),
    u32(2**32 - 1),
    u64(2**63),
    i32(-5),
    f32(0.0),
    f32(-1.0),
    f32(1e-30),
    f32(float("nan")),
    f32(float("inf")),
    string(""),
    string("x"),
    boolean(True),
    boolean(False),
    array(ValueType.BOOL, [True] * 3),
    array(ValueType.UINT32, [1, 2]),
    array(ValueType.FLOAT32, []),
    None,
)


def answers(checkpoint: Checkpoint, what: object) -> None:
    try:
        graph = understand(checkpoint)
        list(graph.written())
        forward(graph, TOKENS)
    except GgferryError:
        pass
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
