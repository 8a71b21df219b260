"""Hyper-connections: the matrices by which several streams are mixed, read and written to."""

from ggferry.converters.architectures import _common as common
from ggferry.converters.architectures._tensors import tensor
from ggferry.converters.schema.architecture import HParam, Role
from ggferry.converters.schema.derivations import Values

COUNT = HParam("n_streams", "hyper_connection.count", fields={"hf": "hc_mult"}, check="0 < n_streams")
ITERATIONS = HParam(
    "hc_iterations", "hyper_connection.sinkhorn_iterations", fields={"hf": "hc_sinkhorn_iters"},
    check="0 < hc_iterations and hc_iterations <= 1000",
)
EPSILON = HParam("hc_eps", "hyper_connection.epsilon", common.F32, {"hf": "hc_eps"})


def always(name: str, place: str) -> HParam:
    """Return a part of the model that a configuration says it has, and that it must have."""
    return HParam(name, None, common.BOOL, {"hf": place}, words={True: True}, required=False)


def epsilon(values: Values) -> float:
    """Return the epsilon of the indexer's keys: that of the other norms."""
    return float(values["eps"])


def connections(attention: str, feeding: str, rows: str, scales: int) -> tuple[Role, ...]:
    """Return the connections of a block: before the names of the parts stand `attention` and `feeding`; the matrix has
    `rows` rows and as many `scales` as kinds of shares."""
    shapes = {"fn": f"{rows} n_streams*n_embd", "base": rows, "scale": f"{scales}"}
    return tuple(
        tensor(f"hc_{branch}_{part}.weight", shape, f"{source}{part}", f32=True)
        for branch, source in (("attn", attention), ("ffn", feeding))
        for part, shape in shapes.items()
    )


def head(source: str) -> tuple[Role, ...]:
    """Return what makes one state of the streams, behind the last block."""
    shapes = {"fn": "n_streams n_streams*n_embd", "base": "n_streams", "scale": "1"}
    return tuple(
        tensor(f"output_hc_{part}.weight", shape, f"{source}{part}", f32=True) for part, shape in shapes.items()
    )
