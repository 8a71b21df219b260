"""Which addresses web servers may have: on a server, none of a private network, this machine, or a cloud's metadata.

The address that is checked is the one that is connected to: a name is resolved once, and the connection goes to what it
was resolved to. So a name that means another address a moment later leads nowhere, and every redirect is checked as it
is connected to.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from concurrent.futures import Future
from typing import Any

from ggferry.formats.errors import AccessError
from ggferry.service.storage.retry import name_timeout
from ggferry.service.storage.urls import granted

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
HINT = "serve --allow-private-addresses, where everyone who may submit may read that network"
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))  # RFC 6052, RFC 8215

_METADATA = (ipaddress.ip_address("168.63.129.16"),)
"""Addresses of clouds' own services that count as public: Azure's WireServer."""


def is_public(text: str) -> bool:
    """Return whether an address, as the system writes it, is one of the public internet.

    IPv4 within IPv6 (mapped, 6to4, Teredo, NAT64) counts as the IPv4 address that it stands for.
    """
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(_is_public(each) for each in _meant(address))


def _is_public(address: Address) -> bool:
    odd = address.is_multicast or address.is_reserved or address.is_unspecified or address in _METADATA
    return address.is_global and not odd


def _meant(address: Address) -> list[Address]:
    """Return the addresses that one may reach."""
    if not isinstance(address, ipaddress.IPv6Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if any(address in network for network in _NAT64):
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    return [address, *address.teredo] if address.teredo is not None else [address]


def connect(place: tuple[str, int], timeout: Any = None, source: Any = None) -> socket.socket:
    """Connect to a server, as `socket.create_connection` does, where `urls.Access.private` allows its address.

    Raises AccessError where it has no address that may be asked, else as `socket.create_connection`.
    """
    host, port = place
    if granted().private and name_timeout() is None:
        return socket.create_connection(place, timeout, source)
    found = [each[4] for each in _resolve(host, port)]
    allowed = [each for each in found if granted().private or is_public(str(each[0]))]
    if not allowed:
        raise AccessError("refusing to connect to a private network address", found=host, hint=HINT)
    failed: OSError | None = None
    for each in dict.fromkeys(allowed):
        try:
            return socket.create_connection((str(each[0]), port), timeout, source)
        except OSError as error:
            failed = error
    assert failed is not None
    raise failed


def _resolve(host: str, port: int) -> Any:
    """Return what `socket.getaddrinfo` returns, within the time that names have. Raises socket.gaierror."""
    seconds, answer = name_timeout(), Future[Any]()

    def ask() -> None:
        try:
            answer.set_result(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except BaseException as error:
            answer.set_exception(error)

    if seconds is None:
        ask()
    else:  # a thread, since the system's resolver has its own patience and cannot be interrupted
        threading.Thread(target=ask, daemon=True, name="ggferry-name").start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {seconds:g} s") from None
