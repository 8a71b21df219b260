"""Read the pickle of a torch checkpoint as data, by an interpreter whose instructions can only describe.

Nothing is imported, called or executed. A name is looked up in `formats.pytorch.pickle_names`, where it stands for a
plain value, a storage or a view of one; any other name ends the reading at once. The instructions are those of
CPython's `pickletools` up to protocol 5, without those that exist to create objects (INST, OBJ, EXT*, NEWOBJ_EX,
PERSID, buffers) and without the text forms of protocol 0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from typing import Any, NoReturn

from ggferry.formats.errors import (
    CorruptError,
    DuplicateError,
    EncodingError,
    GgferryError,
    OutOfRangeError,
    TrailingBytesError,
    TruncatedError,
    UnsafePickleError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from ggferry.formats.limits import MAX_NAME, MAX_PICKLE, MAX_PICKLE_OPS
from ggferry.formats.pytorch.pickle_names import (
    ALLOWED,
    CLASSES,
    REBUILD,
    REFUSED_TENSORS,
    Global,
    Record,
    Storage,
    View,
    check_key,
    make_set,
    make_storage,
)

LAST_PROTOCOL = 5
_HINT = "nothing was run; load it with the program that wrote it and save its state_dict() alone"
_PYTHON_2 = {"__builtin__": "builtins"}


def read_pickle(
    data: bytes, path: str, offset: int, records: Container[str] = (), most: int = MAX_PICKLE_OPS
) -> tuple[Any, dict[str, Storage]]:
    """Return the value that a pickle describes, and its storages by key.

    Dictionaries of any class become dict, tensors `View`, dtypes and classes `Global`, objects of `records` `Record`.

    Args:
        data: The pickle.
        path: Its file, for errors.
        offset: Byte of the file at which it begins.
        records: Names of further classes whose objects may occur.
        most: The most instructions, weighed.

    Raises:
        UnsafePickleError: A name is not on the list, or something is called that may not be called.
        UnsupportedTypeError: A tensor is of a type that is not supported.
        CorruptError: The pickle is broken (TruncatedError, TrailingBytesError, OutOfRangeError, DuplicateError, …).
    """
    machine = _Machine(data, path, offset, records, most)
    return machine.run(), machine.storages


class _Machine:
    """Stack, marks and memo of one pickle. `at` is the instruction being carried out, `next` the byte after it."""

    def __init__(self, data: bytes, path: str, offset: int, records: Container[str], most: int) -> None:
        self.data, self.path, self.offset, self.records = data, path, offset, records
        self.at = self.next = 0
        self.left = self.most = most
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each mark
        self.memo: list[Any] = []
        self.storages: dict[str, Storage] = {}

    @property
    def place(self) -> int:
        return self.offset + self.at

    def fail(self, kind: type[GgferryError], message: str, **details: Any) -> NoReturn:
        raise kind(message, path=self.path, offset=self.place, **details)

    def spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            self.fail(OutOfRangeError, "number of instructions", expected=f"≤ {self.most}")

    def run(self) -> Any:
        if len(self.data) > MAX_PICKLE:
            self.fail(OutOfRangeError, "size of the pickle", found=len(self.data), expected=f"≤ {MAX_PICKLE}")
        data, end, steps, weights = self.data, len(self.data), _STEPS, _WEIGHTS
        while self.next < end:
            self.at = self.next
            self.next += 1
            code = data[self.at]
            self.left -= weights[code]
            if code == _STOP:
                return self.finish()
            step = steps.get(code)
            if step is None:
                self.refuse_instruction(code)
            if self.left < 0:
                self.spend(0)
            step(self)
        self.at = end
        return self.fail(TruncatedError, "the pickle has no end")

    def finish(self) -> Any:
        if self.next != len(self.data):
            self.fail(TrailingBytesError, "bytes follow the end of the pickle", found=len(self.data) - self.next)
        if self.below or len(self.stack) != 1:
            self.fail(CorruptError, "the pickle ends with values left over", found=len(self.stack), expected=1)
        return self.stack[0]

    def refuse_instruction(self, code: int) -> NoReturn:
        import pickletools

        known = next((known for known in pickletools.opcodes if known.code == chr(code)), None)
        if known is None:
            self.fail(CorruptError, "not a pickle instruction", found=f"{code:#04x}")
        self.fail(UnsafePickleError, f"instruction {known.name}, which no state dict needs", hint=_HINT)

    # --- bytes and stack ---

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.next:
            self.fail(TruncatedError, "the pickle ends inside an instruction", found=len(self.data) - self.next)
        self.next += size
        return self.data[self.next - size : self.next]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def pop(self) -> Any:
        if not self.stack:
            self.fail(CorruptError, "the pickle takes a value that is not there")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack:
            self.fail(CorruptError, "the pickle uses a value that is not there")
        return self.stack[-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        """Return what was pushed since the last mark."""
        if not self.below:
            self.fail(CorruptError, "the pickle goes back to a mark that is not there")
        items, self.stack = self.stack, self.below.pop()
        return items

    # --- instructions that do more than push ---

    def protocol(self) -> None:
        found = self.number(1)
        if found > LAST_PROTOCOL:
            self.fail(UnsupportedVersionError, "pickle protocol", found=found, expected=f"≤ {LAST_PROTOCOL}")

    def frame(self) -> None:
        if self.number(8) > len(self.data) - self.next:
            self.fail(TruncatedError, "a frame of the pickle is cut")

    def text(self, size: int) -> None:
        try:
            self.push(self.take(size).decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            self.fail(EncodingError, "a string of the pickle is not UTF-8")

    def python_2_string(self, size: int) -> None:
        data = self.take(size)
        try:
            self.push(data.decode("utf-8"))
        except UnicodeDecodeError:
            self.push(data)

    def long(self, size: int) -> None:
        if size > 255:
            self.fail(OutOfRangeError, "bytes of an integer", found=size, expected="≤ 255")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def get(self, size: int) -> None:
        index = self.number(size)
        if index >= len(self.memo) or self.memo[index] is _NEVER:
            self.fail(CorruptError, "the pickle recalls a value it never stored", found=index)
        self.push(self.memo[index])

    def put(self, index: int) -> None:
        """Store the top of the stack in the memo.

        Picklers number what they store consecutively, from 0 or 1: so the memo can be a list, a tenth the size of a
        dictionary.
        """
        if index > len(self.memo) + 1:
            self.fail(CorruptError, "the pickle stores a value out of turn", found=index, expected=len(self.memo))
        if index > len(self.memo):
            self.memo.append(_NEVER)
        self.memo[index : index + 1] = [self.top()]

    def global_line(self) -> None:
        names = []
        for _ in range(2):
            end = self.data.find(b"\n", self.next, self.next + MAX_NAME)
            if end < 0:
                self.fail(TruncatedError, "a name of the pickle has no end")
            names.append(self.take(end - self.next).decode("utf-8", "replace"))
            self.next += 1
        self.name_global(*names)

    def global_stack(self) -> None:
        name, module = self.pop(), self.pop()
        self.name_global(module, name)

    def name_global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            self.fail(CorruptError, "a name of the pickle is not text")
        full = f"{_PYTHON_2.get(module, module)}.{name}"
        if full in REFUSED_TENSORS and full not in self.records:
            self.fail(UnsupportedTypeError, f"the checkpoint holds {REFUSED_TENSORS[full]}", found=full)
        if full not in ALLOWED and full not in self.records:
            self.fail(UnsafePickleError, "the pickle names something other than tensors", found=full, hint=_HINT)
        self.push(Global(full))

    def reduce(self) -> None:
        args, called = self.pop(), self.pop()
        self.call(called, args, REBUILD, "calls")

    def new_object(self) -> None:
        args, called = self.pop(), self.pop()
        self.call(called, args, CLASSES, "makes")

    def call(self, called: Any, args: Any, allowed: Any, verb: str) -> None:
        own = isinstance(called, Global) and called.name in self.records
        if not isinstance(called, Global) or not (own or called.name in allowed):
            found = called.name if isinstance(called, Global) else type(called).__name__
            self.fail(UnsafePickleError, f"the pickle {verb} what may not be called", found=found, hint=_HINT)
        if not isinstance(args, tuple):
            self.fail(CorruptError, f"arguments of {called.name}", found=type(args).__name__, expected="a tuple")
        self.spend(len(args))
        self.push(Record(called.name, args) if own else REBUILD[called.name](self, *args))

    def build(self) -> None:
        """Keep the state of a record; ignore that of a dictionary (`_metadata`: versions of modules)."""
        state, built = self.pop(), self.top()
        if isinstance(built, Record) and built.state is None:
            built.state = state
            return
        if not isinstance(built, dict) or not isinstance(state, (dict, tuple)):
            found = built.name if isinstance(built, Global) else type(built).__name__
            self.fail(UnsafePickleError, "the pickle gives state to something", found=found, hint=_HINT)

    def set_items(self, items: list[Any]) -> None:
        table = self.top()
        if not isinstance(table, dict) or len(items) % 2:
            self.fail(CorruptError, "items for something that is not a dictionary", found=type(table).__name__)
        for i in range(0, len(items), 2):
            key = check_key(self, items[i])
            if key in table:
                self.fail(DuplicateError, "a key twice in one dictionary", found=key)
            table[key] = items[i + 1]

    def set_one(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            self.fail(CorruptError, "items for something that is not a list", found=type(target).__name__)
        target.extend(items)

    def add_items(self) -> None:
        items, target = self.pop_mark(), self.top()
        if not isinstance(target, set):
            self.fail(CorruptError, "items for something that is not a set", found=type(target).__name__)
        target.update(check_key(self, item) for item in items)

    def make_dict(self) -> None:
        items = self.pop_mark()
        self.push({})
        self.set_items(items)

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            self.fail(CorruptError, "the pickle takes a value that is not there")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def persistent(self) -> None:
        self.push(make_storage(self, self.storages, self.pop()))


_NEVER = object()  # a place of the memo where nothing was stored
_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord(code): step
    for code, step in {
        # code: what it does                                            # name in pickletools
        "\x80": lambda m: m.protocol(),  # PROTO
        "\x95": lambda m: m.frame(),  # FRAME
        "N": lambda m: m.push(None),  # NONE
        "\x88": lambda m: m.push(True),  # NEWTRUE
        "\x89": lambda m: m.push(False),  # NEWFALSE
        "K": lambda m: m.push(m.number(1)),  # BININT1
        "M": lambda m: m.push(m.number(2)),  # BININT2
        "J": lambda m: m.long(4),  # BININT
        "\x8a": lambda m: m.long(m.number(1)),  # LONG1
        "\x8b": lambda m: m.long(m.number(4)),  # LONG4
        "G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),  # BINFLOAT
        "X": lambda m: m.text(m.number(4)),  # BINUNICODE
        "\x8c": lambda m: m.text(m.number(1)),  # SHORT_BINUNICODE
        "\x8d": lambda m: m.text(m.number(8)),  # BINUNICODE8
        "U": lambda m: m.python_2_string(m.number(1)),  # SHORT_BINSTRING
        "T": lambda m: m.python_2_string(m.number(4)),  # BINSTRING
        "C": lambda m: m.push(m.take(m.number(1))),  # SHORT_BINBYTES
        "B": lambda m: m.push(m.take(m.number(4))),  # BINBYTES
        "\x8e": lambda m: m.push(m.take(m.number(8))),  # BINBYTES8
        "\x96": lambda m: m.push(m.take(m.number(8))),  # BYTEARRAY8
        "(": lambda m: m.mark(),  # MARK
        "0": lambda m: (m.pop(), None)[1],  # POP
        "1": lambda m: (m.pop_mark(), None)[1],  # POP_MARK
        "h": lambda m: m.get(1),  # BINGET
        "j": lambda m: m.get(4),  # LONG_BINGET
        "q": lambda m: m.put(m.number(1)),  # BINPUT
        "r": lambda m: m.put(m.number(4)),  # LONG_BINPUT
        "\x94": lambda m: m.put(len(m.memo)),  # MEMOIZE
        ")": lambda m: m.push(()),  # EMPTY_TUPLE
        "t": lambda m: m.push(tuple(m.pop_mark())),  # TUPLE
        "\x85": lambda m: m.tuple_of(1),  # TUPLE1
        "\x86": lambda m: m.tuple_of(2),  # TUPLE2
        "\x87": lambda m: m.tuple_of(3),  # TUPLE3
        "]": lambda m: m.push([]),  # EMPTY_LIST
        "l": lambda m: m.push(m.pop_mark()),  # LIST
        "a": lambda m: m.append([m.pop()]),  # APPEND
        "e": lambda m: m.append(m.pop_mark()),  # APPENDS
        "}": lambda m: m.push({}),  # EMPTY_DICT
        "d": lambda m: m.make_dict(),  # DICT
        "s": lambda m: m.set_one(),  # SETITEM
        "u": lambda m: m.set_items(m.pop_mark()),  # SETITEMS
        "\x8f": lambda m: m.push(set()),  # EMPTY_SET
        "\x90": lambda m: m.add_items(),  # ADDITEMS
        "\x91": lambda m: m.push(make_set(m, m.pop_mark())),  # FROZENSET
        "c": lambda m: m.global_line(),  # GLOBAL
        "\x93": lambda m: m.global_stack(),  # STACK_GLOBAL
        "Q": lambda m: m.persistent(),  # BINPERSID
        "R": lambda m: m.reduce(),  # REDUCE
        "\x81": lambda m: m.new_object(),  # NEWOBJ
        "b": lambda m: m.build(),  # BUILD
    }.items()
}

_WEIGHTS = [
    4 if chr(code) in "]}\x8f" else 3 if chr(code) in "(tlJ\x8aMXTUCB\x8c\x8d\x8e\x85\x86\x87R" else 1
    for code in range(256)
]
"""Cost by instruction: those that turn one to four bytes of the pickle into a value of 50 to 80 bytes count as several.
"""

__all__ = ["Global", "Record", "Storage", "View", "read_pickle"]
