"""FIFOs, sockets and devices hung `inspect`, `convert` and, for minutes a model, `plan`; and no line of a plan said so.

They are named, never opened so that one could wait, and each has its line.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import NotFoundError
from ggferry.formats.files import local_files
from ggferry.formats.files.local_files import open_file, read_text
from helpers.archive_tools import command, plan
from helpers.attack_tools import typed
from helpers.builders import Llama
from helpers.checkpoints import write_checkpoint
from helpers.third_party_fixtures import ROOT

pytestmark = pytest.mark.attack

RETRY_TIMEOUT = 20  # seconds; what is tested here takes none


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """Whoever waits for a FIFO is interrupted, and fails."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: pytest.fail("waited for a file that is none"))
    signal.alarm(RETRY_TIMEOUT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def special(path: Path, kind: str) -> Iterator[Path]:
    """A file of a kind that nobody can convert, at `path`."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
        yield path
    elif kind == "a device":
        path.symlink_to("/dev/zero")
        yield path
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            os.chdir(path.parent)  # a socket's path has 107 bytes at most
            listener.bind(path.name)
            yield path


KINDS = ("a FIFO", "a socket", "a device")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ("x.bin", "x.gguf", "model.safetensors", "model-00001-of-00002.safetensors", "x.pth"))
def test_a_source_that_is_no_file_is_named_at_once(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with special(tmp_path / name, kind) as path:
        for verb in ("inspect", "convert", "plan"):
            done = typed(verb, path, *(("-o", tmp_path / "p") if verb == "plan" else ()))
            if verb == "plan":
                assert done.code == 0 and "1 other" in done.out
                assert f"{kind}, not a file" in (tmp_path / "p").read_text()
            else:
                assert done.code == 3 and f"{path}: {kind}, not a file" in done.err, done.said


SIDECARS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "README.md",
    "model.safetensors",
    "additional_chat_templates/a.jinja",
    "modules.json",
)


@pytest.mark.parametrize("name", SIDECARS)
def test_a_file_of_a_model_that_is_a_fifo_is_named_and_not_waited_for(
    name: str, tmp_path: Path, fixtures: Path
) -> None:
    model = write_checkpoint(tmp_path / "in" / "model", fixtures)
    with special(model / name, "a FIFO") as path:
        done = typed("convert", model, "-o", tmp_path / "a.gguf", "--verify", "fast")
        assert done.code == 3 and f"{path}: a FIFO, not a file" in done.err, done.said


def test_further_files_of_a_model_that_are_fifos_are_named(tmp_path: Path, fixtures: Path) -> None:
    sharded = write_checkpoint(tmp_path / "sharded", fixtures, shards=2)
    with special(sharded / "model-00002-of-00002.safetensors", "a FIFO") as path:
        assert f"{path}: a FIFO, not a file" in typed("inspect", sharded).err
    with special(sharded / "model.safetensors.index.json", "a FIFO") as path:
        assert f"{path}: a FIFO, not a file" in typed("inspect", sharded).err
    big = tmp_path / "big.bin"
    Llama(n_ff=192, kind="F16", container="ggmf", version=1).write(big, parts=2)
    with special(tmp_path / "big.bin.1", "a FIFO") as path:
        assert f"{path}: a FIFO, not a file" in typed("convert", big).err
    strange = tmp_path / "strange"
    with special(strange / "tokenizer.json", "a FIFO") as path:
        plain = write_checkpoint(tmp_path / "plain", fixtures)
        assert f"{path}: a FIFO, not a file" in typed("convert", plain, "--tokenizer", strange, "--dry-run").err
        for option in ("--imatrix", "--metadata", "--tokenizer-model", "--hf-config"):
            assert "a FIFO, not a file" in typed("convert", big, option, path, "--dry-run").err, option


@pytest.mark.slow
def test_a_plan_has_a_line_for_each_and_waits_for_none(
    tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "in"
    monkeypatch.chdir(tmp_path)
    good = write_checkpoint(root / "good", fixtures)
    read_me, config = (write_checkpoint(root / name, fixtures, seed=n) for n, name in ((1, "card"), (2, "config")))
    Llama(kind="F16").write(root / "legacy.bin")
    (root / "nothing").symlink_to("absent")
    with (
        special(read_me / "README.md", "a FIFO"),
        special(config / "config.json", "a FIFO"),
        special(root / "pipe.bin", "a FIFO"),
        special(root / "tokenizer.model", "a FIFO"),
        special(root / "door.sock", "a socket"),
        special(root / "zero.gguf", "a device"),
        special(root / "alone" / "adapter_model.safetensors", "a FIFO"),
        special(root / "lone" / "x.pth", "a FIFO"),
    ):
        (root / "alone" / "adapter_config.json").write_text("{}")
        found = plan(root, tmp_path / "p", "--dest", tmp_path / "out", "--verify", "fast", "-j", "1")
        lines = {os.path.relpath(line["source"], root): line for line in found}
        assert len(lines) == len(found)
        said = {name: line["reason"] for name, line in lines.items() if line["verdict"] == "other"}
        assert {name: words for name, words in said.items() if "not a file" in words} == {
            "card/README.md": "a FIFO, not a file",
            "config/config.json": "a FIFO, not a file",
            "pipe.bin": "a FIFO, not a file",
            "tokenizer.model": "a FIFO, not a file",
            "door.sock": "a socket, not a file",
            "zero.gguf": "a device, not a file",
            "alone/adapter_model.safetensors": "a FIFO, not a file",
            "lone/x.pth": "a FIFO, not a file",
        }
        assert said["nothing"] == "a link to nothing that can be read"
        assert {name: lines[name]["verdict"] for name in ("good", "card", "config", "legacy.bin")} == {
            "good": "convert",
            "card": "incomplete",
            "config": "incomplete",
            "legacy.bin": "convert",
        }
        assert lines["card"]["reason"] == f"{read_me}/README.md: a FIFO, not a file"
        every = {str(path) for path in root.rglob("*") if not path.is_dir()}
        listed = [each["path"] for line in found for each in (*line.get("files", ()), *line.get("beside", ()))]
        assert set(listed) == every
        odd = [path for path in listed if path.removeprefix(f"{root}/") in said]
        assert len(odd) == len(set(odd)), "what is no file is in one line"
        command("apply", tmp_path / "p", "-j", "1", code=1)
    outputs = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.gguf"))
    assert [name.partition("/")[0] for name in outputs] == ["good", "legacy.gguf"] and good.is_dir()


@pytest.mark.unix("FIFOs among files: opening one of Windows waits for nobody")
def test_a_file_exchanged_for_a_fifo_while_it_is_opened_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "README.md", os.open
    path.write_text("a card")

    def exchanged(name: str, flags: int, *rest: Any) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(name, flags, *rest)

    monkeypatch.setattr(local_files.os, "open", exchanged)
    with pytest.raises(NotFoundError, match="a FIFO, not a file"):
        read_text(str(path))


def test_descriptors_are_closed_whatever_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("../a")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("fifo", "folder", "folder/link", "absent"):
        with pytest.raises(Exception, match=r"FIFO|folder|link|No such file"):
            open_file(str(tmp_path / name))
    os.close(open_file(str(tmp_path / "a")))
    assert len(os.listdir("/proc/self/fd")) == before


OTHERS = {
    # what opens files to read otherwise, and why it may
    "formats/files/local_files.py": "here it is done",
    "formats/memory_cap.py": "/proc",
    "formats/files/partial_files.py": "folders, to flush them",
    "formats/files/output_folder.py": "folders, to flush them",
    "service/storage/stores.py": "folders, to flush them",
    "service/records/owners.py": "/proc",
    "service/server/backup.py": "files of the server's own data folder, and an archive that a person names",
    "service/server/pages/render.py": "of the installation",
    "service/server/work/sources.py": "opens a path only to ask where it is, and reads nothing of it",
    "formats/files/named_texts.py": "texts a person names, which may come through a pipe",
    "converters/proof/references/child_process.py": "what a child wrote into a folder of our own",
    "converters/proof/references/conversations.py": "what a child wrote into a folder of our own",
    "converters/proof/references/programs/llama_cpp_chat.py": "what it printed itself, in a folder of its own",
    "converters/proof/references/programs/worker_protocol.py": "what the parent wrote into a folder of its own",
    "converters/proof/second_reader/programs/library_reader.py": "descriptors that the parent has opened",
    "converters/model_graph/class_defaults/text_models.py": "of the installation",
    "converters/tokenizers/building_blocks/bert_signs.py": "of the installation",
    "converters/tokenizers/building_blocks/unassigned_signs.py": "of the installation",
    "support/registry.py": "of the installation",
    "service/workers/process.py": "the null device, in the place of its standard input",
    "quant/codecs/grids.py": "of the installation",
    "service/server/store/secret_box.py": "the server's own key, in its data folder or where its operator says",
}


@pytest.mark.slow
def test_nothing_else_opens_files_to_read() -> None:
    """Who opens a file to read it does so by `open_file`, or stands above with what else it opens."""
    read = (
        "open(path)",
        "open(path, 'rb')",
        "os.open(path, os.O_RDONLY)",
        "here.open_file(path, 0)",
        "np.fromfile(path)",
        "np.load(path)",
    )
    other = ("open(open_file(path), 'rb')", "open(path, 'wb')", "os.open(path, os.O_CREAT | os.O_RDWR)", "reopen(path)")
    assert [_reads(_call(text)) for text in (*read, *other)] == [True] * len(read) + [False] * len(other)
    found = set()
    for room in ("quant", "formats", "converters", "service"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            if "open" in text or "fromfile" in text or "memmap" in text:
                calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
                found |= {str(path.relative_to(ROOT)) for call in calls if _reads(call)}
    assert found <= OTHERS.keys(), sorted(found - OTHERS.keys())


def _call(text: str) -> ast.Call:
    (node,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and ast.unparse(node) == text)
    return node


def _reads(call: ast.Call) -> bool:
    """`open(path)`, `os.open(path, os.O_RDONLY)`, `np.fromfile(path)`; not `open(open_file(…))` nor what writes."""
    text = ast.unparse(call)
    opens = re.match(
        r"here\.open_file\(|(io\.|os\.)?(fd)?open\((?!open_file\(|os\.dup)|np\.(fromfile|memmap)\(|np\.load\((?!file)",
        text,
    )
    return opens is not None and re.search(r"O_CREAT|O_RDWR|O_WRONLY|O_TMPFILE|, '[wax]b?\+?'", text) is None
