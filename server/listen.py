"""Listening sockets for a host and a port, opened before anything slow is done.

Knows addresses and their spelling; knows nothing of HTTP but the http:// in a URL.
"""

from __future__ import annotations

import errno
import socket

_PORT_ATTEMPTS = 20


class ListenError(Exception):
    """The server cannot listen there; the message names address and port."""


def listen(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen already, all on one port; port 0 takes a free one. Raises: ListenError.

    `localhost` is both loopback addresses where both exist, whatever the resolver says of it.
    """
    addresses = _addresses(host)
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        try:
            return _listen_on(addresses, port, backlog)
        except _PortTaken as taken:
            # Port 0 gave a port of the first address that the second does not have free.
            if port != 0 or attempt == _PORT_ATTEMPTS:
                raise ListenError(
                    f"{address_for(taken.host)}:{taken.port} is in use already; "
                    "stop what listens there or choose another port"
                ) from None
    raise AssertionError("the last attempt returns or raises")


def url_for(host: str, port: int) -> str:
    """A URL under which this machine reaches the server: no wildcard, brackets where needed."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{address_for(reachable)}:{port}"


def address_for(host: str) -> str:
    """The host as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


class _PortTaken(Exception):
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if host == "localhost":
        return [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot find the address of host '{host}': {error}") from None
    return list(dict.fromkeys((family, str(address[0])) for family, *_, address in found))


def _listen_on(
    addresses: list[tuple[socket.AddressFamily, str]], port: int, backlog: int
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, host in addresses:
            try:
                sockets.append(_open(family, host, port, backlog))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _PortTaken(host, port) from None
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise ListenError(
                        f"cannot listen on {address_for(host)}:{port}: {error.strerror}"
                    ) from None
                missing = error  # a family that this machine does not have
            else:
                port = sockets[-1].getsockname()[1]
        if not sockets:
            reason = missing.strerror if missing else "no address"
            raise ListenError(f"cannot listen on {address_for(addresses[0][1])}:{port}: {reason}")
    except BaseException:
        for opened in sockets:
            opened.close()
        raise
    return sockets


def _open(family: socket.AddressFamily, host: str, port: int, backlog: int) -> socket.socket:
    # The protocol is named because asyncio sets TCP_NODELAY only on sockets that say they are TCP;
    # without it a reply in two writes waits 40 ms for the client's delayed acknowledgement.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((host, port))
        # At once: until a socket listens, another process may bind the same address beside it.
        opened.listen(backlog)
    except BaseException:
        opened.close()
        raise
    return opened
