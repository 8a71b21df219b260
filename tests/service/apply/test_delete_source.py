"""`--delete-source` deletes what it named, of what it proved, and nothing that the output does not hold."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ggferry.converters.schema.architecture import Drop
from ggferry.converters.understand import architectures
from ggferry.formats.errors import RefusedError
from ggferry.service.apply.delete_sources import SHOWN, Deletion
from ggferry.service.apply.migration import Migration, MigrationRequest, survey
from ggferry.service.records.plan_file import Entry
from ggferry.service.storage.stores import Found
from helpers.archive_tools import GGFERRY, applied, command, plan, planned, states, write
from helpers.builders import Llama

pytestmark = pytest.mark.attack


def deleting(path: Path, **asked: Any) -> tuple[Migration, list[dict[str, Any]]]:
    return applied(path, delete_source=True, **asked)


def named(deletion: Deletion) -> set[str]:
    return {os.path.basename(each.path) for each in deletion.files}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    for seed, name in enumerate("abc"):
        write(tmp_path / "in" / f"{name}.bin", Llama(seed=seed))
    return tmp_path / "in"


def test_earlier_outputs_are_counted_in_the_question(archive: Path, tmp_path: Path) -> None:
    """It said 'delete 0 files' and deleted those of the run before."""
    path = planned(archive, tmp_path / "out", tmp_path / "plan")
    applied(path)
    _, deletion = survey(MigrationRequest(str(path), f"{path}.ledger", delete_source=True))
    assert named(deletion) == {"a.bin", "b.bin", "c.bin"}
    assert list(deletion.lines())[-1].startswith("3 files to delete")
    migration, _ = deleting(path)
    assert migration.deletion == deletion and not list(archive.iterdir())


@pytest.mark.slow
def test_a_line_set_to_skip_is_not_deleted_even_when_it_was_converted(archive: Path, tmp_path: Path) -> None:
    path = planned(archive, tmp_path / "out", tmp_path / "plan")
    applied(path)
    planned(archive, tmp_path / "out", path, a={"verdict": "skip"})
    migration, _ = deleting(path)
    assert named(migration.deletion) == {"b.bin", "c.bin"}
    assert [each.name for each in archive.iterdir()] == ["a.bin"]


def test_a_plan_without_proof_is_refused(archive: Path, tmp_path: Path) -> None:
    for verify, edits in (("none", {}), ("fast", {"b": {"options": {"verify": "none"}}})):
        path = planned(archive, tmp_path / "out", tmp_path / f"plan-{verify}", verify, **edits)
        with pytest.raises(RefusedError, match="needs a proof"):
            deleting(path)
    assert len(list(archive.iterdir())) == 3 and not (tmp_path / "out").exists()


def test_a_file_that_another_line_needs_stays(archive: Path, tmp_path: Path) -> None:
    """One source with two lines, and one that another line's link leads to."""
    os.symlink("b.bin", archive / "d.bin")
    path = planned(archive, tmp_path / "out", tmp_path / "plan")
    head, *lines = map(json.loads, path.read_text().splitlines())
    twice = {**lines[0], "output": f"{tmp_path}/out/other.gguf", "options": {"outtype": "f32"}}
    path.write_text("\n".join(map(json.dumps, [head, *lines, twice])))
    migration, _ = deleting(path)
    assert named(migration.deletion) == {"c.bin"}
    assert {os.path.basename(source) for source in migration.deletion.spared} == {"a.bin", "b.bin"}
    assert {each.name for each in archive.iterdir()} == {"a.bin", "b.bin", "d.bin"}
    assert len(list((tmp_path / "out").glob("*.gguf"))) == 4


def test_a_source_that_is_no_longer_what_was_converted_stays(archive: Path, tmp_path: Path) -> None:
    path = planned(archive, tmp_path / "out", tmp_path / "plan")
    applied(path)
    write(archive / "a.bin", Llama(seed=9))
    _, events = deleting(path)
    assert [each.name for each in archive.iterdir()] == ["a.bin"]
    assert ["not what was converted" in e["message"] for e in events if e["event"] == "warning"] == [True]


def test_an_output_that_is_damaged_keeps_its_source(archive: Path, tmp_path: Path) -> None:
    path = planned(archive, tmp_path / "out", tmp_path / "plan")
    applied(path)
    (tmp_path / "out" / "a.gguf").write_bytes(b"")
    deleting(path)
    assert [each.name for each in archive.iterdir()] == ["a.bin"]


# --- the question --------------------------------------------------------------------------------------------


def answered(path: Path, answer: str) -> tuple[int, str]:
    """`apply --delete-source` at a terminal where `answer` is typed: its exit code, and what it said."""
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode() + b"\n")
    arguments = [*GGFERRY, "apply", path, "-j", "1", "--delete-source"]
    done = subprocess.run(arguments, stdin=theirs, capture_output=True, text=True)
    os.close(ours)
    os.close(theirs)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_the_question_names_what_goes_and_the_answer_must_fit(tmp_path: Path) -> None:
    source = write(tmp_path / "in" / "a.bin", Llama())
    path = planned(source.parent, tmp_path / "out", tmp_path / "plan")
    code, said = answered(path, "delete 2 files")
    assert code == 7 and source.exists() and "not confirmed" in said
    assert f"delete  {source}  {source.stat().st_size:,} bytes" in said and "1 files to delete" in said
    assert answered(path, "delete 1 files")[0] == 0 and not source.exists()


def test_a_long_list_is_cut_and_a_dry_run_has_it_whole(archive: Path, tmp_path: Path) -> None:
    many = [Entry(f"/in/{n}", "convert", files=(Found(f"/in/{n}", 10),)) for n in range(SHOWN + 5)]
    lines = list(Deletion({str(n): entry for n, entry in enumerate(many)}).lines())
    assert len(lines) == SHOWN + 2 and "and 5 more" in lines[-2] and "150 bytes" in lines[-1]
    path = planned(archive, tmp_path / "out", tmp_path / "plan")
    shown = json.loads(command("apply", path, "--delete-source", "--dry-run", "--json").stdout)
    assert len(shown["convert"]) == 3 and {os.path.basename(each["path"]) for each in shown["delete"]} == {
        "a.bin",
        "b.bin",
        "c.bin",
    }
    assert not (tmp_path / "out").exists() and not Path(f"{path}.ledger").exists() and len(list(archive.iterdir())) == 3


# --- what the output does not hold ---------------------------------------------------------------------------


@pytest.fixture
def lossy(tmp_path: Path, fixtures: Path) -> Path:
    """A BERT of one block with its pooler, for which GGUF has no name."""
    rows, width, inner = 384, 32, 48
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings": (rows, width),
        "embeddings.token_type_embeddings": (2, width),
        "embeddings.position_embeddings": (40, width),
        "pooler.dense": (width, width),
    }
    layer = "encoder.layer.0."
    for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
        shapes[layer + name] = (width, width)
    shapes |= {f"{layer}intermediate.dense": (inner, width), f"{layer}output.dense": (width, inner)}
    generator = np.random.default_rng(1)
    tensors = {f"{name}.weight": generator.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": np.ones(s[0], np.float32) for name, s in shapes.items() if not name.startswith("emb")}
    for name in ("embeddings.LayerNorm", f"{layer}attention.output.LayerNorm", f"{layer}output.LayerNorm"):
        tensors |= {f"{name}.{part}": np.ones(width, np.float32) for part in ("weight", "bias")}
    tensors["embeddings.position_ids"] = np.arange(40, dtype=np.int64)[None]
    folder = tmp_path / "in" / "bert"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": rows,
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": inner,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(fixtures / "tokenizers" / "wordpiece" / name, folder)
    return folder


@pytest.mark.slow
def test_what_is_not_carried_over_is_a_note_in_the_plan_and_on_the_screen(lossy: Path, tmp_path: Path) -> None:
    (line,) = plan(lossy, tmp_path / "plan", "--dest", tmp_path / "out", "-j", "1")
    (loss,) = line["lost"]
    assert loss["tensors"] == 2 and loss["bytes"] == 4 * (32 * 32 + 32) and "pooled" in loss["reason"]
    said = command("convert", lossy, "-o", tmp_path / "x.gguf").stderr
    assert "note     2 tensors are not copied ('pooler.dense.bias', 4,224 bytes in all)" in said
    dropped = json.loads((tmp_path / "x.gguf.receipt.json").read_text())["dropped"]
    assert {drop["name"]: drop["loses"] for drop in dropped} == {
        "embeddings.position_ids": False,
        "pooler.dense.bias": True,
        "pooler.dense.weight": True,
    }


@pytest.mark.slow
def test_a_model_that_is_not_carried_over_whole_is_not_deleted_unless_told(lossy: Path, tmp_path: Path) -> None:
    path = planned(lossy, tmp_path / "out", tmp_path / "plan")
    migration, _ = deleting(path)
    assert states(migration)["bert"] == "done" and not migration.deletion.files
    assert "--delete-despite-drops" in migration.deletion.spared[str(lossy)]
    deleting(path)  # nor as what an earlier run has done
    assert (lossy / "model.safetensors").exists()
    migration, _ = deleting(path, despite_drops=True)
    assert named(migration.deletion) == {"model.safetensors"}
    assert {each.name for each in lossy.iterdir()} == {"config.json", "tokenizer.json", "tokenizer_config.json"}


def test_the_plan_is_not_believed_about_what_is_lost(lossy: Path, tmp_path: Path) -> None:
    path = planned(lossy, tmp_path / "out", tmp_path / "plan", bert={"lost": ()})
    _, events = deleting(path)
    assert (lossy / "model.safetensors").exists()
    assert ["--delete-despite-drops" in e["message"] for e in events if e["event"] == "warning"] == [True]


FOLLOW = {
    "model.ple_embedding.layer_multipliers",  # numbers that become keys, as the next
    "model.ple_embedding.ngram_heads_*",
    "*.inv_freq",
    "*.rotary.inv_freq",
    "*.rotary_emb.inv_freq",
    "rope.freqs",
    "embeddings.position_ids",
    "*.embeddings.position_ids",
    "logit_scale",
    "model.layers.{n}.mlp.act_fn.*",
    "*.attn.rotary_emb.*",
    "rotary_pos_emb.inv_freq",
    "freqs_cis",
    "freq_cis_*",
    "*.attn.causal_mask",
    "*relative_pe.slopes",
    "*.version",
    "lm_head_gain.w_g",
    "t2d",
    *(f"model.layers.*.self_attn.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
    *(f"*.{name}.{mask}" for name in ("attention", "attn") for mask in ("bias", "masked_bias")),
}
"""Drops of what the keys say already: rotary frequencies, position numbers, causal masks, xIELU's numbers, ALiBi's
slopes, MiniMax's decays, Talkie's gain of the logits, CLIP's scale of them, and the version of a layout; and of what
another tensor says: which of its target's tokens a draft has."""


def test_a_drop_loses_unless_its_table_says_why_not() -> None:
    """What follows from the hparams and what repeats a role are the exceptions, each named in its table."""
    drops = [drop for spec in architectures().values() for dialect in spec.dialects for drop in dialect.drops]
    assert {drop.pattern for drop in drops if drop.follows} == FOLLOW
    assert not Drop("*", "for a new reason").follows
