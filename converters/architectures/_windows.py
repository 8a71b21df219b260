"""Numbers that blocks with a window have of their own."""

from ggferry.converters.schema.derivations import Derivation, Values


def of_kinds(name: str, full: str, windowed: str, as_full: bool = False) -> Derivation:
    """Return what a configuration states of a number of blocks: one without a window, and one with.

    Args:
        name: The number, one for all blocks or one a block.
        full: What states it of blocks without a window.
        windowed: What states it of blocks with one.
        as_full: Whether nothing is said of blocks with a window that are like the others.
    """

    def numbers(values: Values) -> Values:
        kinds = values["swa_layers"]
        listed = values[name] if isinstance(values[name], tuple) else (values[name],) * len(kinds)
        by_window = dict(zip(kinds, listed, strict=True))
        plain, own = (by_window.get(kind, by_window.get(not kind)) for kind in (False, True))
        return {full: plain, windowed: None if as_full and own == plain else own}

    return numbers
