"""What derives from the configuration of a Granite 4 Vision: which states each projector reads, and in which order."""

from ggferry.converters.schema.derivations import Values, ordered_readers, row_readers


def _ranks(values: Values) -> list[int]:
    """Return the number of every projector in GGUF, in the order of the checkpoint."""
    readers = row_readers(values)
    order = sorted(range(len(readers)), key=lambda number: readers[number])
    return [order.index(number) for number in range(len(readers))]


def averaging_first(values: Values) -> tuple[int, ...]:
    """Return the numbers of all projectors, first of those that average squares of patches."""
    return tuple(_ranks(values))


def corners_first(values: Values) -> tuple[int, ...]:
    """Return the numbers of all projectors, first of those that take one corner of squares."""
    count = len(values["row_pairs"]) // 2
    ranks = _ranks(values)
    return (*ranks[count:], *ranks[:count])


def states(values: Values) -> tuple[int, ...]:
    """Return the block whose states each projector reads, in the order of GGUF.

    Configurations count what goes into the first block as the first states, and a negative number from the end.
    """
    count = values["v_n_layer"]
    found = [at - 1 if at >= 0 else count + at for _, at, _ in ordered_readers(values)]
    if any(not 0 <= block < count for block in found):
        raise ValueError(f"states behind the blocks {found} of {count}: GGUF has no place for what goes into the first")
    return tuple(found)


def corners(values: Values) -> tuple[int, ...]:
    """Return the corner that each projector takes of squares of patches, in the order of GGUF; -1 for their mean."""
    return tuple(corner for _, _, corner in ordered_readers(values))


def count(values: Values) -> int:
    """Return the number of projectors."""
    return len(values["v_corners"])


def pairs(values: Values) -> int:
    """Return the number of items of the list of pairs, laid flat."""
    return len(values["row_pairs"])


def corner_count(values: Values) -> int:
    """Return for how many corners of squares there are projectors."""
    return len(values["corner_blocks"])


def query_side(values: Values) -> int:
    """Return how many queries a side of a window has: the 4 of '4/8'."""
    return _side(values, 0)


def window_side(values: Values) -> int:
    """Return how many patches a side of a window has: the 8 of '4/8'."""
    return _side(values, 1)


def _side(values: Values, at: int) -> int:
    parts = values["downsample_rate"].split("/")
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise ValueError(f"downsample_rate {values['downsample_rate']!r}: not as '4/8'")
    return int(parts[at])
