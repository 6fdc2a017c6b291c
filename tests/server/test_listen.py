"""Addresses and ports."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import server.listen
from server.listen import ListenError, address_for, listen, url_for


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def opened() -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    yield sockets
    for one in sockets:
        one.close()


def test_any_free_port(opened: list[socket.socket]) -> None:
    opened += listen("127.0.0.1", 0, 8)
    port = opened[0].getsockname()[1]
    assert port > 0
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def test_replies_are_not_delayed(opened: list[socket.socket]) -> None:
    """asyncio sets TCP_NODELAY only on sockets whose protocol says TCP."""
    opened += listen("localhost", 0, 8)
    assert all(one.proto == socket.IPPROTO_TCP for one in opened)


def test_localhost_is_both_families_on_one_port(opened: list[socket.socket]) -> None:
    opened += listen("localhost", 0, 8)
    ports = {one.getsockname()[1] for one in opened}
    assert len(ports) == 1
    families = {one.family for one in opened}
    assert socket.AF_INET in families
    assert (socket.AF_INET6 in families) == has_ipv6()


def test_localhost_without_ipv6(
    opened: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server.listen._open

    def no_ipv6(family: socket.AddressFamily, *rest: object) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(99, "Cannot assign requested address")
        return real(family, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(server.listen, "_open", no_ipv6)
    opened += listen("localhost", 0, 8)
    assert [one.family for one in opened] == [socket.AF_INET]
    with pytest.raises(ListenError, match=r"cannot listen on \[::1\]:0: Cannot assign"):
        listen("::1", 0, 8)


def test_taken_port_is_named(opened: list[socket.socket]) -> None:
    opened += listen("127.0.0.1", 0, 8)
    port = opened[0].getsockname()[1]
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        with pytest.raises(ListenError, match=rf"\d:{port} is in use already"):
            listen(host, port, 8)


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_ipv6(opened: list[socket.socket]) -> None:
    opened += listen("::1", 0, 8)
    port = opened[0].getsockname()[1]
    socket.create_connection(("::1", port), timeout=5).close()
    with pytest.raises(ListenError, match=rf"\[::1\]:{port} is in use already"):
        listen("localhost", port, 8)


def test_hosts_that_do_not_exist() -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:80"):
        listen("192.0.2.1", 80, 8)  # an address for documentation
    with pytest.raises(ListenError, match="host 'no such host'"):
        listen("no such host", 80, 8)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost", "http://localhost:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("::", "http://[::1]:80"),
    ],
)
def test_urls(host: str, url: str) -> None:
    assert url_for(host, 80) == url
    assert address_for("fe80::1") == "[fe80::1]"
