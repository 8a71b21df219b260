"""Made-up views of every page: what a template must show well, and what it must survive."""

from __future__ import annotations

from dataclasses import replace

from ggferry.service.library.answers import DroppedTensor
from ggferry.service.records.fields import FolderItem, Usage
from ggferry.service.server.pages.model_page import Agreement, Attempt, Fact, ModelPage, Proof, TensorPage, TensorRow
from ggferry.service.server.pages.option_form import form_of
from ggferry.service.server.pages.plan_pages import Activity, AddPage, PlannedModel, PlanPage, Upload
from ggferry.service.server.pages.render import page
from ggferry.service.server.pages.routes.administration import AuditPage, TokenPage
from ggferry.service.server.pages.routes.changes import Ask, Browse, BulkResult
from ggferry.service.server.pages.views import (
    PER_PAGE,
    Archive,
    ArchiveAddress,
    ModelRow,
    Problem,
    Progress,
    Provider,
    Shell,
)
from ggferry.service.server.store.audit import AuditRecord
from ggferry.service.server.store.models import Folder
from ggferry.service.server.store.tokens import MadeToken, TokenRecord
from ggferry.service.server.work.outputs.output_files import Output

USAGE = Usage(used=7 << 30, quota=4 << 40, disk_free=1 << 40, disk_total=2 << 40)
SHELL = Shell(version="0.1.0", csrf="token", active=3, may_manage=True)
LONG = "a-model-whose-name-somebody-made-from-every-option-of-its-training-run-" * 3 + "final-v2.bin"
NASTY = "<script>alert(1)</script>\x1b[31m\u202e'\"&{{7*7}}.bin"
ORIGIN = "default: LLaMA-1 was trained on 2048 tokens; neither legacy files nor params.json store it"
ERAS = ("10–20 March 2023", "30 March – 12 May 2023 (llama.cpp 78ca9838e..b9fd7eee5)", "5 June – 21 August 2023")
STATES = ("done", "done", "done", "running", "queued", "failed", "verifying", "quarantined", "skipped", "corrupt")


def row(number: int, **changes: object) -> ModelRow:
    """Return a model of the archive."""
    kind = (("GGJT v1", "llama"), ("GGML", "gpt2"), ("GGUF v3", "qwen2"), ("safetensors", "mistral"))[number % 4]
    state = STATES[number % len(STATES)]
    made = ModelRow(
        f"{number:032x}",
        f"/archive/{2021 + number % 4}/team-{number % 7}/model-{number:04}.bin",
        state,
        *kind,
        ERAS[number % 3],
        "Q4_0 ×225, F32 ×65",
        (number * 7919 + 311) << 20,
        ((number * 7919 + 311) << 20) * 93 // 100 if state == "done" else None,
        "truncated at byte 4,096: expected 13,056 more bytes" if state in ("failed", "corrupt") else "",
        1.79e9 - 60 * number,
        asked_by=("alice", "the build server", NASTY)[number % 3],
        asked=1.79e9 - 60 * number - 500,
        started=1.79e9 - 60 * number - 300,
        finished=1.79e9 - 60 * number,
    )
    return replace(made, **changes)


def archive(models: int = 2000, query: ArchiveAddress | None = None) -> Archive:
    """Return an archive of many models, its first page."""
    rows = tuple(row(number) for number in range(min(models, PER_PAGE)))
    if models > 3:
        rows = (replace(rows[0], source=f"/archive/{LONG}"), replace(rows[1], source=f"/archive/{NASTY}"), *rows[2:])
    counts = {state: models * STATES.count(state) // len(STATES) for state in dict.fromkeys(STATES)}
    return Archive(
        query or ArchiveAddress(),
        rows,
        models,
        models,
        counts,
        ("GGJT v1", "GGML", "GGUF v3", "safetensors"),
        ("gpt2", "llama", "mistral", "qwen2"),
        ERAS,
        9_812_345_678_901,
        8_512_345_678_901,
        (),
        ("/archive",),
    )


def tree() -> Archive:
    """Return the tree of an archive."""
    folders = tuple(Folder(f"/archive/{year}", str(year), 500, 2 << 40) for year in range(2021, 2025))
    found = archive(4, ArchiveAddress(tree=True, under="/archive"))
    return replace(found, folders=folders, total=4)


def tensors(count: int = 290, exact: bool = False) -> tuple[TensorRow, ...]:
    """Return tensors as a receipt has them."""
    found = [
        TensorRow(
            "token_embd.weight",
            ("tok_embeddings.weight",),
            (32000, 4096),
            "Q4_0_V1",
            "Q4_0",
            81920000,
            73728000,
            "repacked",
            "repack",
            "today's form of Q4_0_V1",
            0.0,
            0.0,
        )
    ]
    for number in range(count - 1):
        block, place = divmod(number, 9)
        name = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        norm = place in (0, 5)
        error = 0.0 if norm or exact else 0.02 + 0.011 * ((number * 37) % 13) / 13
        found.append(
            TensorRow(
                f"blk.{block}.{name[place]}.weight",
                (f"layers.{block}.{name[place]}.weight",),
                (4096,) if norm else (4096, 4096),
                "F32" if norm else "F16",
                ("F32" if norm else "Q4_K" if place % 2 else "Q6_K"),
                16384 if norm else 33554432,
                16384 if norm else 9437184 + 4194304 * (place % 2 == 0),
                "identical" if norm else "rounded",
                "copy" if norm else "transcode",
                "",
                error,
                error * 0.1,
                outlier=number == 43,
            )
        )
    return tuple(found)


def model(state: str = "done") -> ModelPage:
    """Return a model's page."""
    all_of = tensors()
    shown = TensorPage(all_of[:PER_PAGE], len(all_of), 1, 6)
    done = state == "done"
    base = row(0, state=state, reason="")
    proof = Proof(
        "full",
        (
            Agreement("ggferry: source and output", "logits", 3.1e-3, 0.02, "22 positions of 2 prompts"),
            Agreement("llama.cpp b11549 (output)", "logits", 4.2e-3, 0.1, "16 rows"),
            Agreement("transformers 5.23 (source)", "logits", 1.1e-6, 1e-4, "16 rows"),
            Agreement("tokenizers 0.22 (source)", "812 texts tokenize alike"),
            Agreement("ctransformers", "logits", absent="it does not know this architecture"),
        ),
        0.9987,
        40,
        40,
        32000,
        {"repacked": 1, "identical": 65, "rounded": 224},
        ("positions beyond the original context of 2048",),
        ("a sliding window and yarn",),
    )
    facts = (
        Fact("block_count", "32", "header field n_layer"),
        Fact("context_length", "2048", ORIGIN, True),
        Fact("attention.layer_norm_rms_epsilon", "1e-06", "default: LLaMA-1 was trained with 1e-6", True),
        Fact("feed_forward_length", "11008", "shape of layers.0.feed_forward.w1.weight"),
    )
    return ModelPage(
        base,
        "A LLaMA model of 6.74 billion weights in a GGJT v1 file of 3.9 GiB, stored as Q4_0 and F32; such files "
        "were written 30 March – 12 May 2023.",
        output="/archive/out/model-0000.gguf",
        header=tuple(Fact(k, v) for k, v in (("n_vocab", "32000"), ("n_embd", "4096"), ("ftype", "2"))),
        hparams=facts,
        keys=facts,
        tensors=all_of if done else tuple(replace(t, type="", bytes_out=None, grade="") for t in all_of),
        shown=shown,
        dropped=(
            DroppedTensor("rope.freqs", "computed by every runtime", False),
            DroppedTensor("layers.40.extra" + NASTY, "of no known use", True),
        ),
        notes=("the file name does not name the model; its directory 'legacy-llama' does", NASTY),
        proof=proof if done else None,
        files=(Output("model-0000.gguf", 4_212_860_928, "", "e9394ce8adf1c1ab" * 4, "/files/0"),) if done else (),
        attempts=(
            Attempt(1, "put back", 1.79e9, 1.79e9 + 12, "the worker ran out of memory"),
            Attempt(2, "done" if done else "", 1.79e9 + 60, 1.79e9 + 371 if done else None),
        ),
        runtimes=("llama.cpp",),
        has_vocabulary=True,
    )


PROBLEM = Problem(
    "the tensor's data ends before its size does",
    "truncated_error",
    f"/archive/{LONG}",
    4096,
    "1,024 bytes",
    "13,056 bytes",
    "the download stopped early: fetch the file again and compare its size",
    "file",
)


def plan() -> PlanPage:
    """Return a plan as a diff."""
    model_ = PlannedModel(
        "/archive/llama-7b/ggml-model-q4_0.bin",
        "convert",
        "GGJT v1, llama, Q4_0_V1 ×225, F32 ×65",
        "GGUF v3, llama, Q4_0 ×225, F32 ×65",
        4_212_860_928,
        3_825_898_240,
        "/archive/llama-7b/LLaMA-7B-Q4_0.gguf",
        "",
        {"repacked": 225, "identical": 65},
        (),
        ("context length 2048 is assumed: nothing states it",),
    )
    lossy = replace(
        model_, source=f"/archive/{LONG}", lost=(DroppedTensor("lm_head.bias", "GGUF has no place for it", True),)
    )
    bad = PlannedModel("/archive/bad.bin", "corrupt", "GGJT v1", bytes_in=1 << 20, problem=PROBLEM)
    twin = PlannedModel(
        "/archive/copy.bin",
        "duplicate",
        "GGJT v1, llama",
        bytes_in=1 << 30,
        reason="the same bytes as /archive/llama-7b/ggml-model-q4_0.bin",
    )
    whole = replace(model_, source="/archive/one.bin", id="c" * 32)
    return PlanPage(
        "p1",
        ("/archive",),
        "",
        "keep",
        "full",
        {"convert": 1200, "duplicate": 31, "corrupt": 2},
        5 << 40,
        4 << 40,
        900 << 20,
        (model_, lossy, bad, twin, whole),
        total=1233,
    )


def activity() -> Activity:
    """Return what is going on."""
    jobs = tuple(
        row(3, state=state, progress=Progress(phase, done << 20, 4000 << 20, 212e6, eta))
        for state, phase, done, eta in (("running", "writing", 1200, 61.0), ("verifying", "verifying", 3900, 3.0))
    )
    run = Progress("", 410 << 30, 1200 << 30, 388e6, 2190.0)
    recent = tuple(row(n) for n in range(10) if row(n).state in ("done", "failed", "skipped"))
    return Activity(run, (*jobs, row(7, state="running")), 76, 790 << 30, recent)


MADE_TOKEN: MadeToken = {
    "id": "0123456789ab",
    "token": "ggf_0123456789ab_00",
    "name": "ci",
    "scope": "read",
    "expires": None,
}


def tokens() -> TokenPage:
    """Return the page of tokens, one of them with a hostile name."""
    plain: TokenRecord = {
        "id": "0123456789ab",
        "name": "ci",
        "kind": "token",
        "scope": "submit",
        "created": 1.7e9,
        "expires": 1.9e9,
        "used": 1.7e9,
        "quota": 10**12,
        "rate": None,
        "made_by": None,
    }
    never: TokenRecord = {**plain, "name": NASTY, "expires": None, "used": None, "quota": None, "made_by": NASTY}
    return TokenPage((plain, never, {**never, "kind": "person", "name": LONG}))


def entries() -> AuditPage:
    """Return a page of the audit log."""
    one: AuditRecord = {
        "id": 7,
        "at": 1.7e9,
        "actor": NASTY,
        "token": "0123456789ab",
        "address": "2001:db8::1",
        "action": "POST /api/v1/jobs/{job}/cancel",
        "subject": LONG,
        "status": 200,
        "request": "00112233aabbccdd",
        "detail": NASTY,
    }
    two: AuditRecord = {**one, "status": None, "token": None, "address": None, "request": None, "detail": None}
    return AuditPage((one, two), NASTY, "/audit?before=7")


def pages() -> dict[str, str]:
    """Return every page in every state by name."""
    add = AddPage(
        ("/archive", "/srv/models"),
        (
            Upload("u1", LONG, 4 << 30, 1 << 30),
            Upload("u2", "b.bin", 9, 9, "refused", PROBLEM),
            Upload("u3", NASTY, 9, 9, "accepted", None, False, 1.79e9, ((NASTY, "ab" * 32),)),
            Upload("u4", "tokenizer.json", 9, 9, "accepted", None, True, 1.79e9),
        ),
        most=1 << 40,
        form=form_of({"no_vocab": True, "hparams": {"a": NASTY}}),
        usage=USAGE,
    )
    lacking = replace(PROBLEM, hint="--tokenizer DIR, or --no-vocab")
    form = form_of({"outtype": "q8_0"}, "/archive/a.bin", str(lacking.hint))
    failed = replace(model("failed"), problem=lacking, can_retry=True, can_delete=True, form=form)
    ladder = replace(plan(), form=form_of({}, "/archive"), ladder=(("q8_0", 7 << 30), ("q4_k_m", 4 << 30)))
    ask = Ask(
        "Delete 2 models?", "They are gone then.", (row(1), row(2)), "/models/bulk", (("job", NASTY),), "Do it", "/"
    )
    items: tuple[FolderItem, ...] = (
        {"name": NASTY, "path": f"/archive/{NASTY}", "kind": "folder", "bytes": None},
        {"name": "a.bin", "path": "/archive/a.bin", "kind": "file", "bytes": 7},
    )
    going = row(3, state="running", progress=Progress("writing", 1 << 30, 4 << 30, 212e6, 21.0))
    running = replace(model("running"), row=going, can_cancel=True, attempts=(), is_looked_at=False)
    empty = Archive(ArchiveAddress(), roots=("/archive",))
    nothing = replace(archive(), rows=(), total=0, query=ArchiveAddress(text="no such thing"))
    making = PlanPage("p2", ("/archive",), state="making")
    gone = Problem("no such model", "not_found_error", hint="it may have been removed; search the archive", status=404)

    def show(template: str, section: str, **views: object) -> str:
        return page(template, replace(SHELL, section=section), **views)

    return {
        "archive": show("archive", "archive", archive=archive()),
        "archive-filtered": show(
            "archive",
            "archive",
            archive=archive(
                query=ArchiveAddress("llama", ("done", "failed"), "GGJT v1", sort="before", descending=True, page=2)
            ),
        ),
        "archive-empty": show("archive", "archive", archive=empty),
        "archive-nothing": show("archive", "archive", archive=nothing),
        "tree": show("archive", "archive", archive=tree()),
        "model": show("model", "archive", model=model()),
        "model-failed": show("model", "archive", model=failed),
        "model-running": show("model", "archive", model=running),
        "plan": show("plan", "add", plan=plan()),
        "plan-making": show("plan", "add", plan=making),
        "add": show("add", "add", add=add),
        "add-problem": show("add", "add", add=replace(add, uploads=(), problem=PROBLEM, path="/etc")),
        "plan-ladder": show("plan", "add", plan=ladder),
        "confirm": show("confirm", "archive", ask=ask),
        "done": show("done", "archive", result=BulkResult("1 model deleted", ((NASTY, "0" * 32, "it is alice's"),))),
        "browse": show("browse", "add", browse=Browse("/archive", (("/archive", "/archive"),), items)),
        "activity": show("activity", "activity", activity=activity(), usage=USAGE),
        "activity-empty": show("activity", "activity", activity=Activity(), usage=USAGE),
        "tokens": show("token_list", "tokens", page=tokens()),
        "tokens-made": show("token_list", "tokens", page=replace(tokens(), made=MADE_TOKEN)),
        "audit": show("audit", "audit", page=entries()),
        "audit-empty": show("audit", "audit", page=AuditPage(text="nobody")),
        "sign-in": page("sign_in", Shell("sign in"), problem=None, provider=None),
        "sign-in-provider": page("sign_in", Shell("sign in"), problem=None, provider=Provider("id.example.org")),
        "signed-in": page("signed_in", Shell("sign in")),
        "problem": show("problem", "", problem=gone),
    }
