"""Which names may occur in the pickle of a torch state dict, and what each means. A table: nothing here is imported.

Source: `torch/_weights_only_unpickler.py`, `torch/_utils.py`, `torch/storage.py` 2.13. `Machine` is the interpreter of
`formats.pytorch.pickle_machine`; a rebuild function receives it to report where something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn, Protocol

from ggferry.formats.errors import (
    CorruptError,
    GgferryError,
    InconsistentError,
    OutOfRangeError,
    UnsupportedTypeError,
)
from ggferry.formats.limits import MAX_DIM, MAX_EXPANSION, MAX_NAME, MAX_PICKLE_INT, MAX_RANK
from ggferry.quant.codec import block_type
from ggferry.quant.types import BlockType


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A name from the allow-list. It stands for the thing, which itself is never touched."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Bytes outside the pickle.

    Attributes:
        key: The bytes are in the record `data/<key>`.
        type: Type of the elements; None: untyped, so bytes.
        numel: Number of elements.
    """

    key: str
    type: BlockType | None
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return self.numel * (1 if self.type is None else self.type.block_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor, as a view of a storage.

    Attributes:
        storage: The storage.
        type: Type of the elements.
        offset: The storage's element at which the view begins.
        shape: Elements along each axis, outermost first.
        strides: Elements between neighbors along each axis.
        at: Byte of the pickle's instruction that made it.
    """

    storage: Storage
    type: BlockType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int


class Record:
    """An object of a class that is known by its name alone: what it was called with and the state it was given.

    Attributes:
        name: Name of the class.
        args: What it was called with.
        state: Its fields by name, or what else the pickle gives as its state; None before that.
    """

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: tuple[Any, ...]) -> None:
        self.name, self.args = name, args
        self.state: Any = None


class Machine(Protocol):
    """The interpreter at one instruction."""

    records: Container[str]
    """Names of further classes whose objects may occur."""

    @property
    def place(self) -> int:
        """Byte in the file of the instruction that is being carried out."""
        ...

    def fail(self, kind: type[GgferryError], message: str, **details: Any) -> NoReturn: ...

    def spend(self, work: int) -> None:
        """Count `work` items that one instruction copies, because a value can be recalled and copied without end."""
        ...


def shown(value: Any) -> Any:
    """Return a value of the pickle for an error message: a small one itself, one of unbounded size by its type."""
    return value if isinstance(value, (int, float, str)) or value is None else type(value).__name__


STORAGE_TYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
# Known and not carried: refused when a tensor uses them, harmless as a remark (`torch_dtype` of a configuration).
OTHER_STORAGES = (
    "ComplexDoubleStorage",
    "ComplexFloatStorage",
    "QInt8Storage",
    "QUInt8Storage",
    "QInt32Storage",
    "QUInt4x2Storage",
    "QUInt2x4Storage",
)
OTHER_DTYPES = (
    *("complex32", "complex64", "complex128", "qint8", "quint8", "qint32", "quint4x2", "quint2x4"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
)
PLAIN = (
    *("torch.Tensor", "torch.strided", "torch.per_tensor_affine", "torch.per_tensor_symmetric"),
    *("torch.per_channel_affine", "torch.per_channel_symmetric", "torch.per_channel_affine_float_qparams"),
)
WRAPPER = "torch._utils._rebuild_wrapper_subclass"
"""What rebuilds tensors without bytes of their own, as those that are spread over devices."""
REFUSED_TENSORS = {
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor without data (meta device)",
    WRAPPER: "a tensor subclass without bytes of its own",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device, kept as a numpy array",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of another device, kept as a copy",
}


# --- rebuild functions: arguments as the pickle gives them → value ---------------------------------------------------


def rebuild_tensor(machine: Machine, *args: Any) -> View:
    """Rebuild `_rebuild_tensor(storage, offset, size, stride)` or `_rebuild_tensor_v2`, which has three more arguments.

    Source: torch/_utils.py.
    """
    if len(args) not in (4, 6, 7) or not isinstance(args[0], Storage):
        machine.fail(CorruptError, "arguments of a tensor", found=len(args), expected="storage, offset, size, stride …")
    if args[0].type is None:
        machine.fail(CorruptError, "a tensor over untyped bytes does not state its type")
    return _view(machine, args[0], args[0].type, *args[1:4], metadata=args[6] if len(args) == 7 else None)


def rebuild_tensor_v3(machine: Machine, *args: Any) -> View:
    """Rebuild `_rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype, metadata=None)`."""
    if len(args) not in (7, 8) or not isinstance(args[0], Storage) or not isinstance(args[6], Global):
        machine.fail(CorruptError, "arguments of a tensor", found=len(args), expected="storage … and a dtype")
    block = dtype_of(machine, args[6].name)
    return _view(machine, args[0], block, *args[1:4], metadata=args[7] if len(args) == 8 else None)


def dtype_of(machine: Machine, name: str) -> BlockType:
    """Return the block type of a torch dtype. Refuses, by name, the types that are not supported."""
    short = name.removeprefix("torch.")
    if short not in DTYPES:
        machine.fail(UnsupportedTypeError, "a tensor of a type that ggferry does not carry", found=name)
    return block_type(DTYPES[short])


def _view(
    machine: Machine, storage: Storage, block: BlockType, offset: Any, size: Any, stride: Any, *, metadata: Any
) -> View:
    shape, strides = _sizes(machine, "size", size), _sizes(machine, "stride", stride)
    if len(shape) != len(strides) or not _is_size(offset):
        machine.fail(CorruptError, "a tensor's offset, size and stride", found=shown(offset))
    machine.spend(len(metadata) if isinstance(metadata, dict) else 0)
    if isinstance(metadata, dict) and any(metadata.values()):
        flags = ", ".join(str(key) for key, value in metadata.items() if value)
        machine.fail(UnsupportedTypeError, "a tensor whose values are changed when it is read", found=flags[:MAX_NAME])
    reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if all(shape) else 0
    item, held = block.block_bytes, storage.nbytes
    if (offset + reach) * item > held:
        found, expected = f"{(offset + reach) * item} bytes", f"≤ {held}"
        machine.fail(OutOfRangeError, f"a view beyond its storage {storage.key!r}", found=found, expected=expected)
    if prod(shape) > MAX_EXPANSION * max(1, held // item):
        found, expected = f"{prod(shape)} elements", f"≤ {MAX_EXPANSION} for each stored"
        machine.fail(OutOfRangeError, "an expanded view", found=found, expected=expected)
    return View(storage, block, offset, shape, strides, machine.place)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_DIM


def _sizes(machine: Machine, what: str, found: Any) -> tuple[int, ...]:
    if not isinstance(found, (tuple, list)) or len(found) > MAX_RANK or not all(map(_is_size, found)):
        few = [shown(size) for size in found[:8]] if isinstance(found, (tuple, list)) else shown(found)
        machine.fail(OutOfRangeError, f"a tensor's {what}", found=few, expected=f"≤ {MAX_RANK} sizes ≥ 0")
    return tuple(found)


def rebuild_parameter(machine: Machine, *args: Any) -> View:
    """Rebuild `_rebuild_parameter(data, requires_grad, hooks)` and its variants.

    These are `_rebuild_parameter_with_state(…, state)` and `Parameter(data, requires_grad)`.
    """
    if not 1 <= len(args) <= 4 or not isinstance(args[0], View):
        machine.fail(CorruptError, "arguments of a parameter", expected="a tensor first")
    return args[0]


def rebuild_from_type(machine: Machine, *args: Any) -> Any:
    """Rebuild `_rebuild_from_type_v2(func, type, args, state)`: a tensor with attributes, which are ignored.

    A subclass of tensors without bytes of its own is a record, where such records are read.
    """
    if len(args) != 4 or not isinstance(args[0], Global) or not isinstance(args[2], tuple):
        machine.fail(CorruptError, "arguments of a tensor with attributes", found=len(args), expected=4)
    if args[0].name == WRAPPER and isinstance(args[1], Global) and args[1].name in machine.records:
        made = Record(args[1].name, args[2])
        made.state = args[3]
        return made
    if not isinstance(args[1], Global) or args[1].name not in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        machine.fail(UnsupportedTypeError, "a tensor of a class of its own", found=getattr(args[1], "name", None))
    if args[0].name not in _TENSORS:
        machine.fail(CorruptError, "a tensor with attributes is made by another function", found=args[0].name)
    machine.spend(len(args[2]))
    return _TENSORS[args[0].name](machine, *args[2])


def make_dict(machine: Machine, *args: Any) -> dict[Any, Any]:
    """Make the dict of `OrderedDict()`, `OrderedDict([(key, value), …])` or `Counter({…})`."""
    items = args[0] if args else ()
    machine.spend(len(items) if isinstance(items, dict) else 0)
    pairs = tuple(items.items()) if isinstance(items, dict) else items
    if len(args) > 1 or not isinstance(pairs, (list, tuple)):
        machine.fail(CorruptError, "arguments of a dictionary")
    machine.spend(len(pairs))
    made: dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            machine.fail(CorruptError, "an item of a dictionary is not a pair")
        made[check_key(machine, pair[0])] = pair[1]
    return made


def check_key(machine: Machine, key: Any) -> Any:
    """Return a key that can be hashed in bounded time: text, bytes, a small integer, a record, None. Refuses others."""
    small = isinstance(key, int) and -MAX_PICKLE_INT < key < MAX_PICKLE_INT
    if not (small or key is None or isinstance(key, (str, bytes, Record))):
        machine.fail(UnsupportedTypeError, "a dictionary key that no state dict has", found=type(key).__name__)
    return key


def make_size(machine: Machine, *args: Any) -> tuple[Any, ...]:
    """Make the tuple of `torch.Size`."""
    if len(args) != 1 or not isinstance(args[0], (tuple, list)):
        machine.fail(CorruptError, "arguments of torch.Size")
    machine.spend(len(args[0]))
    return tuple(args[0])


def make_set(machine: Machine, *args: Any) -> set[Any]:
    """Make a set."""
    items = args[0] if args else ()
    if len(args) > 1 or not isinstance(items, (list, tuple, set)):
        machine.fail(CorruptError, "arguments of a set")
    machine.spend(len(items))
    return {check_key(machine, item) for item in items}


def make_bytes(machine: Machine, *args: Any) -> bytes:
    """Make the bytes of `_codecs.encode(text, 'latin1')`, as protocol 2 writes bytes, or of `bytearray` of that."""
    if not args or (len(args) == 1 and isinstance(args[0], bytes)):
        return args[0] if args else b""
    if len(args) != 2 or not isinstance(args[0], str) or args[1] not in ("latin1", "latin-1", "utf-8"):
        machine.fail(CorruptError, "arguments of bytes")
    machine.spend(len(args[0]))
    return args[0].encode(args[1], "replace")


def make_complex(machine: Machine, *args: Any) -> complex:
    """Make a complex number."""
    if len(args) != 2 or not all(isinstance(part, (int, float)) for part in args):
        machine.fail(CorruptError, "arguments of a complex number")
    try:
        return complex(*args)
    except OverflowError:
        machine.fail(OutOfRangeError, "a complex number")


def make_remark(machine: Machine, *args: Any) -> str:
    """Make the text of `torch.device('cpu')` or of a layout's name: it is reported and has no effect."""
    if not 1 <= len(args) <= 2 or not isinstance(args[0], str):
        machine.fail(CorruptError, "arguments of a device or layout")
    return args[0][:MAX_NAME]


Rebuild = Callable[..., Any]
_TENSORS: Mapping[str, Rebuild] = {
    "torch._utils._rebuild_tensor": rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": rebuild_parameter,
}
REBUILD: Mapping[str, Rebuild] = {
    **_TENSORS,
    "torch._tensor._rebuild_from_type_v2": rebuild_from_type,
    "torch.nn.parameter.Parameter": rebuild_parameter,
    "torch.Size": make_size,
    "torch.device": make_remark,
    "torch.serialization._get_layout": make_remark,
    "collections.OrderedDict": make_dict,
    "collections.Counter": make_dict,
    "_codecs.encode": make_bytes,
    "builtins.bytearray": make_bytes,
    "builtins.set": make_set,
    "builtins.complex": make_complex,
}
CLASSES = frozenset(
    {"collections.OrderedDict", "collections.Counter", "torch.nn.parameter.Parameter", "torch.Size", "builtins.set"}
)
"""The classes that NEWOBJ may make."""

_UNTYPED = "torch.storage.UntypedStorage"
STORAGES = frozenset(
    [_UNTYPED, *(f"torch.{gpu}{name}" for gpu in ("", "cuda.") for name in (*STORAGE_TYPES, *OTHER_STORAGES))]
)
ALLOWED = frozenset([*REBUILD, *STORAGES, *PLAIN, *(f"torch.{name}" for name in (*DTYPES, *OTHER_DTYPES))])


def make_storage(machine: Machine, known: dict[str, Storage], found: Any) -> Storage:
    """Return the storage of the persistent id ('storage', type, key, location, numel).

    The same key gives the same storage.
    """
    if not isinstance(found, tuple) or len(found) != 5 or found[0] != "storage":
        machine.fail(CorruptError, "a persistent id", found=type(found).__name__, expected="a storage of five parts")
    _, named, key, _, numel = found
    if not isinstance(named, Global) or named.name not in STORAGES:
        machine.fail(CorruptError, "type of a storage", found=getattr(named, "name", None))
    if not isinstance(key, str) or not 0 < len(key) <= MAX_NAME or not _is_size(numel):
        machine.fail(OutOfRangeError, "a storage's key and size", found=[shown(key), shown(numel)])
    short = named.name.rpartition(".")[2]
    if short in OTHER_STORAGES:
        machine.fail(UnsupportedTypeError, "a storage of a type that ggferry does not carry", found=named.name)
    made = Storage(key, None if named.name == _UNTYPED else block_type(STORAGE_TYPES[short]), numel)
    first = known.setdefault(key, made)
    if (first.type, first.numel) != (made.type, numel):
        again, before = f"{numel} of {made.type}", f"{first.numel} of {first.type}"
        machine.fail(InconsistentError, f"storage {key!r} is stated twice", found=again, expected=before)
    return first
