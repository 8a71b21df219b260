"""A line of a plan with several outputs: made of one reading, proved and published together, whatever interrupts it."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ggferry
from ggferry.formats.errors import UsageError
from ggferry.service.apply import job
from ggferry.service.apply.migration import Migration, MigrationRequest
from ggferry.service.apply.recheck import recheck
from ggferry.service.plan import make_plan as planning
from ggferry.service.records.ledger import Ledger
from ggferry.service.records.plan_file import digest_of, outputs_of, read_plan, version_class, write_plan
from ggferry.service.records.receipts import receipts_of
from ggferry.service.workers.supervisor import Supervisor
from helpers.archive_tools import applied, command, plan, rows, write
from helpers.builders import Llama
from helpers.killed_workers import apply_and_die, dying_once, runner_of
from helpers.postgres_server import postgres_server
from helpers.store_faults import s3_store
from helpers.third_party_fixtures import FIXTURES
from helpers.vision_encoders import VISION_ENCODERS

TYPES = ("q4_0", "q8_0", "f16")
K256 = FIXTURES / "hf" / "ckpt" / "llama_k256"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))


def ladder(tmp_path: Path, dest: Path | str | None = None, types: str = ",".join(TYPES), **recipe: Any) -> Path:
    """The plan of `tmp_path / in`, made in this process."""
    wanted = planning.PlanRequest(
        (str(tmp_path / "in"),),
        str(dest or tmp_path / "out"),
        types,
        "fast",
        recipe,
        limits=planning.Limits(4 << 30, 1),
    )
    write_plan(str(tmp_path / "plan"), *planning.plan(wanted), overwrite=True)
    return tmp_path / "plan"


def outputs(tmp_path: Path) -> dict[str, Path]:
    return {name: tmp_path / "out" / f"a{'' if name == 'keep' else f'-{name.upper()}'}.gguf" for name in TYPES}


def alone(source: Path, folder: Path, name: str) -> dict[str, bytes]:
    """The files that a conversion to one type gives, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"a-{name.upper()}.gguf"
    ggferry.convert(source, out, outtype=name, verify="fast")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def there(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_an_archive_as_a_user_runs_it(tmp_path: Path) -> None:
    shutil.copytree(K256, tmp_path / "in" / "k256")
    write(tmp_path / "in" / "a.bin", Llama(kind="F16", version=1))
    path = tmp_path / "plan.jsonl"
    asked = ["--outtype", "q4_k_m, q8_0", "--verify", "fast", "--dest", tmp_path / "out", "-j", "1"]
    told = command("plan", tmp_path / "in", "-o", path, *asked).stdout
    lines = {Path(line["source"]).name: line for line in map(json.loads, path.read_text().splitlines()[1:])}
    assert all(line["verdict"] == "convert" and line["disk"] == line["bytes_out"] for line in lines.values())
    line = lines["k256"]
    (more,) = line["further"]
    assert (
        more["outtype"] == "q8_0" and line["output"].endswith("-Q4_K_M.gguf") and more["output"].endswith("-Q8_0.gguf")
    )
    done = command("apply", path, "-j", "1").stdout
    for each in lines.values():
        (beside,) = each["further"]
        sizes = [Path(name).stat().st_size for name in (each["output"], beside["output"])]
        assert sizes[1] == beside["bytes_out"] and sum(sizes) == each["bytes_out"]
        assert f"{sizes[0]:,}" in done and beside["output"] in done and "bits/weight" in done
    assert all(f"bytes of {name}" in told for name in ("q4_k_m", "q8_0"))
    for output, name in ((line["output"], "q4_k_m"), (more["output"], "q8_0")):
        (tmp_path / name).mkdir()
        single = ggferry.convert(
            tmp_path / "in" / "k256", tmp_path / name / Path(output).name, outtype=name, verify="fast"
        )
        assert Path(output).read_bytes() == Path(single.output).read_bytes()
        assert Path(f"{output}.receipt.json").read_bytes() == Path(single.receipt_path).read_bytes()
    _check_told(path, line, more)


def _check_told(path: Path, line: dict[str, Any], more: dict[str, Any]) -> None:
    """Ledger, report and recheck know every output."""
    facts = json.loads(Path(f"{path}.report.json").read_text())
    (model,) = [each for each in facts["models"] if each["source"] == line["source"]]
    assert [each["path"] for each in model["outputs"]] == [line["output"], more["output"]]
    assert [each["bytes"] for each in model["outputs"]] == [
        Path(each["path"]).stat().st_size for each in model["outputs"]
    ]
    assert facts["totals"]["bytes_after"] == sum(each["bytes_out"] for each in facts["models"])
    assert more["output"] in Path(f"{path}.report.html").read_text()
    ledger = f"{path}.ledger"
    assert more["output"] in command("ledger", "list", ledger).stdout
    assert json.loads(command("ledger", "show", ledger, more["output"]).stdout)["source"] == line["source"]
    Path(more["output"]).write_bytes(b"GGUF")
    again = command("ledger", "recheck", ledger, code=1).stdout
    assert f"{more['output']} is not what its receipt says" in again and again.count("=") == 1
    before = {source: row["attempts"] for source, row in rows(ledger).items()}
    command("apply", path, "-j", "1")
    assert {source: row["attempts"] for source, row in rows(ledger).items()} == before


@pytest.mark.linux("SIGKILL of a worker that the test has changed")
@pytest.mark.parametrize("name", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_output_is_given_its_receipt_after_a_kill_between_the_two(
    name: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator sweeps what its dead worker left, and not what the next needs to finish the publication."""
    monkeypatch.setattr(job, "RETRY_AFTER", 0.02)
    with dying_once(tmp_path, name) as died:
        (row,) = applied(ladder(tmp_path, types="q4_0"))[0].ledger.rows()
    assert died.exists() and row["state"] == "done" and row["adopted"], row["error"]
    assert there(tmp_path / "out") == alone(source, tmp_path / "alone", "q4_0")


@pytest.mark.linux("SIGKILL of a worker that the test has changed")
@pytest.mark.parametrize(
    ("name", "before"),
    [
        pytest.param(name, before, marks=() if (name, before) in ((4, True),) else pytest.mark.slow)
        for name in range(1, 7)
        for before in (True, False)
    ],
)
def test_killed_at_any_name_the_rest_is_made_and_nothing_twice(
    name: int, before: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RETRY_AFTER", 0.02)
    path = ladder(tmp_path)
    with dying_once(tmp_path, name, before=before) as died:
        migration, _ = applied(path)
    assert died.exists(), "no worker was killed"
    (row,) = migration.ledger.rows()
    assert row["state"] == "done" and row["attempts"] == 2, row["error"]
    expected: dict[str, bytes] = {}
    for each in TYPES:
        expected |= alone(source, tmp_path / "alone" / each, each)
    assert there(tmp_path / "out") == expected, "nothing but the outputs and their receipts, as of single runs"
    assert [receipt["options"]["outtype"] for receipt in [row["receipt"], *row["receipt"]["further"]]] == [*TYPES]


@pytest.mark.parametrize("name", range(1, 7))
@pytest.mark.slow
def test_a_run_killed_with_its_worker_is_taken_up(name: int, source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    runner, died = runner_of(tmp_path, name, both=True)
    assert apply_and_die(path, runner=runner) == -9 and died.exists()
    expected: dict[str, bytes] = {}
    for each in TYPES:
        expected |= alone(source, tmp_path / "alone" / each, each)
    for each, data in there(tmp_path / "out").items():
        assert each.endswith(".partial") or expected[each] == data, "what has a name is whole"
    assert "1 done" in command("apply", path, "-j", "1").stdout
    assert there(tmp_path / "out") == expected


@pytest.mark.slow
@pytest.mark.parametrize("upload", [sign * n for n in range(1, 7) for sign in (1, -1)])
def test_a_run_killed_while_it_uploads_is_taken_up(upload: int, source: Path, tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    for each in TYPES:
        expected |= alone(source, tmp_path / "alone" / each, each)
    with s3_store() as store:
        path = ladder(tmp_path, "s3://new/gguf")
        assert apply_and_die(path, upload) == -9
        assert source.exists()
        assert "1 done" in command("apply", path, "-j", "1").stdout
        found = {name.rpartition("/")[2]: store.system.cat_file(name) for name in store.system.find("new")}
        assert found == expected


@pytest.mark.slow
def test_what_is_lost_is_made_again_and_what_is_there_adopted(source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    applied(path)
    made, stamps = (
        there(tmp_path / "out"),
        {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in outputs(tmp_path).values()},
    )
    gone = outputs(tmp_path)["q8_0"]
    gone.unlink()
    os.unlink(f"{path}.ledger")
    migration, _ = applied(path)
    (row,) = migration.ledger.rows()
    assert row["state"] == "done" and not row["adopted"]
    assert there(tmp_path / "out") == made
    for each, stamp in stamps.items():
        assert ((each.stat().st_ino, each.stat().st_mtime_ns) == stamp) is (each != gone)
    os.unlink(f"{path}.ledger")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and row["adopted"]


@pytest.mark.slow
def test_a_file_in_the_way_of_one_stops_all(source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    applied(path)
    os.unlink(f"{path}.ledger")
    for name in ("q8_0", "f16"):
        outputs(tmp_path)[name].unlink()
    outputs(tmp_path)["f16"].write_bytes(b"something else")
    before = there(tmp_path / "out")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "failed" and row["error"]["path"] == str(outputs(tmp_path)["f16"])
    assert there(tmp_path / "out") == before


@pytest.mark.parametrize(
    "damaged",
    [
        "q4_0",
        pytest.param(None, marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in TYPES[1:]),
    ],
)
def test_a_source_goes_when_all_are_proved(damaged: str | None, source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    applied(path)
    if damaged:
        output = outputs(tmp_path)[damaged]
        data = output.read_bytes()
        output.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    migration, events = applied(path, delete_source=True)
    (row,) = migration.ledger.rows()
    assert bool(row["deleted"]) is not bool(damaged)
    warnings = [event for event in events if event["event"] == "warning"]
    assert (
        [str(outputs(tmp_path)[damaged]) in event["message"] for event in warnings] == [True]
        if damaged
        else not warnings
    )
    assert source.exists() is bool(damaged)


@pytest.mark.slow
def test_recheck_proves_each_of_them(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ladder(tmp_path)
    applied(path)[0].ledger.close()
    ledger, asked = Ledger(f"{path}.ledger"), []
    run = Supervisor.run
    monkeypatch.setattr(Supervisor, "run", lambda self, command: (asked.append(command), run(self, command))[1])
    assert [problem for _, problem in recheck(ledger, 1, True, 0)] == [None]
    assert [(each["recipe"]["outtype"], each["output"]) for each in asked] == [
        (name, str(output)) for name, output in outputs(tmp_path).items()
    ]


def test_lines_of_one_output_are_what_they_were(source: Path, tmp_path: Path) -> None:
    """So that plans and ledgers of before go on: the same text, the same id, and nothing of further outputs."""
    path = ladder(tmp_path, types="q8_0")
    head, (entry,) = read_plan(str(path))
    assert "further" not in path.read_text()
    listed = [(each.path, each.bytes, each.version) for each in (*entry.files, *entry.beside)]
    recipe = {"outtype": "q8_0", "verify": "fast", **entry.options}
    assert entry.id(head) == digest_of([entry.source, listed, recipe, entry.output, version_class()])[:32]
    assert head.id == digest_of([head.roots, head.dest, "q8_0", "fast"])[:16]
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and "further" not in row["receipt"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda line: line.pop("further"), "are not those of its types"),
        (lambda line: line["further"].reverse(), "are not those of its types"),
        (lambda line: line.update(options={"outtype": "q4_0,q8_0,q5_0"}), "are not those of its types"),
        (lambda line: line["further"][0].update(output=line["output"]), "two outputs of one name"),
        (lambda line: line["further"][0].update(output=line["output"].replace("/out/", "/")), "in several folders"),
        (lambda line: line["further"][0].pop("output"), "a key is missing"),
        (lambda line: line["further"][0].update(bytes_out="1"), "a whole number"),
        (lambda line: line.update(options={"outtype": "q4_0,"}), "types, separated by commas, each once"),
    ],
)
def test_an_edited_line_that_does_not_fit_is_refused(edit: Any, words: str, source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    head, line = map(json.loads, path.read_text().splitlines())
    edit(line)
    path.write_text(f"{json.dumps(head)}\n{json.dumps(line)}\n")
    with pytest.raises(UsageError) as refused:
        applied(path)
    assert words in str(refused.value) and not (tmp_path / "out").exists()


def test_one_type_fewer_is_made_of_an_edited_line(source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    head, line = map(json.loads, path.read_text().splitlines())
    line |= {"options": {"outtype": "q4_0,f16"}, "further": line["further"][1:]}
    path.write_text(f"{json.dumps(head)}\n{json.dumps(line)}\n")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and {*there(tmp_path / "out")} == {
        f"a-{name}.gguf{end}" for name in ("Q4_0", "F16") for end in ("", ".receipt.json")
    }


def test_no_copy_is_made_of_what_is_gguf_already(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    ggferry.convert(K256, tmp_path / "in" / "m.gguf", verify="none")
    _, (entry, *_) = read_plan(str(ladder(tmp_path, types="keep,q8_0")))
    assert entry.options == {"outtype": "q8_0"} and [Path(each).name for each in entry.outputs] == ["m-v3-Q8_0.gguf"]
    _, (entry, *_) = read_plan(str(ladder(tmp_path, types="keep")))
    assert entry.verdict == "skip"


def test_what_an_adapter_cannot_have_is_told(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "lora" / "lora_plain", tmp_path / "in" / "lora")
    shutil.copytree(FIXTURES / "hf" / "ckpt" / "llama", tmp_path / "in" / "base")
    _, entries = read_plan(str(ladder(tmp_path, types="f16,f32")))
    found = {Path(entry.source).name: entry for entry in entries}
    assert (lora := found["lora_plain.f32.gguf"]).verdict == "unsupported" and "one type at a time" in lora.reason


def test_options_of_the_command_arrive_in_the_lines(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "hf" / "ckpt" / "llama", tmp_path / "in" / "m")
    asked = ["--mmproj", "none", "--device", "auto", "--allow-requantize", "--verify", "FAST", "--outtype", "f16,q8_0"]
    (line, *_) = plan(tmp_path / "in", tmp_path / "plan", *asked, "-j", "1")
    assert line["options"] == {"mmproj": "none", "device": "auto", "allow_requantize": True}
    done = command("plan", tmp_path / "in", "-o", tmp_path / "odd", "--outtype", "f16,f16", code=2)
    assert "each once" in done.stderr


@pytest.mark.slow
def test_to_a_store_every_file_goes_and_is_read_back(source: Path, tmp_path: Path) -> None:
    expected: dict[str, bytes] = {}
    for each in TYPES:
        expected |= alone(source, tmp_path / "alone" / each, each)
    with s3_store() as store:
        path = ladder(tmp_path, "s3://new/gguf")
        (row,) = applied(path)[0].ledger.rows()
        assert row["state"] == "done", row["error"]

        def found() -> dict[str, bytes]:
            return {name.rpartition("/")[2]: store.system.cat_file(name) for name in store.system.find("new")}

        assert found() == expected
        assert [problem for _, problem in recheck(Ledger(f"{path}.ledger"), 1, False, 0)] == [None]
        store.system.rm_file("new/gguf/a-Q8_0.gguf")
        store.system.rm_file("new/gguf/a-F16.gguf.receipt.json")
        ((_, problem),) = recheck(Ledger(f"{path}.ledger"), 1, False, 0)
        assert problem == "s3://new/gguf/a-Q8_0.gguf is gone"
        os.unlink(f"{path}.ledger")
        kept = store.system.info("new/gguf/a-Q4_0.gguf")["LastModified"]
        (row,) = applied(path)[0].ledger.rows()
        assert row["state"] == "done" and not row["adopted"] and found() == expected
        assert store.system.info("new/gguf/a-Q4_0.gguf")["LastModified"] == kept


@pytest.mark.parametrize("server", ["sqlite", "postgres"])
def test_a_ledger_lists_them_without_reading_receipts(server: str, source: Path, tmp_path: Path) -> None:
    path = ladder(tmp_path)
    with postgres_server() if server == "postgres" else nullcontext() as running:
        url = running.url if running else f"{path}.ledger"
        migration = Migration(MigrationRequest(str(path), url), lambda event: None)
        migration.run(migration.prepare())
        (row,) = migration.ledger.rows(full=False)
        assert row["state"] == "done" and "receipt" not in row
        assert outputs_of(row) == [str(output) for output in outputs(tmp_path).values()]
        assert migration.ledger.job(str(outputs(tmp_path)["f16"]))["id"] == row["id"]
        assert len(receipts_of(migration.ledger.rows()[0]["receipt"])) == 3
        migration.ledger.close()


@pytest.mark.slow
def test_what_a_plan_of_one_type_made_is_taken_up(source: Path, tmp_path: Path) -> None:
    """Somebody who has q8_0 and wants more types plans again: only those are made."""
    applied(ladder(tmp_path, types="q8_0"))
    output = outputs(tmp_path)["q8_0"]
    before = output.stat().st_ino, output.stat().st_mtime_ns
    os.unlink(tmp_path / "plan.ledger")
    (row,) = applied(ladder(tmp_path))[0].ledger.rows()
    assert row["state"] == "done" and (output.stat().st_ino, output.stat().st_mtime_ns) == before
    assert {*there(tmp_path / "out")} >= {output.name for output in outputs(tmp_path).values()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_sees_has_one_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "RETRY_AFTER", 0.02)
    VISION_ENCODERS["pixtral"].saved(tmp_path / "in" / "tiny", VISION_ENCODERS["pixtral"].tiny())
    path = ladder(tmp_path, types="q8_0,f16,q4_0", no_vocab=True)
    head, entries = read_plan(str(path))
    (entry,) = [each for each in entries if each.verdict == "convert"]
    assert entry.disk > entry.bytes_out, "there is room for the mmproj file"
    write_plan(str(path), head, [replace(entry, bytes_out=entry.bytes_out)], overwrite=True)
    for name in range(1, 9):  # each of four files, and its receipt
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        Path(f"{path}.ledger").unlink(missing_ok=True)
        (tmp_path / "died").unlink(missing_ok=True)
        with dying_once(tmp_path, name) as died:
            (row,) = applied(path)[0].ledger.rows()
        assert died.exists() and row["state"] == "done", (name, row["error"])
        (folder,) = {Path(output).parent for output in entry.outputs}
        files = sorted(folder.iterdir())
        assert len(files) == 8 and not [each for each in files if each.name.endswith(".partial")]
        (second,) = folder.glob("mmproj-*.gguf")
        texts = json.loads(Path(f"{second}.receipt.json").read_text())["text"]
        assert [each["name"] for each in texts] == [Path(output).name for output in entry.outputs]
        for output in entry.outputs:
            (named,) = json.loads(Path(f"{output}.receipt.json").read_text())["mmproj"]
            assert named["name"] == second.name
    _check_without_its_second_file(path, entry.outputs[0], second)


def _check_without_its_second_file(path: Path, output: str, second: Path) -> None:
    """It is refused in words that say what to do, and doing that helps."""
    data = second.read_bytes()
    second.unlink()
    os.unlink(f"{path}.ledger")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "failed" and f"{second.name}, which was made with it, is gone" in row["error"]["message"]
    source = path.parent / "in" / "tiny"
    command("convert", source, "-o", output, "--mmproj", "only", "--outtype", "q8_0", "--verify", "fast", "--force")
    assert second.read_bytes() == data
    os.unlink(f"{path}.ledger")
    (row,) = applied(path)[0].ledger.rows()
    assert row["state"] == "done" and row["adopted"], row["error"]
