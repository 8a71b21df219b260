"""What a server fetches: nothing of a private network, by whatever name, redirect or change of a name's meaning."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ggferry.formats.errors import AccessError
from ggferry.service.storage import stores, urls
from ggferry.service.storage.backends import addresses
from helpers.store_faults import web_server

PRIVATE = (
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "192.0.0.1",
    "198.18.0.1",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "nonsense",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "64:ff9b::a83f:8110",  # Azure's WireServer
)
PUBLIC = ("1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101")
NAMES = ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "127.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]")


@pytest.fixture
def guarded() -> Iterator[None]:
    urls.configure_access(urls.Access(private=False, retry_timeout=0, redirects=True))
    yield
    urls.configure_access(urls.Access())


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not addresses.is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert addresses.is_public(address)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_this_machine_is_asked(guarded: None, tmp_path: Path, name: str) -> None:
    with web_server(tmp_path) as site:
        port = site.url.rpartition(":")[2].strip("/")
        with pytest.raises(AccessError, match="private network"):
            stores.stat(f"http://{name}:{port}/a.bin")
        assert not site.rules.asked


def test_a_redirect_leads_to_no_private_address(guarded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.2 plays a server of the internet; it sends us to 127.0.0.1."""
    monkeypatch.setattr(addresses, "is_public", lambda text: text == "127.0.0.2")
    (tmp_path / "a.bin").write_bytes(b"secret")
    with web_server(tmp_path) as inside:
        target = f"{inside.url.rstrip('/')}/a.bin".encode()
        listener = socket.create_server(("127.0.0.2", 0))
        with listener:
            url = f"http://127.0.0.2:{listener.getsockname()[1]}/a.bin"
            answer = b"HTTP/1.1 302 Found\r\nLocation: " + target + b"\r\nContent-Length: 0\r\n\r\n"

            def redirect() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

            threading.Thread(target=redirect, daemon=True).start()
            with pytest.raises(AccessError, match="private network"):
                stores.stat(url)
        assert not inside.rules.asked


def test_a_name_is_resolved_once(guarded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means a public address when it is checked, and this machine when it is connected to."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if host != "rebound.example":
            return real(host, *rest, **more)
        asked.append(host)
        return real("127.0.0.2" if len(asked) == 1 else "127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(addresses, "is_public", lambda text: text == "127.0.0.2")
    with web_server(tmp_path) as site:
        port = site.url.rpartition(":")[2].strip("/")
        with pytest.raises(Exception, match="refused"):
            stores.stat(f"http://rebound.example:{port}/a.bin")
        assert asked == ["rebound.example"]
        assert not site.rules.asked
