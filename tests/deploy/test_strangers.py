"""Whoever is not enrolled, at the link as it is deployed: the authority's certificate is all that it has."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.deploy.places import Place
from tests.deploy.test_policy import toy

from coterie.deploy.flower import FLEET, Fleet, LinkGone, NotAdmitted, Office
from coterie.deploy.keys import AUTHORITY, ClientKeys, ServerCard, ServerKeys

PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}
FORBIDDEN = (
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/get-run",
    "/v1/fleet/get-fab",
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/control/list-nodes",
    "/v1/runtime/acquire-task",
    "/v1/runtime/pull-task-input",
    "/v1/runtime/pull-messages",
    "/v1/runtime/pull-object",
    "/docs",
    "/openapi.json",
    "/health",
    "/",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place.make(tmp_path_factory.mktemp("strangers"), toy(), {})
    try:
        found.start_server()
        keys = ServerKeys.read(found.root / "server")
        until = time.monotonic() + 90
        while time.monotonic() < until:
            try:
                office = Office(keys.local_port, keys.secret)
                office.nodes()
                break
            except LinkGone:
                time.sleep(0.2)
            finally:
                office.close()
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def card(place: Place) -> ServerCard:
    return ServerCard.read(place.root / "server" / "card.json")


@pytest.fixture(scope="module")
def outside(place: Place, card: ServerCard) -> Iterator[httpx.Client]:
    """With the authority's certificate, as every client has it."""
    trust = ssl.create_default_context(cafile=str(place.root / "server" / AUTHORITY))
    with httpx.Client(base_url=f"https://{card.address}", verify=trust, headers=PROTOBUF) as client:
        yield client


@pytest.fixture(scope="module")
def inside(place: Place) -> Iterator[httpx.Client]:
    """On the server's own machine, without the secret."""
    port = ServerKeys.read(place.root / "server").local_port
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=PROTOBUF) as client:
        yield client


@pytest.mark.parametrize("path", FORBIDDEN)
def test_nothing_but_the_fleets_paths_is_served_to_the_world(outside: httpx.Client, path: str) -> None:
    assert outside.post(path, content=b"").status_code == 404
    assert outside.get(path).status_code == 404


@pytest.mark.parametrize(
    "path", ["/v1/fleet/../control/start-run", "/v1/fleet//register-node", "/v1//control/start-run"]
)
def test_no_spelling_of_a_path_gets_around_that(outside: httpx.Client, path: str) -> None:
    request = outside.build_request("POST", "/", content=b"")
    request.url = request.url.copy_with(raw_path=path.encode())
    assert outside.send(request).status_code == 404


@pytest.mark.parametrize("path", [*FORBIDDEN, *sorted(FLEET)])
def test_on_the_servers_machine_nothing_is_served_without_the_secret(inside: httpx.Client, path: str) -> None:
    assert inside.post(path, content=b"").status_code == 401
    assert inside.post(path, content=b"", headers={"x-coterie-secret": "guess"}).status_code == 401


@pytest.mark.parametrize("path", sorted(FLEET))
def test_the_fleets_paths_want_a_nodes_signature(outside: httpx.Client, path: str) -> None:
    assert outside.post(path, content=b"").status_code == 401


def test_a_key_that_is_not_enrolled_is_turned_away(card: ServerCard) -> None:
    fleet = Fleet(card.address, card.authority, ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises((NotAdmitted, LinkGone), match="the link"):
        fleet.connect()
    fleet.close()


def test_a_link_of_another_authority_is_not_believed(place: Place, card: ServerCard, tmp_path: Path) -> None:
    other = tmp_path / "server"
    ServerKeys.make(other, card.address, 1)
    fleet = Fleet(card.address, ServerCard.read(other / "card.json").authority, own_key(place, 0))
    with pytest.raises(NotAdmitted, match="certificate is not of the authority"):
        fleet.connect()
    fleet.close()


def own_key(place: Place, number: int) -> ec.EllipticCurvePrivateKey:
    return ClientKeys.read(place.home(number) / "keys").node


def test_one_client_cannot_pull_what_is_anothers(place: Place, card: ServerCard) -> None:
    first, second = (Fleet(card.address, card.authority, own_key(place, number)) for number in (0, 1))
    first.connect()
    second.connect()
    try:
        assert first.pull() is None
        second._node = first._node
        with pytest.raises(NotAdmitted, match="refuses /v1/fleet/pull-messages with 401"):
            second.pull()
    finally:
        first.close()
        second.close()


def test_a_run_cannot_be_started_or_taken_with_a_wrong_secret(place: Place) -> None:
    office = Office(ServerKeys.read(place.root / "server").local_port, "wrong")
    with pytest.raises(NotAdmitted, match="refuses /v1/control/start-run with 401"):
        office.start()
    office.close()


def test_the_link_speaks_nothing_but_tls(card: ServerCard) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{card.address}{min(FLEET)}", content=b"", headers=PROTOBUF)


def test_a_stranger_may_not_even_send_what_is_long(place: Place, card: ServerCard) -> None:
    """It is refused by what it says first: a gigabyte that never comes is not waited for."""
    host, _, port = card.address.rpartition(":")
    trust = ssl.create_default_context(cafile=str(place.root / "server" / AUTHORITY))
    said = f"POST {min(FLEET)} HTTP/1.1\r\nhost: {card.address}\r\ncontent-length: {1 << 30}\r\n\r\n"
    bare = socket.create_connection((host, int(port)), timeout=60)
    with trust.wrap_socket(bare, server_hostname=host) as link:
        link.sendall(said.encode())
        assert link.recv(1000).startswith(b"HTTP/1.1 401")
