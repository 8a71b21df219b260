"""Pieces of WavTokenizer's table: tensors whose biases are columns, parts of its network over positions."""

from ggferry.converters.schema.architecture import Drop, HParam
from ggferry.converters.schema.roles import Roles, block

WIDTH = "n_width"
DROPS = tuple(Drop(f"*codebook.{name}", "used in training only") for name in ("cluster_size", "embed_avg", "inited"))


def biased(name: str, source: str, shape: str = "", kind: str = "plain") -> str:
    """Return the lines of a tensor and its bias, both columns where no shape is given."""
    weight = f"{name}.weight {kind if shape else 'f32'} : {shape or f'{WIDTH} 1'} | hf {source}.weight"
    return f"{weight}\n{name}.bias f32 : {WIDTH} 1 | hf {source}.bias\n"


def positions(*lines: str, when: str) -> Roles:
    """Return the roles of those parts of the network over positions of which `when` holds."""
    return block("".join(lines), name="posnet.{n}.", layer="backbone.posnet.{n}.", when=when)


def size(name: str, key: str, place: str, check: str = "") -> HParam:
    """Return the hparam of a size, at least one."""
    return HParam(name, key, fields={"hf": place}, least=1, check=check)
