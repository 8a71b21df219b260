"""A link in a model's folder copied the operator's files into the output: `chat_template.jinja → ~/.aws/credentials`.

Links are followed within what was named (the folder, the tree of a plan, a Hugging Face cache) and nowhere else; what
lies outside is named, and not a byte of it is read.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import ChangedError, RefusedError
from ggferry.formats.files import local_files
from ggferry.formats.files.local_files import Named, confined, open_file, read_text
from ggferry.formats.files.sources import LocalFile
from ggferry.formats.readers.gguf import open_gguf
from ggferry.service.records.plan_file import Entry, read_plan
from ggferry.service.storage.stores import listing
from ggferry.service.workers import commands
from helpers.archive_tools import command, plan, rows
from helpers.attack_tools import SECRET, files_with, typed
from helpers.builders import Llama
from helpers.checkpoints import write_checkpoint

pytestmark = pytest.mark.attack


@pytest.fixture
def model(tmp_path: Path, fixtures: Path) -> Path:
    return write_checkpoint(tmp_path / "in" / "model", fixtures)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the operator's, outside of every tree that is converted."""
    path = tmp_path / "home" / "credentials"
    path.parent.mkdir()
    path.write_text(SECRET + "\n")
    return path


def link(path: Path, target: Path | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path


def refused(source: Path, out: Path, name: str, target: Path) -> None:
    """`convert` and `inspect` as far as they read the link: exit 7, the link and its target named, nothing copied."""
    done = typed("convert", source, "-o", out / "x.gguf", "--verify", "fast")
    assert done.code == 7, done.said
    assert name in done.err and str(target) in done.err and "link leads out" in done.err
    assert SECRET not in done.said and not list(out.glob("*"))


SIDECARS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "model.safetensors",
    "additional_chat_templates/tool.jinja",
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SIDECARS)
def test_a_file_of_a_model_that_is_a_link_out_of_its_folder_is_refused(
    name: str, model: Path, secret: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    link(model / name, secret)
    refused(model, tmp_path / "out", name, secret)
    link(model / name, os.path.relpath(secret, (model / name).parent))
    refused(model, tmp_path / "out", name, secret)


def test_a_folder_that_is_a_link_is_no_way_out_either(model: Path, secret: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    shutil.copy(secret, secret.with_name("tool.jinja"))
    link(model / "additional_chat_templates", secret.parent)
    refused(model, tmp_path / "out", "tool.jinja", secret.with_name("tool.jinja"))
    (model / "additional_chat_templates").unlink()
    modules = [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (model / "modules.json").write_text(json.dumps(modules))
    secret.with_name("config.json").write_text(json.dumps({"pooling_mode_cls_token": SECRET}))
    link(model / "1_Pooling", secret.parent)
    refused(model, tmp_path / "out", "config.json", secret.with_name("config.json"))


def test_shards_parts_and_consolidated_files_may_not_be_links_out(secret: Path, tmp_path: Path, fixtures: Path) -> None:
    (tmp_path / "out").mkdir()
    sharded = write_checkpoint(tmp_path / "sharded", fixtures, shards=2)
    shard = sharded / "model-00002-of-00002.safetensors"
    away = Path(shutil.move(shard, secret.with_name("away.safetensors")))
    link(shard, away)
    refused(sharded, tmp_path / "out", shard.name, away)
    refused(sharded / "model-00001-of-00002.safetensors", tmp_path / "out", shard.name, away)
    link(sharded / "model.safetensors.index.json", secret)
    refused(sharded, tmp_path / "out", "model.safetensors.index.json", secret)
    whole = tmp_path / "parts"
    whole.mkdir()
    Llama(n_ff=192, kind="F16", container="ggmf", version=1).write(whole / "big.bin", parts=2)
    away = Path(shutil.move(whole / "big.bin.1", secret.with_name("big.bin.1")))
    link(whole / "big.bin.1", away)
    refused(whole / "big.bin", tmp_path / "out", "big.bin.1", away)
    meta = tmp_path / "meta"
    link(meta / "consolidated.01.pth", secret)
    (meta / "consolidated.00.pth").write_bytes(b"PK\3\4")
    refused(meta, tmp_path / "out", "consolidated.01.pth", secret)


def test_a_shard_of_a_gguf_model_may_not_be_a_link_out(tmp_path: Path, secret: Path) -> None:
    source, out = Llama(kind="F16").write(tmp_path / "m.bin"), tmp_path / "shards" / "s.gguf"
    out.parent.mkdir()
    done = typed("convert", source, "-o", out, "--split-max-tensors", "20", "--verify", "fast")
    assert done.code == 0, done.said
    first, second = sorted(out.parent.glob("*.gguf"))
    away = Path(shutil.move(second, secret.with_name(second.name)))
    link(second, away)
    done = typed("inspect", first)
    assert done.code == 7 and second.name in done.err and str(away) in done.err


def test_a_link_that_the_user_names_is_the_users_choice(model: Path, secret: Path, tmp_path: Path) -> None:
    """The file is read where it is; what belongs to it is looked for beside the name, not beside the target."""
    there = tmp_path / "there"
    there.mkdir()
    named = link(there / "model.safetensors", model / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model / name, there / name)
    done = typed("convert", named, "-o", tmp_path / "a.gguf", "--verify", "fast")
    assert done.code == 0, done.said
    (there / "config.json").unlink()
    assert "config.json" in typed("convert", named, "-o", tmp_path / "b.gguf").err
    link(there / "config.json", model / "config.json")
    done = typed("convert", named, "-o", tmp_path / "b.gguf")
    assert done.code == 7 and str(there / "config.json") in done.err
    folder = link(tmp_path / "folder", model)
    assert typed("convert", folder, "-o", tmp_path / "c.gguf", "--verify", "fast").code == 0
    assert typed("inspect", named.parent / "model.safetensors").code == 7, "inspect reads the configuration beside it"


def test_files_named_by_options_may_be_links(tmp_path: Path, fixtures: Path) -> None:
    source = shutil.copy(fixtures / "legacy-llama" / "ggjt3-20230821" / "q4_0.bin", tmp_path / "m.bin")
    pieces = link(tmp_path / "links" / "tokenizer.model", fixtures / "legacy-llama" / "tokenizer.model")
    done = typed("convert", source, "-o", tmp_path / "a.gguf", "--tokenizer-model", pieces, "--verify", "fast")
    assert done.code == 0, done.said


def test_a_folder_named_by_an_option_is_confined_too(model: Path, secret: Path, tmp_path: Path) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(model, strange, ignore=shutil.ignore_patterns("*.safetensors"))
    link(strange / "chat_template.jinja", secret)
    done = typed("convert", model, "-o", tmp_path / "a.gguf", "--tokenizer", strange)
    assert done.code == 7 and "chat_template.jinja" in done.err and SECRET not in done.said


def test_links_within_the_folder_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "templates").mkdir()
    (model / "templates" / "a.jinja").write_text("{{ within }}")
    link(model / "chat_template.jinja", "templates/a.jinja")
    link(model / "additional_chat_templates" / "tool.jinja", "../templates/a.jinja")
    shutil.move(model / "model.safetensors", model / "templates" / "weights")
    link(model / "model.safetensors", (model / "templates" / "weights").resolve())
    done = typed("convert", model, "-o", tmp_path / "a.gguf", "--verify", "fast")
    assert done.code == 0, done.said
    with open_gguf(str(tmp_path / "a.gguf")).files[0] as source:  # type: ignore[attr-defined]
        keys = open_gguf(source.path).metadata
    assert keys["tokenizer.chat_template"].data == keys["tokenizer.chat_template.tool"].data == "{{ within }}"


# --- the cache of huggingface_hub -----------------------------------------------------------------------------------


def cache(hub: Path, model: Path, name: str = "models--org--tiny") -> Path:
    """`model` as huggingface_hub keeps it; the snapshot's folder."""
    snapshot = hub / name / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (hub / name / "blobs").mkdir()
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, hub / name / "blobs" / f"{number:040x}")
        link(snapshot / path.name, f"../../blobs/{number:040x}")
    return snapshot


def test_a_snapshot_of_a_hugging_face_cache_is_made_of_links_and_converts(model: Path, tmp_path: Path) -> None:
    snapshot = cache(tmp_path / "hub", model)
    for source in (snapshot, snapshot / "model.safetensors", link(tmp_path / "link", snapshot)):
        done = typed("convert", source, "-o", tmp_path / "a.gguf", "--verify", "fast", "--force")
        assert done.code == 0, done.said


@pytest.mark.parametrize("root", ("hub", "hub/models--org--tiny", "hub/models--org--tiny/snapshots/0123abc"))
def test_a_plan_of_a_hugging_face_cache_converts_the_snapshot(root: str, model: Path, tmp_path: Path) -> None:
    cache(tmp_path / "hub", model)
    found = plan(tmp_path / root, tmp_path / "p", "--dest", tmp_path / "out")
    assert [line["kind"] for line in found if line["verdict"] == "convert"] == ["folder"]
    assert {line["verdict"] for line in found} <= {"convert", "other"}


def test_a_snapshot_is_no_way_into_another_model_or_out_of_a_false_cache(
    model: Path, secret: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    snapshot = cache(tmp_path / "hub", model)
    private = cache(tmp_path / "hub", model, "models--me--private")
    target = private.parent.parent / "blobs" / f"{0:040x}"
    link(snapshot / "chat_template.jinja", target)
    refused(snapshot, tmp_path / "out", "chat_template.jinja", target)
    false = tmp_path / "false" / "models--org--tiny" / "snapshots" / "0"
    shutil.copytree(model, false)
    link(false.parent.parent / "blobs", secret.parent)
    link(false / "chat_template.jinja", "../../blobs/credentials")
    refused(false, tmp_path / "out", "chat_template.jinja", secret)
    plain = tmp_path / "snapshots" / "0"
    shutil.copytree(model, plain)
    link(plain / "chat_template.jinja", "../../home/credentials")
    refused(plain, tmp_path / "out", "chat_template.jinja", secret)


# --- archives -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plan_and_apply_publish_nothing_from_outside_the_tree(model: Path, secret: Path, tmp_path: Path) -> None:
    root = model.parent
    link(model / "chat_template.jinja", secret)
    Llama(kind="F16").write(secret.with_name("private.bin"))
    link(root / "lone.bin", secret.with_name("private.bin"))
    link(root / "notes.txt", secret)
    link(root / "nowhere.bin", tmp_path / "absent")
    Llama(kind="F16", seed=1).write(root / "good.bin")
    link(root / "tokenizer.model", secret)
    found = plan(root, tmp_path / "p", "--dest", tmp_path / "o", "--verify", "fast", "-j", "1")
    lines = {os.path.relpath(line["source"], root): line for line in found}
    verdicts = {name: line["verdict"] for name, line in lines.items()}
    assert verdicts == {
        "model": "unsupported",
        "model/chat_template.jinja": "other",
        "lone.bin": "unsupported",
        "notes.txt": "other",
        "nowhere.bin": "other",
        "good.bin": "convert",
        "tokenizer.model": "other",
    }
    for name in ("model", "model/chat_template.jinja", "lone.bin", "notes.txt", "tokenizer.model"):
        assert str(secret.parent) in lines[name]["reason"] and "link" in lines[name]["reason"], lines[name]
    assert lines["nowhere.bin"]["reason"] == "a link to nothing that can be read"
    assert any("tokenizer.model" in note and "link leads out" in note for note in lines["good.bin"]["notes"])
    command("apply", tmp_path / "p", "-j", "1", code=1)
    assert rows(tmp_path / "p.ledger")[str(root / "good.bin")]["state"] == "done"
    assert not files_with(SECRET, tmp_path / "o") and [p.name for p in (tmp_path / "o").glob("*.gguf")] == ["good.gguf"]


@pytest.mark.slow
def test_links_from_model_to_model_and_from_root_to_root_are_followed(tmp_path: Path, fixtures: Path) -> None:
    first = write_checkpoint(tmp_path / "in" / "first", fixtures)
    second = write_checkpoint(tmp_path / "in" / "second", fixtures, seed=1)
    other = tmp_path / "other" / "generation_config.json"
    other.parent.mkdir()
    other.write_text("{}")
    link(second / "tokenizer.json", "../first/tokenizer.json")
    link(second / "generation_config.json", other)
    assert {line["verdict"] for line in plan(tmp_path / "in", tmp_path / "q")} == {"convert", "unsupported", "other"}
    command("plan", tmp_path / "in", other.parent, "-o", tmp_path / "p", "--dest", tmp_path / "out", "--verify", "fast")
    entries = read_plan(str(tmp_path / "p"))[1]
    assert {entry.verdict for entry in entries if entry.kind == "folder"} == {"convert"}
    command("apply", tmp_path / "p", "-j", "1")
    assert len(list((tmp_path / "out").rglob("*.gguf"))) == 2 and first.is_dir()


def test_a_worker_refuses_a_link_that_came_after_the_plan(model: Path, secret: Path, tmp_path: Path) -> None:
    """Not the listing but the descriptor decides: this job's plan was made when README.md was a file."""

    class Parent:
        def ask(self, question: str, **facts: Any) -> dict[str, Any]:
            raise AssertionError("the job must end before it asks for anything")

        def stage(self, title: str, total: int) -> Any:
            from ggferry.support.progress import silent

            return silent(title, total)

    plan(model.parent, tmp_path / "p", "--dest", tmp_path / "out")
    head, (entry,) = read_plan(str(tmp_path / "p"))
    assert isinstance(entry, Entry)
    secret.write_text("x" * (model / "README.md").stat().st_size)
    link(model / "README.md", secret)
    job = {
        "op": "convert",
        "source": entry.source,
        "outs": list(entry.outputs),
        "recipe": entry.recipe(head),
        "files": [each.path for each in entry.files],
        "trees": head.trees,
        "threads": 1,
        "beside": {os.path.basename(each.path): each.path for each in entry.beside},
    }
    with pytest.raises(RefusedError, match="link leads out"):
        commands.run(job, Parent())
    with pytest.raises(RefusedError, match="link leads out"):
        commands.run({"op": "analyze", **{key: job[key] for key in ("source", "recipe", "threads", "trees")}}, Parent())


@pytest.mark.slow
def test_a_tree_named_by_a_url_of_this_machine_is_a_local_tree(model: Path, secret: Path, tmp_path: Path) -> None:
    link(model / "chat_template.jinja", secret)
    for scheme in ("file", "local"):
        lines = plan(f"{scheme}://{model}", tmp_path / scheme)
        assert {line["verdict"] for line in lines} == {"unsupported", "other"}


@pytest.mark.slow
def test_a_destination_below_the_root_may_be_a_link(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    Llama(kind="F16").write(root / "a.bin")
    (tmp_path / "disk").mkdir()
    link(root / "gguf", tmp_path / "disk")
    plan(root, tmp_path / "p", "--dest", root / "gguf", "--verify", "fast", "-j", "1")
    command("apply", tmp_path / "p", "-j", "1")
    assert (tmp_path / "disk" / "a.gguf").is_file()


# --- races ----------------------------------------------------------------------------------------------------------


def test_a_file_exchanged_for_a_link_while_it_is_opened_is_refused(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "chat_template.jinja"
    path.write_text("{{ harmless }}")
    real = os.open

    def exchanged(name: str, flags: int, *rest: Any) -> int:
        """A link for as long as the file is opened, a file before and behind it."""
        link(path, secret)
        fd = real(name, flags, *rest)
        path.unlink()
        path.write_text("{{ harmless }}")
        return fd

    monkeypatch.setattr(local_files.os, "open", exchanged)
    with pytest.raises((RefusedError, ChangedError)):  # the latter where no /proc says what was opened
        read_text(str(path))
    monkeypatch.setattr(local_files.os, "readlink", lambda path: (_ for _ in ()).throw(OSError("no /proc")))
    with pytest.raises(Exception, match="was replaced"):
        read_text(str(path))


def test_a_folder_of_a_tree_exchanged_for_a_link_is_refused(tmp_path: Path, secret: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "model").mkdir(parents=True)
    with confined([str(tree)]):
        (tree / "model").rmdir()
        link(tree / "model", secret.parent)
        with pytest.raises(RefusedError):
            open_file(str(tree / "model" / "credentials"))
        LocalFile(Named(tree / "model" / "credentials")).close()
    with LocalFile(str(tree / "model" / "credentials")) as file:  # no tree: the folder is what the caller says it is
        assert file.size == len(SECRET) + 1


@pytest.mark.linux("/proc")
def test_a_link_to_the_process_itself_gives_the_same_plan_twice(tmp_path: Path) -> None:
    """/proc/self is another folder for every process: its number stood in the plan."""
    (tmp_path / "m.bin").symlink_to("/proc/self/mem")
    [found] = listing(str(tmp_path))
    assert found.reason == "a link to what the kernel shows as a file" and str(os.getpid()) not in repr(found.reason)
