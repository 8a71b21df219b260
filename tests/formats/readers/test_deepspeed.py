"""DeepSpeed's partitions against what its zero_to_fp32.py makes of them, and every way they can be wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ggferry
from ggferry.converters.model_graph.open_checkpoint import open_checkpoint as open_any
from ggferry.formats import errors as e
from ggferry.formats.checkpoint import Checkpoint
from ggferry.formats.reader import find_reader
from ggferry.formats.readers.deepspeed import open_checkpoint
from ggferry.formats.tensor_read import read_rows
from ggferry.service.cli import app
from helpers.checkpoints import weights, write_checkpoint
from helpers.third_party_fixtures import FIXTURES

ZERO = FIXTURES / "training"


def values(held: Checkpoint, name: str) -> bytes:
    ref = held.tensors[name]
    return b"".join(read_rows(held, ref, row, row + 1).tobytes() for row in range(ref.rows))


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_parameters_are_those_that_zero_to_fp32_makes(name: str) -> None:
    expected = json.loads((ZERO / name / "zero_to_fp32.json").read_text())
    reader, match = find_reader(os.fspath(ZERO / name))
    assert match.container == "deepspeed"
    held = reader.open(os.fspath(ZERO / name), ())
    assert set(held.tensors) == set(expected)
    assert max(len(ref.spans) for ref in held.tensors.values()) > 1
    types = {"torch.float32": "F32", "torch.bfloat16": "BF16"}
    for tensor, (shape, kind, digest) in expected.items():
        ref = held.tensors[tensor]
        assert (list(ref.shape), ref.type.name) == (shape, types[kind])
        assert hashlib.sha256(values(held, tensor)).hexdigest() == digest
        assert read_rows(held, ref, 0, ref.rows).tobytes() == values(held, tensor)
    assert {d.ref.name for d in held.dropped} >= {
        f"process {rank}: {path}" for rank in range(3) for path in [STATES[name]]
    }


STATES = {
    "zero2": "base_optimizer_state.state.0.exp_avg",
    "zero3": "optimizer_state_dict.state.0.exp_avg",
}


def test_the_copies_in_the_type_of_computation_are_dropped_by_name() -> None:
    held = open_checkpoint(os.fspath(ZERO / "zero2"))
    copies = {drop.ref.name for drop in held.dropped if "rounded" in drop.reason}
    trained = {name for name, ref in held.tensors.items() if ref.type.name == "F32"} - {"model.rotary_emb.inv_freq"}
    assert copies == {f"module.{name}" for name in trained}


@pytest.mark.parametrize(
    "path",
    [
        "zero3/global_step3",
        "zero3/global_step3/zero_pp_rank_1_mp_rank_00_model_states.pt",
        "zero2/global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
)
def test_any_of_its_files_means_the_checkpoint(path: str) -> None:
    held = open_any(os.fspath(ZERO / path))
    assert (held.container, len(held.tensors)) == ("deepspeed", 22)


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_it_becomes_a_proved_gguf(tmp_path: Path, name: str) -> None:
    plain = write_checkpoint(tmp_path / "plain", FIXTURES)
    found = ggferry.convert(ZERO / name, tmp_path / "x.gguf", config=os.fspath(plain))
    assert found.receipt["verified"] == "full"
    with ggferry.open_model(tmp_path / "x.gguf") as model:
        embedding = weights()["model.embed_tokens.weight"]
        assert model.tensor("token_embd.weight").tobytes() == embedding.tobytes()
        assert model.tensor("output.weight").tobytes() == embedding.tobytes()
        norm = torch.from_numpy(weights()["model.norm.weight"]).bfloat16().float()
        assert torch.equal(torch.from_numpy(model.tensor("output_norm.weight")), norm)


# --- what contradicts itself ----------------------------------------------------------------------

A, B = torch.arange(20.0).reshape(4, 5), torch.arange(7.0)
Edit = Callable[[Path, dict[str, Any], list[dict[str, Any]]], Any]


def write(folder: Path, edit: Edit | None = None, stage: int = 2) -> Path:
    """A checkpoint of two parameters on two processes, by stage 2 or 3."""
    folder.mkdir(exist_ok=True)
    model = {
        "module": {"a": A.bfloat16(), "b": B.bfloat16()},
        "buffer_names": [],
        "param_shapes": [OrderedDict(a=A.shape, b=B.shape)],
        "shared_params": {},
    }
    flat = torch.cat([A.reshape(-1), B])
    runs = (
        [flat[:14], flat[14:]]
        if stage == 2
        else [torch.cat([A.reshape(-1)[10 * i :][:10], torch.cat([B, B[:1]])[4 * i :][:4]]) for i in range(2)]
    )
    key = "single_partition_of_fp32_groups" if stage == 2 else "fp32_flat_groups"
    states = [{"zero_stage": stage, "partition_count": 2, key: [run.clone()]} for run in runs]
    if edit is not None:
        edit(folder, model, states)
    for rank, state in enumerate(states):
        torch.save({"optimizer_state_dict": state}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage < 3:
        torch.save(model, folder / "mp_rank_00_model_states.pt")
    return folder


@pytest.mark.parametrize("stage", [2, 3])
def test_two_parameters(tmp_path: Path, stage: int) -> None:
    held = open_checkpoint(os.fspath(write(tmp_path, None, stage)))
    assert values(held, "a") == A.numpy().tobytes()
    assert values(held, "b") == B.numpy().tobytes()


def test_parameters_with_gaps_between(tmp_path: Path) -> None:
    def edit(_: Path, model: dict[str, Any], states: list[dict[str, Any]]) -> None:
        flat = torch.cat([A.reshape(-1), torch.full((4,), 9.0), B])
        for state, run in zip(states, (flat[:16], flat[16:]), strict=True):
            state |= {"single_partition_of_fp32_groups": [run.clone()], "param_alignment_paddings": [[4, 0]]}

    held = open_checkpoint(os.fspath(write(tmp_path, edit)))
    assert (values(held, "a"), values(held, "b")) == (A.numpy().tobytes(), B.numpy().tobytes())


def test_without_zero_the_module_is_the_model(tmp_path: Path) -> None:
    folder = write(tmp_path, lambda f, m, s: s.clear())
    held = open_checkpoint(os.fspath(folder))
    assert values(held, "a") == A.bfloat16().view(torch.int16).numpy().tobytes()


BAD: dict[str, tuple[int, Edit, type[e.GgferryError], str]] = {
    "too few elements": (2, lambda f, m, s: m["param_shapes"][0].update(c=(40,)), e.InconsistentError, "group 0"),
    "too many elements": (2, lambda f, m, s: m["param_shapes"][0].pop("a"), e.InconsistentError, "group 0"),
    "a group too many": (2, lambda f, m, s: m["param_shapes"].append({}), e.InconsistentError, "number of groups"),
    "too few of stage 3": (3, lambda f, m, s: m["param_shapes"][0].update(c=(40,)), e.InconsistentError, "partitions"),
    "too many of stage 3": (3, lambda f, m, s: m["param_shapes"][0].pop("a"), e.InconsistentError, "partitions"),
    "other lengths": (3, lambda f, m, s: s[1]["fp32_flat_groups"].append(B), e.InconsistentError, "lengths"),
    "no partitions": (3, lambda f, m, s: s[1].pop("fp32_flat_groups"), e.MissingError, "no partitions"),
    "an empty parameter": (3, lambda f, m, s: m["param_shapes"][0].update(c=(0,)), e.InconsistentError, "values of c"),
    "no tensor": (2, lambda f, m, s: s[0].update(single_partition_of_fp32_groups=[3]), e.CorruptError, "no tensor"),
    "not flat": (2, lambda f, m, s: s[0].update(single_partition_of_fp32_groups=[A]), e.InconsistentError, "flat"),
    "two types": (
        2,
        lambda f, m, s: s[0].update(single_partition_of_fp32_groups=[torch.zeros(14).half()]),
        e.InconsistentError,
        "values of a",
    ),
    "no stage": (2, lambda f, m, s: s[0].pop("zero_stage"), e.UnsupportedVersionError, "stage"),
    "no shapes": (2, lambda f, m, s: m.pop("param_shapes"), e.MissingError, "param_shapes"),
    "no buffers": (2, lambda f, m, s: m.pop("buffer_names"), e.MissingError, "buffer_names"),
    "shapes of no numbers": (2, lambda f, m, s: m["param_shapes"][0].update(a=("x",)), e.OutOfRangeError, "shape of a"),
    "a parameter twice": (
        2,
        lambda f, m, s: m.update(frozen_param_shapes={"a": (4, 5)}, frozen_param_fragments={"a": A}),
        e.DuplicateError,
        "twice",
    ),
    "no frozen values": (2, lambda f, m, s: m.update(frozen_param_shapes={"c": (4,)}), e.MissingError, "frozen"),
    "frozen of another shape": (
        2,
        lambda f, m, s: m.update(frozen_param_shapes={"c": (4,)}, frozen_param_fragments={"c": B}),
        e.InconsistentError,
        "shape of c",
    ),
    "a process too few": (2, lambda f, m, s: s[0].update(partition_count=3), e.NotFoundError, "number of files"),
    "a process too many": (2, lambda f, m, s: s[0].update(partition_count=1), e.InconsistentError, "number of files"),
    "no state": (2, lambda f, m, s: s.__setitem__(0, None), e.MissingError, "no state"),  # type: ignore[call-overload]
    "tensor parallel": (
        2,
        lambda f, m, s: torch.save({}, f / "mp_rank_01_model_states.pt"),
        e.UnsupportedError,
        "tensor parallelism",
    ),
    "pipeline": (
        2,
        lambda f, m, s: torch.save({}, f / "layer_01-model_00-model_states.pt"),
        e.UnsupportedError,
        "stages",
    ),
    "experts": (
        2,
        lambda f, m, s: torch.save({}, f / "layer_0_expert_0_mp_rank_00_model_states.pt"),
        e.UnsupportedError,
        "experts",
    ),
    "two files of a process": (
        2,
        lambda f, m, s: torch.save({}, f / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        e.InconsistentError,
        "one process",
    ),
    "paddings of another number": (
        2,
        lambda f, m, s: s[0].update(param_alignment_paddings=[[1]]),
        e.InconsistentError,
        "paddings",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_contradicts_itself_is_refused(tmp_path: Path, name: str) -> None:
    stage, edit, error, words = BAD[name]
    with pytest.raises(error, match=words):
        open_checkpoint(os.fspath(write(tmp_path, edit, stage)))


def test_a_file_of_a_process_is_missing(tmp_path: Path) -> None:
    os.remove(write(tmp_path, None, 3) / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    with pytest.raises(e.NotFoundError, match="process 0"):
        open_checkpoint(os.fspath(tmp_path))


@pytest.mark.parametrize(
    ("tag", "error"), [("../x", e.InconsistentError), ("", e.InconsistentError), ("step9", e.NotFoundError)]
)
def test_latest_names_a_folder_beside_it(tmp_path: Path, tag: str, error: type[e.GgferryError]) -> None:
    write(tmp_path / "global_step3")
    (tmp_path / "latest").write_text(tag)
    assert find_reader(os.fspath(tmp_path))[1].container == "deepspeed"
    with pytest.raises(error):
        open_checkpoint(os.fspath(tmp_path))


def test_a_model_beside_the_states_is_taken_first(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FIXTURES)
    write(tmp_path / "global_step3")
    (tmp_path / "latest").write_text("global_step3")
    assert find_reader(os.fspath(tmp_path))[1].container == "safetensors"


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (os.fspath(tmp_path / "ran"),)

    folder = write(tmp_path, lambda f, m, s: m.update(lr_scheduler=Evil()))
    with pytest.raises(e.UnsafePickleError):
        open_checkpoint(os.fspath(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_flips_are_refused_or_change_values_only(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for path in (folder / "mp_rank_00_model_states.pt", folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"):
        good = path.read_bytes()
        for place in range(0, len(good), 11):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
            try:
                held = open_checkpoint(os.fspath(folder))
                assert all(values(held, name) for name in held.tensors)
            except e.GgferryError:
                continue
        path.write_bytes(good)


def test_doctor_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ZERO / "zero3", tmp_path / "z")
    shutil.copy(write_checkpoint(tmp_path / "p", FIXTURES) / "config.json", tmp_path / "z")
    monkeypatch.setattr("sys.argv", ["ggferry", "doctor", os.fspath(tmp_path / "z")])
    with pytest.raises(SystemExit):
        app.main()
    assert "DeepSpeed, ZeRO stage 3, 3 processes, 22 tensors in 6 files, llama" in capsys.readouterr().out


def test_the_output_is_not_called_after_a_step(tmp_path: Path) -> None:
    shutil.copytree(ZERO / "zero3" / "global_step3", tmp_path / "tiny-chat" / "global_step3")
    shutil.copy(write_checkpoint(tmp_path / "p", FIXTURES) / "config.json", tmp_path / "tiny-chat")
    made = ggferry.convert(tmp_path / "tiny-chat" / "global_step3", no_vocab=True, verify="none")
    assert Path(made.output).name.startswith("tiny-78K-chat")


def test_latest_leads_to_no_folder_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "latest").write_text("global_step3")
    (tmp_path / "run" / "global_step3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(e.RefusedError, match="link leads out"):
        open_checkpoint(os.fspath(tmp_path / "run"))
