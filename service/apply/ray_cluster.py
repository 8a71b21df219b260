"""A Ray cluster as a coordinator sees it: connected or started, its nodes compared, its loss noticed."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, closing, contextmanager, suppress
from typing import Any

import ggferry
from ggferry.formats.errors import RefusedError, UnreachableError, UsageError
from ggferry.formats.packed.scratch import Scratch

LOCAL = "local"  # Ray's word for a cluster of this machine that is started now
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Set in addition to `_node_ip_address`.

Without the first variable, Ray replaces 127.0.0.1 by the machine's outer address
(`ray._private.services.resolve_ip_for_localhost`), and its six ports are open to the network.
"""
COMPARED = ("numpy", "numba")  # packages whose versions may change the last bit of a number
ANSWER = 60.0  # seconds for a node to say what it is; a process is started there
LOOK = 2.0  # seconds between looks at whether the cluster lives
GONE = 15.0  # seconds without its head after which a cluster is gone; Ray itself ends the process after 60, wordless


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray", hint="pip install 'ggferry[ray]'") from None
    return ray


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to the Ray cluster at `address`; None: RAY_ADDRESS, else a cluster of this machine, on loopback only.

    Raises UsageError, UnreachableError.
    """
    where = address or os.environ.get("RAY_ADDRESS") or LOCAL
    with closing(Scratch()) as home, _environment(LOOPBACK if where == LOCAL else {}):
        ray = import_ray()
        if ray.is_initialized():
            yield ray
            return
        options: dict[str, Any] = {"address": where, "log_to_driver": False, "configure_logging": False}
        if where == LOCAL:
            options |= {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
        _be_quiet(ray)
        try:
            with chdir(home.path):  # Ray's processes import from the folder this one is in: it must not be a model's
                ray.init(**options)
        except Exception as error:  # Ray has no class of its own for a node that does not start in time
            words = f"the Ray cluster cannot be reached: {first_line(error)}"
            raise UnreachableError(words, path=where, hint="--ray-address, RAY_ADDRESS") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _be_quiet(ray: Any) -> None:
    """Silence what raylets report of themselves: no option of Ray keeps it off stdout, which is for data.

    Its warnings go with that: unformatted, they would stand in a log of JSON lines. Errors stay.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray._private.worker.print_to_stdstream = lambda *arguments, **named: None


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update({name: value for name, value in more.items() if before[name] is None})
    try:
        yield
    finally:
        for name in (name for name, value in before.items() if value is None):
            os.environ.pop(name, None)


def first_line(error: BaseException) -> str:
    """Return the message of an error in one line, with its class."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:400] if lines else type(error).__name__


# --- what the nodes are ----------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions of this process: ggferry, Python and the packages in COMPARED."""
    return _teller(COMPARED)()


def _teller(packages: Sequence[str]) -> Callable[[], dict[str, str]]:
    """Return a function that Ray sends as it is, not by its name: a node may have another ggferry, or none."""

    def tell() -> dict[str, str]:
        import platform
        from importlib import metadata

        found = {"ggferry": "none", "python": platform.python_version()}
        for name in packages:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = "none"
        try:
            import ggferry
        except ImportError:
            return found
        return {**found, "ggferry": ggferry.__version__}

    return tell


class Nodes:
    """The nodes of a cluster, and whether it is alive; `threads` is what a node must have to take any job."""

    def __init__(self, ray: Any, threads: int) -> None:
        context = ray.get_runtime_context()
        self._ray, self._threads, self._here = ray, threads, context.get_node_id()
        host, _, port = context.gcs_address.rpartition(":")
        self._head = (host.strip("[]"), int(port))
        self._alive: list[Mapping[str, Any]] = []
        self._looked = self._answered = 0.0
        self.check()

    def check(self) -> None:
        """Check the cluster again, at most every LOOK seconds.

        Raises UnreachableError when the cluster is gone, or this machine's part of it: then no task ends any more, or
        all end at once.
        """
        now = time.monotonic()
        if self._looked and now - self._looked < LOOK:
            return
        if self.answers():
            self._alive = [node for node in self._ray.nodes() if node["Alive"]]
            self._answered = now
            if all(node["NodeID"] != self._here for node in self._alive):
                raise gone("its raylet on this machine died")
        elif now - self._answered > GONE:
            raise gone(f"its head at {self._head[0]}:{self._head[1]} has not answered for {GONE:g} s")
        self._looked = time.monotonic()

    def answers(self) -> bool:
        """Return whether the head accepts connections.

        While it does not, a call to Ray waits for a minute, and then Ray ends this process without a word of ours.
        """
        with suppress(OSError), socket.create_connection(self._head, timeout=LOOK):
            return True
        return False

    def lacking(self, needs: Mapping[str, float]) -> str | None:
        """Return why no node could ever take a job with these needs, even when idle; None when one could."""
        nodes = [node["Resources"] for node in self._alive]
        if any(all(node.get(what, 0) >= much for what, much in needs.items()) for node in nodes):
            return None
        has = {what: max((node.get(what, 0) for node in nodes), default=0) for what in needs}
        short = [what for what, much in needs.items() if has[what] < much] or [what for what in needs if needs[what]]
        shortages = [
            f"{_amount(what, needs[what])} (the most a node has: {_amount(what, has[what])})" for what in short
        ]
        return f"no node of the cluster can take it: it needs {', '.join(shortages)}"

    def compare(self, warn: Callable[[str], None]) -> None:
        """Compare the versions of the nodes with this process's; differences of other packages go to `warn`.

        Raises RefusedError when a node has another ggferry: its outputs would be those of another version.
        """
        near = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        tell = self._ray.remote(num_cpus=0, max_retries=0)(_teller(COMPARED))
        workers = [node for node in self._alive if node["Resources"].get("CPU", 0) >= self._threads]
        resources = {
            _name(node): tell.options(scheduling_strategy=near(node["NodeID"], soft=False)).remote() for node in workers
        }
        ours = versions()
        for name, answer in resources.items():
            try:
                theirs = self._ray.get(answer, timeout=ANSWER)
            except self._ray.exceptions.RayError as error:
                warn(f"the node {name} does not say what it runs: {first_line(error)}")
                continue
            if theirs["ggferry"] != ours["ggferry"]:
                raise other_version(name, theirs["ggferry"])
            odd = [f"{what} {theirs[what]} (here {ours[what]})" for what in ours if theirs.get(what) != ours[what]]
            if odd:
                warn(f"the node {name} has {', '.join(odd)}")


def other_version(node: str, version: str) -> RefusedError:
    return RefusedError(
        "a node of the cluster has another ggferry",
        path=node,
        found=version,
        expected=ggferry.__version__,
        hint="install the same version on every node; nothing is converted by two",
    )


def _name(node: Mapping[str, Any]) -> str:
    return f"{node.get('NodeManagerHostname') or ''}/{node['NodeManagerAddress']}/{node['NodeID'][:8]}"


def _amount(what: str, much: float) -> str:
    if what == "memory":
        return f"{much / 2**30:,.1f} GiB of memory"
    return f"{much:g} {'thread' if what == 'CPU' else what}{'s' if much != 1 else ''}"


def gone(why: str) -> UnreachableError:
    hint = "what was at work is queued; the same command continues"
    return UnreachableError(f"the Ray cluster is gone: {why}", hint=hint)
