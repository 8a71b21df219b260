"""The migration service: the plan, the ledger, the engine and the receipts of the command line, over HTTP.

`application.py` puts it together; `functions.py`, `changes.py` and `comparisons.py` hold what both faces (`api/`, JSON;
`pages/`, HTML) call; `guard/` stands before every route; `incoming/` has the pieces of uploads; `store/` is what the
server keeps in the ledger's database; `work/` is what it does by itself: planning, running jobs, receiving files,
sending notices. docs/service.md describes it to users.

Data functions for the faces (`functions.py`). All are plain blocking functions: a route that calls them is a plain
`def`, which FastAPI runs in a thread; those that wait for a worker process are called through
`service.lookups`, in threads of their own. `service` is `request.app.state.service`; `caller` is `request.state.caller`
(`guard.callers.Caller`: name, scope, csrf). All raise GgferryError, which becomes problem+json below /api and is for
`pages` to show elsewhere.

    list_models(service, Query(...)) -> ModelList          the archive: planned and submitted models
    facets(service) -> {"state": {...}, "container": {...}, "architecture": {...}}   counts for filters
    folders(service, below="") -> list[Folder]             one level of the tree, with counts and bytes
    totals(service) -> {"states": {...}, "bytes_before": n, "bytes_after": n, ...}
    model(service, id) -> dict                             one job's row: entry, state, error, attempts, progress
    inspection(service, caller, id) -> dict                header, hparams, tensors, notes, by a worker process
    conversion_plan(service, caller, id) -> dict           every tensor and key of the output, by a worker process
    tokenize(service, caller, id, request) -> list[Token]  by a worker process
    receipt(service, id) -> dict                           of a done job; output.files[n] has sha256 and blake3
    outputs(service, id) -> list[Output]                   name, bytes, sha256, blake3, url of each file to download
    roots(service) -> list[str]
    browse(service, path) -> list[dict]                    what is in a folder below a root
    search_hub(service, caller, text) -> list[HubModel]    models of the Hub by name (`hub_search.py`)
    hub_files(service, caller, repository) -> list[HubFile]   files of weights in one of them
    make_plan(service, caller, source, options) -> dict    id, state ('planning', 'ready', 'failed'), summary, error
    show_plan(service, id) -> dict                         the same, of a plan made before
    plan_lines(service, id, cursor, limit) -> (lines, next)   its lines, as the plan's file has them
    submit(service, caller, plan, models=None) -> dict     plan id, ids of the jobs, states
    edit(service, caller, id, changes) -> dict             keys of a done file changed: a new file, listed as a model
    progress(service, id=None) -> dict                     of a job or of everything: phase, done, total, rate, eta
    report(service, plan=None) -> dict                     as `ggferry ledger export`

`changes.py`, likewise: cancel, retry, move, delete, delete_outputs of a job, `bulk` of several, `usage` of a token and
the disk. `comparisons.py`: histogram(service, caller, id, tensor), difference(service, caller, id, other), by a worker;
begin_quality(service, caller, id, text, context, chunks) and qualities(service, id), in the background (`quality.py`).

Uploads and live progress are the API's (`api/uploads.py`, `api/events.py`): JavaScript calls it with the cookie and the
header `X-CSRF-Token`.
"""
