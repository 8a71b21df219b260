"""What `ggferry serve` was asked: where things are, who may connect, and what a job may take."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ggferry.service.storage.stores import is_remote, join, local_path
from ggferry.service.workers.supervisor import Limits

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PORT = 8765
DAY = 86400.0


def _place(root: str) -> str:
    """Return a root as sources are compared with it; `hf://` and the like mean all of a store."""
    if not is_remote(root):
        return os.path.realpath(local_path(root))
    return root if root.endswith("://") else root.rstrip("/")


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """The OpenID provider by which people sign in.

    Attributes:
        issuer: Its URL; `/.well-known/openid-configuration` is below it.
        client: Id under which it knows this server.
        secret: 'env:NAME' or 'file:PATH' of the secret that goes with it; None: there is none.
        claim: The claim whose values decide what a person may do.
        scopes: Values of this claim, '*' for any person, and the scope that each gives.
        seconds: How long a session lasts.
        ask: The scopes of OpenID that are asked for.
    """

    issuer: str
    client: str
    secret: str | None = None
    claim: str = "groups"
    scopes: tuple[tuple[str, str], ...] = ()
    seconds: float = 12 * 3600.0
    ask: str = "openid profile email"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `serve`. Sizes are bytes, times seconds.

    Attributes:
        data: Folder of uploads, outputs and the default ledger; only its owner can read it.
        roots: Folders and URLs of stores that may be read.
        ledger: Path, URL or env:NAME; None: in `data`.
        dest: Folder of the outputs, or the URL of a prefix in S3; None: in `data`.
        uploads_in: URL of a prefix in S3 for uploads; None: in `data`.
        host: Address to listen on.
        port: Port to listen on; 0: any.
        hosts: Names by which a browser may call this server, besides those of this machine.
        private: Whether URLs of private, link-local and loopback addresses may be fetched.
        jobs: Worker processes that convert, or jobs of the cluster at a time.
        engine: What carries jobs out: 'local', or 'ray'.
        ray_address: Of the Ray cluster; None: RAY_ADDRESS, else one of this machine.
        limits: Limits of each worker.
        timeout: Longest time of a job; None: by its size.
        inspectors: Worker processes that inspect and plan.
        upload_bytes: Largest upload, all files of it.
        upload_silence: Longest pause in the body of a request, and in a client's reading of an answer.
        upload_slowest: Bytes a second that a body must have on average.
        quota: Bytes of uploads and outputs a token may have.
        rate: Requests a second a token may make on average; 0: no limit.
        drain: How long running jobs may go on after SIGTERM.
        keep_outputs: How long uploads and outputs are kept; None: for good.
        keep_records: How long ended jobs stay in the ledger; None: for good.
        keep_audit: How long entries of the audit log stay; None: for good.
        trusted_proxies: Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are believed.
        secret_key_file: File of the key that encrypts secrets in the ledger; None: in `data`.
        root_path: What a proxy has before every path, as '/ggferry'; '' for none.
        openid: The OpenID provider by which people sign in; None: there is none.
        traces: Whether traces are sent to an OpenTelemetry collector.
    """

    data: str
    roots: tuple[str, ...] = ()
    ledger: str | None = None
    dest: str | None = None
    uploads_in: str | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    hosts: tuple[str, ...] = ()
    private: bool = False
    jobs: int = 1
    engine: str = "local"
    ray_address: str | None = None
    limits: Limits = field(default_factory=Limits)
    timeout: float | None = None
    inspectors: int = 2
    upload_bytes: int = 1 << 40
    upload_silence: float = 30.0
    upload_slowest: int = 16 << 10
    quota: int = 1 << 42
    rate: float = 100.0
    drain: float = 30.0
    keep_outputs: float | None = None
    keep_records: float | None = None
    keep_audit: float | None = 365 * DAY
    trusted_proxies: tuple[str, ...] = ()
    secret_key_file: str | None = None
    root_path: str = ""
    openid: OpenIdSettings | None = None
    traces: bool = False

    @property
    def ledger_place(self) -> str:
        """Where the ledger is."""
        return self.ledger or os.path.join(self.data, "ledger")

    @property
    def outputs(self) -> str:
        """Where outputs are made: a folder, or the URL of a prefix in S3."""
        return local_path(self.dest) if self.dest is not None and is_remote(self.dest) else self.output_folder

    @property
    def output_folder(self) -> str:
        """Folder of the outputs that are on this machine; with a store, of those that were made before."""
        dest = None if self.dest is None or is_remote(self.dest) else local_path(self.dest)
        return os.path.realpath(dest or os.path.join(self.data, "outputs"))

    @property
    def scratch(self) -> str | None:
        """Folder of what is on its way to a store; None: there is none here, or each node of a cluster has its own."""
        return os.path.join(os.path.realpath(self.data), "scratch") if self._passes_here else None

    @property
    def _passes_here(self) -> bool:
        return is_remote(self.outputs) and self.engine == "local"

    @property
    def uploads(self) -> str:
        """Folder of uploads that were inspected."""
        return os.path.join(os.path.realpath(self.data), "uploads")

    @property
    def upload_place(self) -> str:
        """Where uploads that were inspected are: their folder, or the URL of a prefix."""
        return self.uploads if self.uploads_in is None else join(self.uploads_in, "accepted")

    @property
    def quarantine(self) -> str:
        """Folder of uploads that were not inspected yet, or refused."""
        return os.path.join(os.path.realpath(self.data), "quarantine")

    @property
    def places(self) -> tuple[str, ...]:
        """The roots: real paths of folders, and URLs."""
        return tuple(map(_place, self.roots))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name by which the server may be called."""
        own = () if self.host in ("0.0.0.0", "::", "") else (self.host,)
        return (*LOOPBACK, *own, *self.hosts)
