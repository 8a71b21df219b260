"""`ggferry serve`: the HTTP API and the page, and the tokens that let callers in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ggferry.formats.errors import UsageError
from ggferry.service.cli.options import PlainCommand, PlainGroup, print_json, say, size_of, tell
from ggferry.service.cli.server.backup import backup, restore
from ggferry.service.cli.server.serve_options import absolute, absolute_ledger, addresses, check, path_of_root
from ggferry.support.platform import here

if TYPE_CHECKING:
    from ggferry.service.server.settings import Settings
    from ggferry.service.server.store.database import Store
    from ggferry.service.server.store.secret_box import SecretBox

commands = typer.Typer(rich_markup_mode=None)
serve = typer.Typer(
    cls=PlainGroup,
    help="Serve the HTTP API and the page.",
    rich_markup_mode=None,
    invoke_without_command=True,
    no_args_is_help=False,
)
token = typer.Typer(cls=PlainGroup, help="Tokens that let callers in.", no_args_is_help=True, rich_markup_mode=None)
commands.add_typer(serve, name="serve")
serve.add_typer(token, name="token")
serve.command(cls=PlainCommand)(backup)
serve.command(cls=PlainCommand)(restore)
webhook = typer.Typer(
    cls=PlainGroup, help="Receivers of notices when jobs end.", no_args_is_help=True, rich_markup_mode=None
)
serve.add_typer(webhook, name="webhook")

SIZES = "4G is 4·10⁹ bytes, 4GiB is 4·2³⁰."
Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="Folder of uploads, outputs and the default ledger.")
]
Ledger = Annotated[
    str | None, typer.Option("--ledger", metavar="LEDGER", help="Path, URL, or env:NAME (default: DATA/ledger).")
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@serve.callback()
def run(
    context: typer.Context,
    root: Annotated[
        list[str] | None, typer.Option("--root", metavar="DIR", help="A folder or URL that may be read; repeatable.")
    ] = None,
    ledger: Ledger = None,
    data: Data = None,
    uploads: Annotated[
        str | None,
        typer.Option("--uploads", metavar="URL", help="Uploads in s3://BUCKET/PREFIX, for several servers."),
    ] = None,
    dest: Annotated[
        str | None,
        typer.Option("--dest", metavar="DIR|URL", help="Folder of outputs, or s3://BUCKET/PREFIX (default: in DATA)."),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any that is free.")] = 8765,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A name this server goes by; repeatable.")
    ] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private-addresses", help="Fetch URLs of private and local addresses, too.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, max=256, help="Workers that convert; 0: none here.")] = 1,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="local, or ray for a cluster.")] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            metavar="ADDRESS",
            help="Address of the Ray cluster (default: RAY_ADDRESS, or this machine).",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads of each worker (default: cores / jobs).")
    ] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help=f"Memory cap of a worker. {SIZES}")] = "4GiB",
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=1, help="Seconds that a job may take (default: by size).")
    ] = None,
    max_file: Annotated[
        str, typer.Option("--max-file", metavar="SIZE", help="Largest file a worker may write.")
    ] = "1TiB",
    max_upload: Annotated[str, typer.Option("--max-upload", metavar="SIZE", help="Largest upload.")] = "1TiB",
    silence: Annotated[
        float,
        typer.Option("--silence", min=0.1, help="Seconds without a byte after which an upload or a download is ended."),
    ] = 30.0,
    quota: Annotated[
        str, typer.Option("--quota", metavar="SIZE", help="Bytes that a token's uploads and outputs may take together.")
    ] = "4TiB",
    rate: Annotated[float, typer.Option("--rate", min=0, help="Requests a second of a token; 0: no limit.")] = 100.0,
    drain: Annotated[float, typer.Option("--drain", min=0, help="Seconds for running jobs after SIGTERM.")] = 30.0,
    keep: Annotated[
        float | None,
        typer.Option(
            "--keep-outputs",
            min=0,
            metavar="DAYS",
            help="Remove outputs and uploads after so many days (default: never).",
        ),
    ] = None,
    keep_records: Annotated[
        float | None,
        typer.Option(
            "--keep-records",
            min=0,
            metavar="DAYS",
            help="Remove ended jobs from the ledger after so many days (default: never).",
        ),
    ] = None,
    keep_audit: Annotated[
        float,
        typer.Option("--keep-audit", min=0, metavar="DAYS", help="Remove entries of the audit log after so many days."),
    ] = 365.0,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="Address or network of a proxy whose X-Forwarded-For and -Proto are believed; repeatable.",
        ),
    ] = None,
    secret_key_file: Annotated[
        str | None,
        typer.Option(
            "--secret-key-file",
            metavar="FILE",
            help="Key that encrypts secrets in the ledger (default: GGFERRY_SECRET_KEY, else DATA/secret-key).",
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", metavar="PATH", help="Path below which a proxy serves this, as /ggferry.")
    ] = "",
    oidc_issuer: Annotated[
        str | None, typer.Option("--oidc-issuer", metavar="URL", help="OpenID provider by which people sign in.")
    ] = None,
    oidc_client: Annotated[
        str | None, typer.Option("--oidc-client", metavar="ID", help="Id under which it knows this server.")
    ] = None,
    oidc_secret: Annotated[
        str | None, typer.Option("--oidc-secret", metavar="PLACE", help="Its secret: env:NAME or file:PATH.")
    ] = None,
    oidc_claim: Annotated[
        str, typer.Option("--oidc-claim", metavar="NAME", help="Claim that says what a person may do.")
    ] = "groups",
    oidc_scope: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-scope",
            metavar="VALUE=SCOPE",
            help="Value of the claim, * for any person, and the scope it gives; repeatable.",
        ),
    ] = None,
    oidc_hours: Annotated[
        float, typer.Option("--oidc-hours", min=0.01, help="Hours after which they sign in again.")
    ] = 12.0,
    traces: Annotated[
        bool, typer.Option("--traces", help="Send OpenTelemetry traces, as the OTEL_… variables say where.")
    ] = False,
) -> None:
    """Serve the HTTP API and the page until SIGTERM; the link that is printed signs a browser in."""
    from ggferry.service.cli.server.openid import openid_settings
    from ggferry.service.server.settings import DAY, Settings
    from ggferry.service.workers.supervisor import Limits

    cores = here.cores()
    limits = Limits(
        size_of(memory, "--memory"), threads or max(1, cores // max(1, jobs)), size_of(max_file, "--max-file")
    )
    settings = Settings(
        data=_data(data),
        roots=tuple(map(absolute, root or ())),
        ledger=None if ledger is None else absolute_ledger(ledger),
        dest=None if dest is None else absolute(dest),
        uploads_in=None if uploads is None else uploads.rstrip("/"),
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        private=allow_private,
        jobs=jobs,
        engine=engine,
        ray_address=ray_address,
        limits=limits,
        timeout=timeout,
        upload_bytes=size_of(max_upload, "--max-upload"),
        upload_silence=silence,
        quota=size_of(quota, "--quota"),
        rate=rate,
        drain=drain,
        keep_outputs=None if keep is None else keep * DAY,
        keep_records=None if keep_records is None else keep_records * DAY,
        keep_audit=keep_audit * DAY,
        trusted_proxies=addresses(proxy or ()),
        secret_key_file=secret_key_file,
        root_path=path_of_root(root_path),
        openid=openid_settings(oidc_issuer, oidc_client, oidc_secret, oidc_claim, oidc_scope or (), oidc_hours),
        traces=traces,
    )
    context.obj = settings
    if context.invoked_subcommand is not None:
        return
    check(settings)
    try:
        from ggferry.service.server.run_server import serve as start
    except ModuleNotFoundError as error:
        words = f"the service needs a package that is not here: {error.name}"
        raise UsageError(words, hint="pip install 'ggferry[service]'") from None
    start(settings, say)


def _data(given: str | None) -> str:
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.abspath(given or os.path.join(state, "ggferry"))


# --- tokens --------------------------------------------------------------------------------------------------------


def _store(context: typer.Context) -> Store:
    from ggferry.service.server.store.database import Store

    settings: Settings = context.obj
    os.makedirs(settings.data, 0o700, exist_ok=True)
    return Store(settings.ledger_place)


@token.command(cls=PlainCommand)
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    scope: Annotated[str, typer.Option("--scope", metavar="SCOPE", help="read, submit or admin.")] = "read",
    days: Annotated[float | None, typer.Option("--days", min=0, help="Days until it expires (default: never).")] = None,
    quota: Annotated[
        str | None, typer.Option("--quota", metavar="SIZE", help="Bytes it may store (default: the server's --quota).")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Requests a second.")] = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it; it is not shown again."""
    from ggferry.service.server.settings import DAY
    from ggferry.service.server.store import audit, tokens

    seconds = None if days is None else days * DAY
    room = None if quota is None else size_of(quota, "--quota")
    store, who = _store(context), _user()
    made = tokens.add(store, name, scope, seconds=seconds, quota=room, rate=rate, made_by=who)
    audit.note(store, who, "serve token add", subject=f"token {made.split('_')[1]}", detail=f"{name}: {scope}")
    if as_json:
        print_json({"token": made, "id": made.split("_")[1], "name": name, "scope": scope})
    else:
        tell(made)


@token.command(cls=PlainCommand, name="list")
def list_tokens(context: typer.Context, as_json: Json = False) -> None:
    """List tokens: id, scope, last use, expiry, name; never the token itself."""
    from ggferry.service.server.store import tokens

    for each in tokens.every(_store(context)):
        if as_json:
            print_json(each)
        else:
            used = _moment(each["used"]) or "never used"
            ends = _moment(each["expires"]) or "no end"
            tell(f"{each['id']}  {each['scope']:<7} {used:<17} {ends:<17} {each['name']}")


@token.command(cls=PlainCommand)
def revoke(context: typer.Context, name: Annotated[str, typer.Argument(metavar="TOKEN", help="Id or name.")]) -> None:
    """End a token, and the browser sessions that were begun with it."""
    from ggferry.service.server.store import audit, tokens

    store = _store(context)
    audit.note(store, _user(), "serve token revoke", subject=f"token {tokens.revoke(store, name)}")
    say("revoked")


def _user() -> str:
    import getpass

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        name = here.user_name()
    return f"command line: {name}"


def _moment(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M Z")


# --- the audit log -------------------------------------------------------------------------------------------------


@serve.command(cls=PlainCommand, name="audit")
def show_audit(
    context: typer.Context,
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only entries with this text in actor, action, subject or detail.")
    ] = "",
    days: Annotated[
        float | None, typer.Option("--days", min=0, help="Only entries of so many days (default: all).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Entries at most, the newest.")] = 100,
    as_json: Json = False,
) -> None:
    """List what was changed: when, who, what, from where; the newest first."""
    import time
    from dataclasses import replace

    from ggferry.service.server.settings import DAY
    from ggferry.service.server.store import audit

    store, left = _store(context), limit
    query = audit.AuditQuery(text, since=None if days is None else time.time() - days * DAY, limit=audit.MOST)
    while left > 0 and (found := audit.find(store, replace(query, limit=min(left, audit.MOST)))):
        query, left = replace(query, before=found[-1]["id"]), left - len(found)
        for each in found:
            if as_json:
                print_json(each)
            else:
                status = each["status"] if each["status"] is not None else ""
                about = "  ".join(filter(None, (each["subject"], each["detail"], each["address"])))
                tell(f"{_moment(each['at'])}  {each['actor']}  {each['action']}  {status}  {about}".rstrip())


# --- webhooks ------------------------------------------------------------------------------------------------------


def _box(context: typer.Context, store: Store) -> SecretBox:
    """Return what encrypts secrets, once all that are there are encrypted."""
    from ggferry.service.server.store.secret_box import open_box
    from ggferry.service.server.work import notices

    box = open_box(context.obj)
    notices.seal_all(store, box)
    return box


Hook = Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it.")]


@webhook.command(cls=PlainCommand, name="add")
def add_webhook(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where notices are sent.")],
    as_json: Json = False,
) -> None:
    """Add a receiver and print its id and the secret that signs its notices; it is not shown again."""
    from ggferry.service.server.store import audit
    from ggferry.service.server.work import notices

    store = _store(context)
    made = notices.add(store, _box(context, store), url)
    audit.note(store, _user(), "serve webhook add", subject=f"webhook {made['id']}")
    if as_json:
        print_json(made)
    else:
        tell(f"{made['id']}  {made['secret']}")


@webhook.command(cls=PlainCommand, name="list")
def list_webhooks(context: typer.Context, as_json: Json = False) -> None:
    """List receivers: id, notices that wait, URL, and the last error."""
    from ggferry.service.server.work import notices

    for each in notices.every(_store(context)):
        if as_json:
            print_json(each)
        else:
            tell(f"{each['id']}  {each['waiting']:>6} {each['url']}" + (f": {each['error']}" if each["error"] else ""))


@webhook.command(cls=PlainCommand, name="test")
def test_webhook(context: typer.Context, name: Hook) -> None:
    """Send a test notice, which is of no job, to a receiver, once."""
    from ggferry.service.server.work import notices
    from ggferry.service.storage.urls import Access, configure_access

    settings: Settings = context.obj
    configure_access(Access(private=settings.private, retry_timeout=0))
    store = _store(context)
    notices.test(store, _box(context, store), name)
    say("taken")


@webhook.command(cls=PlainCommand, name="remove")
def remove_webhook(context: typer.Context, name: Hook) -> None:
    """Remove a receiver, and what waits for it."""
    from ggferry.service.server.store import audit
    from ggferry.service.server.work import notices

    store = _store(context)
    notices.remove(store, name)
    audit.note(store, _user(), "serve webhook remove", subject=f"webhook {name}")
    say("removed")
