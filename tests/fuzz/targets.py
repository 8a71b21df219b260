"""What is fuzzed: a row for every reader and every tool, with the files it begins from and what is done with a case.

A case may end in any of our errors. Any other exception is a find, and so are an exit code 70, a case of more than 20
seconds, and a process of more than 1 GiB (`fuzz.one`).
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fuzz import files, packed_files
from helpers.attack_tools import typed

READER, TOOL = "reader", "tool"


class FindError(Exception):
    """A tool ended in a way that no file may cause."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        name: Its name on the command line.
        kind: Reader or tool.
        seeds: The cases it begins from.
        run: Does a case in an empty folder.
        words: Texts that mutations insert.
        most: Bytes of a case.
    """

    name: str
    kind: str
    seeds: Callable[[], Iterable[bytes]]
    run: Callable[[bytes, Path], None]
    words: tuple[str, ...] = ()
    most: int = files.LARGEST


# --- readers -------------------------------------------------------------------------------------------------------


def opened(name: str) -> Callable[[bytes, Path], None]:
    """Return what opens a file of this name, looks at all that it states, and understands it."""

    def run(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        open_all(str(folder / name))

    return run


def open_all(path: str) -> None:
    """Open a checkpoint, make all its tensors and values, and bind it to its architecture."""
    from ggferry.converters.model_graph.open_checkpoint import open_checkpoint
    from ggferry.converters.understand import understand

    checkpoint = open_checkpoint(path)
    try:
        for ref in checkpoint.tensors.values():
            _ = ref.shape, ref.nbytes, ref.spans
        for value in checkpoint.metadata.values():
            _ = getattr(value, "data", None)
        understand(checkpoint, vocab_only=not checkpoint.tensors)
    finally:
        checkpoint.close()


def safetensors(data: bytes, folder: Path) -> None:
    """The first bit says whether the rest is a whole file, or a header to which the data is made to fit."""
    kind, rest = data[:1], data[1:]
    if kind and kind[0] & 1:
        ends = [int(number) for number in rest.replace(b"]", b" ").replace(b",", b" ").split() if number.isdigit()]
        fit = max((end for end in ends if end <= 1 << 16), default=0)
        rest = struct.pack("<Q", len(rest)) + rest + bytes(fit)
    (folder / "m.safetensors").write_bytes(rest)
    open_all(str(folder / "m.safetensors"))


def torch_file(data: bytes, folder: Path) -> None:
    """The first bit says whether the rest is a whole file or a pickle in one."""
    kind, rest = data[:1], data[1:]
    (folder / "m.pth").write_bytes(files.torch_zip(rest) if kind and kind[0] & 1 else rest)
    open_all(str(folder / "m.pth"))


def dcp(data: bytes, folder: Path) -> None:
    open_all(packed_files.dcp(data, folder))


def deepspeed(data: bytes, folder: Path) -> None:
    number, pickled = _choice(data, len(packed_files.partitions()))
    open_all(packed_files.deepspeed(number, pickled, folder))


@cache
def beside() -> tuple[tuple[Path, str], ...]:
    """Return the small JSON files beside the checkpoints of `fixtures/`, with their folders."""
    found = [
        (folder, path.name)
        for folder in sorted((files.FIXTURES / "hf/ckpt").iterdir())
        if folder.is_dir()
        for path in sorted(folder.glob("*.json"))
        if path.stat().st_size < 40_000
    ]
    return tuple(found)


def _numbered(number: int, data: bytes) -> bytes:
    return struct.pack("<H", number) + data


def _choice(data: bytes, count: int) -> tuple[int, bytes]:
    """Return which of `count` things a case chooses by its first two bytes, and the rest of it."""
    return int.from_bytes(data[:2], "little") % count, data[2:]


def json_beside(data: bytes, folder: Path) -> None:
    number, text = _choice(data, len(beside()))
    source, name = beside()[number]
    for path in source.iterdir():
        if path.is_file() and path.name != name:
            os.link(path, folder / path.name) if _same_disk(path, folder) else shutil.copy(path, folder)
    (folder / name).write_bytes(text)
    open_all(str(folder))


def _same_disk(path: Path, folder: Path) -> bool:
    return path.stat().st_dev == folder.stat().st_dev


@cache
def vocabularies() -> tuple[tuple[Path, str], ...]:
    """Return the vocabularies that lie in folders of their own, with their folders."""
    names = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tokenizer.json")
    names += ("tokenizer.bin", "gpt2_tokenizer.bin")
    found = [path for name in names for path in sorted(files.FIXTURES.glob(f"**/{name}"))]
    return tuple((path.parent, path.name) for path in found if path.stat().st_size <= files.LARGEST)


def vocabulary(data: bytes, folder: Path) -> None:
    """A vocabulary takes the place of another in a checkpoint, or stands for one of a file that has none."""
    import ggferry

    number, text = _choice(data, len(vocabularies()))
    source, name = vocabularies()[number]
    (folder / "m").mkdir()
    for path in source.iterdir():
        if path.is_file() and path.name != name and path.stat().st_size < 1 << 20:
            shutil.copy(path, folder / "m")
    (folder / "m" / name).write_bytes(text)
    if (folder / "m" / "config.json").exists():
        open_all(str(folder / "m"))
        return
    (folder / "t.bin").write_bytes(next(iter(files.legacy_files())))
    ggferry.plan(folder / "t.bin", tokenizer=folder / "m")


def imatrix(name: str) -> Callable[[bytes, Path], None]:
    def run(data: bytes, folder: Path) -> None:
        from ggferry.formats.imatrix.read import read_imatrix

        (folder / name).write_bytes(data)
        with read_imatrix(str(folder / name)) as matrix:
            for weight, entry in list(matrix.entries.items())[:4]:
                matrices = len(entry.counts)
                matrix.directions(weight, (matrices, 1, entry.values // matrices), matrices - 1)

    return run


def base_logits(data: bytes, folder: Path) -> None:
    from ggferry.formats.base_logits import BaseLogits, unpack

    (folder / "b.base").write_bytes(data)
    with BaseLogits(str(folder / "b.base")) as file:
        for number in range(min(file.chunks, 4)):
            unpack(file.chunk(number), file.vocabulary)


def recipe(data: bytes, folder: Path) -> None:
    from ggferry.quant.recipes.text import format_recipe, parse_layers, parse_recipe, parse_tensor_types
    from ggferry.quant.types import BlockError

    text = data.decode("utf-8", "replace")
    for parse in (
        lambda: format_recipe(parse_recipe(text)),
        lambda: parse_tensor_types(text[:200]),
        lambda: parse_layers(text[:40]),
    ):
        with suppress(BlockError):  # which the caller makes one of ours, naming the option
            parse()


def ours(call: Callable[[], object]) -> None:
    """Call something that may raise our errors."""
    from ggferry.formats.errors import GgferryError

    with suppress(GgferryError):
        call()


def adapter(data: bytes, folder: Path) -> None:
    source = files.FIXTURES / "lora" / "lora_plain"
    shutil.copy(source / "adapter_model.safetensors", folder)
    (folder / "adapter_config.json").write_bytes(data)
    import ggferry

    ggferry.plan(folder, base=files.FIXTURES / "hf/ckpt/llama")


def plan(data: bytes, folder: Path) -> None:
    """A plan is read, and prepared as `apply` does; no worker starts."""
    from ggferry.service.apply.migration import Migration, MigrationRequest
    from ggferry.service.records.plan_file import parse_plan, to_line

    text = data.replace(b"ROOT", os.fsencode(folder))
    (folder / "a.bin").write_bytes(b"model")
    _, entries = parse_plan(text.splitlines(keepends=True), "p")
    for entry in entries:
        to_line(entry)
    (folder / "p.jsonl").write_bytes(text)
    run = Migration(
        MigrationRequest(str(folder / "p.jsonl"), str(folder / "ledger"), trees=(str(folder),)), lambda event: None
    )
    try:
        run.prepare()
    finally:
        run.ledger.close()


@cache
def converted() -> tuple[bytes, bytes]:
    """Return a finished output and its receipt."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "t.bin").write_bytes(next(iter(files.legacy_files())))
        done = typed("convert", folder / "t.bin", "-o", folder / "o.gguf", "--verify", "fast")
        assert done.code == 0, done.err
        return (folder / "o.gguf").read_bytes(), (folder / "o.gguf.receipt.json").read_bytes()


def receipt(data: bytes, folder: Path) -> None:
    from ggferry.converters.rewrite.lineage import load
    from ggferry.converters.write.recovery import files_of

    out = folder / "o.gguf"
    out.write_bytes(converted()[0])
    (folder / "o.gguf.receipt.json").write_bytes(data)
    ours(lambda: load(str(out) + ".receipt.json"))
    ours(lambda: files_of(str(out) + ".receipt.json", str(out)))
    if len(data) % 8 == 0:  # the commands cost a hundred times as much
        tool("inspect", out)
        tool("edit", out, "--set", "general.name=a", "--dry-run")


@cache
def ledger_file() -> bytes:
    """Return a ledger of two jobs, one of them done."""
    import tempfile

    from ggferry.service.records.ledger import DONE, QUEUED, Ledger

    with tempfile.TemporaryDirectory() as name:
        ledger = Ledger(f"{name}/ledger")
        entry = {"source": "/a", "verdict": "convert", "output": "/o", "recipe": {"outtype": "keep", "verify": "fast"}}
        rows = [{"id": f"{n:032x}", "source": f"/{n}", "entry": entry, "state": QUEUED} for n in range(2)]
        ledger.register("p", rows)
        job = ledger.claim("me", "p", 60)
        assert job
        ledger.finish(job, DONE, receipt=json.loads(converted()[1]))
        with ledger.engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
            connection.exec_driver_sql("BEGIN")
        ledger.close()
        return Path(f"{name}/ledger").read_bytes()


COLUMNS = ("entry", "receipt", "error", "source", "output", "state", "plan", "owner", "not_before", "key")


def ledger(data: bytes, folder: Path) -> None:
    """A case is the text of one column, or bytes at a place of the database's file."""
    path = folder / "ledger"
    number, rest = _choice(data, len(COLUMNS) + 3)
    whole = bytearray(ledger_file())
    if number >= len(COLUMNS):
        at = int.from_bytes(rest[:4], "little") % len(whole)
        whole[at : at + len(rest[4:])] = rest[4:][: len(whole) - at]
    path.write_bytes(whole)
    if number < len(COLUMNS):
        with suppress(sqlite3.IntegrityError), sqlite3.connect(path) as database:  # of an id, or none where one must be
            database.execute(f"UPDATE ggferry_jobs SET {COLUMNS[number]} = CAST(? AS TEXT)", (rest,))
        database.close()
    tool("ledger", "list", path)
    tool("ledger", "export", path, "-o", folder / "e")


# --- tools ---------------------------------------------------------------------------------------------------------


def tool(*arguments: str | Path) -> int:
    """Run a command in this process; raise FindError where no file may end it so."""
    done = typed(*arguments)
    if done.code == 70:
        raise FindError(done.err[-400:])
    return done.code


def command(*arguments: str) -> Callable[[bytes, Path], None]:
    """Return what gives a GGUF file to a command; {x} is the file, {o} a free name, {seed} a sound file."""

    def run(data: bytes, folder: Path) -> None:
        (folder / "x.gguf").write_bytes(data)
        places = {"x": folder / "x.gguf", "o": folder / "o.gguf", "seed": folder / "seed.gguf"}
        if "{seed}" in arguments:
            (folder / "seed.gguf").write_bytes(files.gguf())
        tool(*(str(places[each[1:-1]]) if each[:1] == "{" else each for each in arguments))
        _nothing_left(folder)

    return run


def split_and_merge(data: bytes, folder: Path) -> None:
    """What was split is merged again, and must be the same tensors."""
    whole, again = folder / "x.gguf", folder / "w.gguf"
    whole.write_bytes(data)
    if tool("split", whole, "--split-max-tensors", "3", "-o", folder / "s"):
        return
    if tool("merge", sorted(folder.glob("s-*.gguf"))[0], "-o", again):
        raise FindError("a merge of what was just split is refused")
    if _digest(whole) != _digest(again):
        raise FindError("split and merged, the tensors differ")
    _nothing_left(folder)


def edit_in_place(data: bytes, folder: Path) -> None:
    """An edit changes no tensor."""
    path = folder / "x.gguf"
    path.write_bytes(data)
    before = _digest(path)
    if tool("edit", path, "--set", "general.name=zz", "--in-place") == 0 and _digest(path) != before:
        raise FindError("an edit changed tensors")
    _nothing_left(folder)


def _digest(path: Path) -> str:
    return typed("hash", path, "-a", "blake3", "--no-layer").out[:80]


def _nothing_left(folder: Path) -> None:
    if left := [path.name for path in folder.iterdir() if path.name.startswith(".")]:
        raise FindError(f"left behind: {left}")


# --- the table -----------------------------------------------------------------------------------------------------

_GGUF = ("GGUF", "general.architecture", "general.alignment", "llama", "tokenizer.ggml.", "split.count", ".weight")
_TORCH = ("torch._utils", "_rebuild_tensor_v2", "torch", "FloatStorage", "collections", "OrderedDict", "cpu")
_JSON = ('"', "null", "true", "-1", "1e999", "NaN", "[[", '{"', "18446744073709551616", "\\\\ud800", ":", ",")


def _seeds_beside() -> Iterator[bytes]:
    yield from (_numbered(n, (folder / name).read_bytes()) for n, (folder, name) in enumerate(beside()))


def _seeds_vocabulary() -> Iterator[bytes]:
    yield from (_numbered(n, (folder / name).read_bytes()) for n, (folder, name) in enumerate(vocabularies()))


def _seeds_partitions() -> Iterator[bytes]:
    return (_numbered(number, data) for number, data in packed_files.seeds_of_partitions())


def _seeds_ledger() -> Iterator[bytes]:
    for number, text in enumerate((b'{"output":"/o","further":[]}', converted()[1], b'{"class":"X","message":"m"}')):
        yield _numbered(number, text)
    yield from (_numbered(number, b"text") for number in range(3, len(COLUMNS)))
    yield from (_numbered(len(COLUMNS), struct.pack("<I", at) + b"\xff\0") for at in range(0, 60_000, 1021))


def _tool(name: str, *arguments: str) -> Target:
    return Target(name, TOOL, files.gguf_files, command(*arguments), _GGUF)


TARGETS: Mapping[str, Target] = {
    each.name: each
    for each in (
        Target("gguf", READER, files.gguf_files, opened("x.gguf"), _GGUF),
        Target("legacy", READER, files.legacy_files, opened("x.bin"), ("ggml", "lmgg", "fmgg", "tjgg", "algg", "ccgg")),
        Target(
            "safetensors",
            READER,
            lambda: (b"\1" + head for head in files.safetensors_headers()),
            safetensors,
            ("dtype", "shape", "data_offsets", "__metadata__", "BF16", "F8_E4M3", *_JSON),
        ),
        Target(
            "torch",
            READER,
            lambda: (
                *(b"\1" + each for each in files.pickles()),
                b"\0" + files.torch_legacy(),
                b"\0" + files.torch_zip(files.torch_pickle()),
            ),
            torch_file,
            _TORCH,
        ),
        Target("flat", READER, packed_files.flat_files, opened("x.bin")),
        Target(
            "flax", READER, packed_files.flax, opened("x.msgpack"), ("__msgpack_chunked_array__", "params", "float32")
        ),
        Target("hdf5", READER, packed_files.hdf5, opened("x.h5"), ("SNOD", "TREE", "HEAP", "OHDR")),
        Target("keras", READER, packed_files.keras, opened("x.weights.h5"), ("SNOD", "TREE", "GCOL", "bfloat16")),
        Target("orbax", READER, packed_files.orbax, opened("manifest.ocdbt")),
        Target("archive", READER, packed_files.archives, opened("x.bin"), _GGUF),
        Target("dcp", READER, lambda: [(packed_files.DCP / ".metadata").read_bytes()], dcp, _TORCH),
        Target("deepspeed", READER, _seeds_partitions, deepspeed, _TORCH),
        Target("json-beside", READER, _seeds_beside, json_beside, _JSON),
        Target("vocabulary", READER, _seeds_vocabulary, vocabulary, _JSON),
        Target("imatrix-dat", READER, lambda: [files.imatrix_dat()], imatrix("i.dat")),
        Target("base-logits", READER, lambda: [files.base_logits()], base_logits),
        Target(
            "imatrix-gguf",
            READER,
            lambda: [*files.small("quantize/**/*.gguf", most=20_000), *files.imatrix_gguf()],
            imatrix("i.gguf"),
            _GGUF,
        ),
        Target(
            "recipe",
            READER,
            files.recipes,
            recipe,
            ("base: ", "q4_k_m", "if ", "not ", "*", "[a-z]+", "(a+)+$", "..", "{1000}", "blk.0", "=", ":"),
            4096,
        ),
        Target("adapter", READER, lambda: files.small("lora/*/adapter_config.json"), adapter, _JSON),
        Target(
            "plan", READER, lambda: [files.plan_lines("ROOT")], plan, ("ROOT", "convert", "\\\\u0000", "s3://", *_JSON)
        ),
        Target("receipt", READER, lambda: [converted()[1]], receipt, _JSON),
        Target("ledger", READER, _seeds_ledger, ledger, _JSON),
        _tool("inspect", "inspect", "{x}", "--json"),
        _tool("doctor", "doctor", "{x}"),
        _tool("hash", "hash", "{x}"),
        _tool("diff", "diff", "{x}", "{seed}"),
        _tool("repair", "doctor", "{x}", "--repair", "-o", "{o}"),
        _tool("verify", "verify", "{x}"),
        _tool("convert", "convert", "{x}", "-o", "{o}", "--verify", "fast"),
        Target("edit", TOOL, files.gguf_files, edit_in_place, _GGUF),
        Target("split-merge", TOOL, files.gguf_files, split_and_merge, _GGUF),
    )
}
