"""File names forged lines of ours: a newline in one, and `proved   all ok` stood on the screen; escape codes did worse.

Everything printed passes `service.cli.terminal`, everything in a page `printable`: no text of a stranger holds a
control character, a mark of direction or a line's end when it arrives.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import shutil
import subprocess
import unicodedata
from itertools import chain
from pathlib import Path

import pytest

from ggferry.formats.errors import GgferryError
from ggferry.formats.gguf.values import string
from ggferry.formats.gguf.write import write_gguf
from ggferry.formats.readers.gguf import open_gguf
from ggferry.service.records.plan_file import Entry, Head, read_plan, write_plan
from ggferry.service.records.report import collect
from ggferry.service.records.report_html import page
from ggferry.support.printable import printable, printable_json
from helpers.archive_tools import GGFERRY
from helpers.attack_tools import Typed, typed
from helpers.builders import Llama
from helpers.checkpoints import write_checkpoint
from helpers.parsed import parsed
from helpers.third_party_fixtures import ROOT

pytestmark = pytest.mark.attack

FORGED = "proved   all ok"
HOSTILE = f"e\x1b[31m\x1b]0;title\x07\n{FORGED}\r\x08\x7f\x85\x9b1m\u202e\u2066\u200f\u2028[bold]x[red]:bomb:"
NAME = HOSTILE + os.fsdecode(b"\xff\xfe")
"""A file name may hold all of it, and bytes that are not UTF-8."""


def harmless(text: str) -> None:
    """Printable but for line ends, none of which the stranger made."""
    odd = {f"U+{ord(c):04X}" for c in text if c != "\n" and not c.isprintable()}
    assert not odd, (odd, ascii(text[:400]))
    assert not [line for line in text.split("\n") if line.startswith(FORGED)], ascii(text[:400])


def quiet(*arguments: str | Path, code: int | None = 0) -> Typed:
    """A command, of which everything printed must be harmless; a name with markup must be there to the letter."""
    done = typed(*arguments)
    assert code is None or done.code == code, ascii(done.said[:600])
    harmless(done.out)
    harmless(done.err)
    return done


def test_what_is_escaped_and_what_is_not() -> None:
    every = (range(0x2500), range(0xD7F0, 0xE010), range(0xFE00, 0x10100), range(0xE0000, 0xE0100), [0x10FFFF])
    for number in chain(*every):
        letter = chr(number)
        kind = unicodedata.category(letter)
        escaped = printable(letter) != letter
        assert escaped == (kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or (kind == "Zs" and letter != " "))
        if escaped:
            harmless(printable(letter))
    assert printable("größe ▁の ‘a’ \\x1b") == "größe ▁の ‘a’ \\x1b"
    assert printable("a\n\x1b[0m\udcff\u202e") == r"a\n\x1b[0m\udcff\u202e"
    assert printable(Path("a\tb")) == r"a\tb" and printable(["\n"]) == r"['\n']" and printable(3) == "3"
    assert printable("\n" * 10**7, 20) == r"\n\n\n\n\n\n\n\n\n" + "\\…" and len(printable("x" * 300, 200)) == 200


def test_json_for_people_is_the_same_value() -> None:
    value = {NAME: [HOSTILE, "größe", "\U000e0041", 1.5, None]}
    for form in ({}, {"indent": 1}):
        text = printable_json(value, **form)
        harmless(text)
        assert json.loads(text) == value and "größe" in text and text.encode()


def test_an_error_is_one_line_whatever_is_in_it() -> None:
    error = GgferryError(f"a {HOSTILE}", path=NAME, found=HOSTILE, expected=[HOSTILE], hint=HOSTILE)
    harmless(str(error))
    assert "\n" not in str(error) and "[bold]x[red]:bomb:" in str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Path:
    """Models and their folders under a name that is an attack, with metadata that is another."""
    root = tmp_path_factory.mktemp("terminal") / NAME
    root.mkdir()
    Llama(kind="F16").write(root / f"m{NAME}.bin")
    model = write_checkpoint(root / f"d{NAME}", fixtures, shards=2)
    card = {"license": HOSTILE, "model_name": HOSTILE, "tags": [HOSTILE], "base_model": HOSTILE, "language": HOSTILE}
    (model / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    config = json.loads((model / "config.json").read_text()) | {"_name_or_path": HOSTILE, "torch_dtype": HOSTILE}
    (model / "config.json").write_text(json.dumps({**config, HOSTILE: HOSTILE}))
    (model / "chat_template.jinja").write_text(HOSTILE)
    (model / "tokenizer_config.json").write_text(json.dumps({"bos_token": HOSTILE, "added_tokens_decoder": {}}))
    return root


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_commands_on_hostile_names(folder: Path, tmp_path: Path) -> None:
    source, out = folder / f"m{NAME}.bin", folder / f"o{NAME}.gguf"
    done = quiet("convert", source, "-o", out, "--verify", "fast")
    read, wrote, proved = done.out.splitlines()
    assert (
        printable(str(source)) in read
        and printable(str(out)) in wrote
        and proved.startswith("proved   verified (no independent reference); 30 ")
    )
    assert quiet("convert", source, "-o", out, code=7).err.startswith("error: ")
    for model in (source, out):
        assert "[bold]x[red]:bomb:" in quiet("inspect", model).out
        json.loads(quiet("inspect", model, "--json").out)
    quiet("convert", source, "--dry-run", "-o", tmp_path / "x")
    quiet("verify", source, out, "--level", "fast")
    quiet("quantize", out, tmp_path / f"q{NAME}", "q8_0", "--verify", "fast")
    quiet("quantize", out, tmp_path / f"q{NAME}", "q8_0", code=7)
    json.loads(quiet("convert", source, "-o", tmp_path / f"j{NAME}", "--verify", "fast", "--json").out)
    quiet("forward", source, "--tokens", "1,2", "--out", tmp_path / f"n{NAME}.npy")
    quiet("tokenize", source, "--text", HOSTILE)
    (tmp_path / f"t{NAME}").write_text("the then\n" * 40)
    quiet(
        "imatrix",
        source,
        "--text",
        tmp_path / f"t{NAME}",
        "-o",
        tmp_path / f"i{NAME}",
        "--chunk-size",
        "16",
        "--chunks",
        "1",
    )


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_commands_that_fail_on_hostile_names(folder: Path, tmp_path: Path) -> None:
    for code, arguments in (
        (3, ("inspect", tmp_path / NAME)),
        (3, ("convert", folder / f"m{NAME}.bin", "-o", tmp_path / NAME / "x")),
        (2, ("convert", folder / f"m{NAME}.bin", "--outtype", HOSTILE)),
        (2, ("convert", f"--{NAME}")),
        (2, (NAME,)),
        (2, ("inspect", folder / f"m{NAME}.bin", NAME)),
        (2, ("convert", "x", "--jobs", HOSTILE)),
        (2, ("convert", "x", "--to", HOSTILE)),
        (3, ("apply", tmp_path / NAME)),
        (2, ("ledger", NAME)),
        (None, ("ledger", "list", tmp_path / NAME)),
        (None, ("plan", NAME, "-o", tmp_path / "p")),
        (2, ("plan", f"{HOSTILE}://x", "-o", tmp_path / "p")),
        (3, ("convert", folder / f"m{NAME}.bin", "--metadata", NAME)),
        (2, ("tokenize", folder / f"m{NAME}.bin")),
    ):
        assert quiet(*arguments, code=code).err.strip()
        quiet(*arguments, "--json", code=None)


def test_hostile_metadata_in_files(folder: Path, tmp_path: Path) -> None:
    model = folder / f"d{NAME}"
    quiet("convert", model, "-o", tmp_path / "a.gguf", "--verify", "fast")
    quiet("inspect", model)
    quiet("inspect", tmp_path / "a.gguf", "--full")
    quiet("convert", model, "--dry-run")
    keys = open_gguf(str(tmp_path / "a.gguf")).metadata
    assert keys["tokenizer.chat_template"].data == HOSTILE, "what is copied is copied as it is"
    shutil.copytree(model, tmp_path / "b")
    index = tmp_path / "b" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {HOSTILE: HOSTILE.replace(":", "")}}))
    quiet("convert", tmp_path / "b", code=3)
    index.write_text(json.dumps({"weight_map": {HOSTILE: f"{HOSTILE}/../x"}}))
    quiet("convert", tmp_path / "b", code=5)
    write_gguf(str(tmp_path / "k.gguf"), {"general.architecture": string(HOSTILE), "general.name": string(HOSTILE)}, [])
    quiet("inspect", tmp_path / "k.gguf")
    quiet("convert", tmp_path / "k.gguf", "-o", tmp_path / "k2.gguf", code=None)
    spoilt = Llama().bytes().replace(b"layers.2.ffn_norm.weight", b"a\x1b[31m\nproved \xe2\x80\xae  b")
    (tmp_path / "names.bin").write_bytes(spoilt)
    quiet("inspect", tmp_path / "names.bin", code=None)
    quiet("convert", tmp_path / "names.bin", code=5)


@pytest.fixture(scope="module")
def migrated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the folder and of what cannot be converted in it, carried out."""
    place = tmp_path_factory.mktemp("migrated") / NAME
    place.mkdir()
    tree = place / f"t{NAME}"
    tree.mkdir()
    shutil.copy(folder / f"m{NAME}.bin", tree / f"m{NAME}.bin")
    (tree / f"cut{NAME}.bin").write_bytes((folder / f"m{NAME}.bin").read_bytes()[:-1])
    (tree / f"notes{NAME}").write_text("x")
    (tree / f"link{NAME}").symlink_to(f"/absent/{NAME}")
    shutil.copy(tree / f"m{NAME}.bin", tree / f"same{NAME}.bin")
    path = place / f"p{NAME}"
    quiet("plan", tree, "-o", path, "--dest", place / f"o{NAME}", "--verify", "fast", "-j", "1")
    assert "[bold]x[red]:bomb:" in quiet("apply", path, "--dry-run", "--delete-source").out
    quiet("apply", path, "-j", "1", code=1)
    return path


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_a_plan_is_harmless_to_look_at(migrated: Path) -> None:
    text = migrated.read_text()
    harmless(text)
    assert HOSTILE in json.loads(text.splitlines()[0])["roots"][0]


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_ledger_and_report(migrated: Path, tmp_path: Path) -> None:
    ledger = f"{migrated}.ledger"
    listed = quiet("ledger", "list", ledger).out.splitlines()
    assert len(listed) == 5 and all("[bold]x[red]:bomb:" in line for line in listed)
    rows = [json.loads(line) for line in quiet("ledger", "list", ledger, "--json").out.splitlines()]
    assert sorted(row["state"] for row in rows) == ["done", "quarantined", "skipped", "skipped", "skipped"]
    done = next(row for row in rows if row["state"] == "done")
    assert json.loads(quiet("ledger", "show", ledger, done["id"]).out)["state"] == "done"
    source = next(path for path in json.loads(migrated.read_text().splitlines()[0])["roots"]) + f"/m{NAME}.bin"
    assert json.loads(quiet("ledger", "show", ledger, source).out)["id"] == done["id"]
    quiet("ledger", "show", ledger, NAME, code=3)
    quiet("ledger", "status", ledger)
    assert quiet("ledger", "recheck", ledger).out.startswith("= ")
    quiet("ledger", "export", ledger, "-o", tmp_path / f"e{NAME}")
    quiet("apply", migrated, "--json", code=1)
    for stem in (f"{migrated}.report", str(tmp_path / f"e{NAME}")):
        for suffix in (".html", ".json"):
            harmless(Path(stem + suffix).read_text())


def test_every_text_of_the_page_is_escaped() -> None:
    hostile = f"{HOSTILE}<script>alert(1)</script>"
    row = {
        "id": "1",
        "source": hostile,
        "state": "quarantined",
        "output": hostile,
        "receipt": None,
        "same_as": None,
        "attempts": 1,
        "adopted": False,
        "deleted": False,
        "peak": 0,
        "bytes_in": 1,
        "started": None,
        "finished": None,
        "entry": {"container": hostile, "architecture": hostile, "version": 3, "same_as": hostile, "verdict": hostile},
        "error": {"class": hostile, "message": hostile, "found": hostile, "hint": hostile, "offset": 3},
    }
    text = page(collect([row, {**row, "state": "skipped", "id": "2"}], Head((hostile,), hostile)))
    assert "<script" not in text and "&lt;script&gt;" in text
    harmless(text.replace("\n", " "))


# --- on a terminal --------------------------------------------------------------------------------------------------


@pytest.mark.unix("names with control characters, which Windows refuses")
def test_a_run_on_a_terminal_prints_names_to_the_letter(tmp_path: Path) -> None:
    """With its bar: control characters of rich are ours, those of the names are not."""
    tree = tmp_path / "in"
    tree.mkdir()
    (tree / f"cut{NAME}.bin").write_bytes(Llama(kind="F16").bytes())
    assert typed("plan", tree, "-o", tmp_path / "p", "--dest", tmp_path / "out", "--verify", "fast").code == 0
    (entry,) = read_plan(str(tmp_path / "p"))[1]
    (tmp_path / "out").mkdir()
    Path(str(entry.output)).write_text("somebody else's file: this job fails")
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [*GGFERRY, "apply", str(tmp_path / "p")], stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # how the end of a terminal shows
            break
        if not data:
            break
        said += data
    os.close(ours)
    assert run.wait() == 1, said
    shown = said.decode()
    assert "\x1b]0;" not in shown and "\x07" not in shown and "\u202e" not in shown and f"\n{FORGED}" not in shown
    assert r"[bold]x[red]:bomb:\udcff" in shown and r"\x1b[31m" in shown


PRINTS = {"service/cli/terminal.py", "service/cli/progress_bar.py", "service/server/guard/observe.py"}
"""Where printing is done: lines, JSON, the bar, and the server's log, a line of which is JSON."""


def test_nothing_prints_past_the_one_place() -> None:
    found = set()
    for room in ("quant", "formats", "converters", "service"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(parsed(path)):
                text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if text == "print" or text.endswith((".print", ".echo", ".secho", "stdout.write", "stderr.write")):
                    found.add(str(path.relative_to(ROOT)))
    assert found == PRINTS


def test_entries_of_a_plan_keep_names_that_are_no_text(tmp_path: Path) -> None:
    entry = Entry(f"/m/{NAME}", "other", HOSTILE)
    write_plan(str(tmp_path / "p"), Head((NAME,)), [entry])
    head, (again,) = read_plan(str(tmp_path / "p"))
    assert again == entry and head.roots == (NAME,)
