"""The link, which is Flower's own: the world reaches the fleet's paths alone, and this machine all, with a secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from flwr.common.constant import (
    FLEET_API_GRPC_RERE_DEFAULT_ADDRESS,
    ISOLATION_MODE_PROCESS,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.main import create_app

from coterie.deploy.flower.contents import Flowers
from coterie.deploy.flower.gate import fleet_alone, with_secret
from coterie.errors import InvalidInput


@dataclass(frozen=True)
class LinkSettings:
    """Where the link listens, and with which certificate. It keeps nothing on disk."""

    host: str
    port: int  # of the fleet's routes, which clients reach
    local_port: int  # of all routes, on loopback and with the secret
    certificate: Path
    key: Path
    secret: str
    most_bytes: int = 1 << 30  # of one request


def serve(settings: LinkSettings, public_keys: Iterable[bytes]) -> None:
    """Run a link until it is stopped. Nodes with these keys (PEM) are registered, and nobody can register another."""
    whole, keys = create_app(_lifespan_config(settings), SuperLinkLifespan), frozenset(public_keys)
    outer = uvicorn.Server(
        uvicorn.Config(
            fleet_alone(whole, keys, settings.most_bytes),
            host=settings.host,
            port=settings.port,
            ssl_keyfile=str(settings.key),
            ssl_certfile=str(settings.certificate),
            lifespan="off",
            log_level="warning",
        )
    )
    inner = uvicorn.Server(
        uvicorn.Config(
            with_secret(whole, settings.secret), host="127.0.0.1", port=settings.local_port, log_level="warning"
        )
    )
    _register(whole, keys)
    asyncio.run(_both(inner, outer))


async def _both(*servers: Flowers) -> None:
    """Until one of them stops, whatever stops it."""
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for server in servers:
        server.should_exit = True
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, SystemExit):
            raise InvalidInput("the link cannot listen; is its port taken, or the certificate another key's?")
        if isinstance(result, Exception):
            raise result


def _lifespan_config(settings: LinkSettings) -> Flowers:
    return SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host="127.0.0.1",
        port=settings.local_port,
        insecure=True,
        certificates=None,
        superexec_auth_secret=settings.secret.encode(),
        authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=FLEET_API_GRPC_RERE_DEFAULT_ADDRESS,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=FLWR_IN_MEMORY_DB_NAME,  # a run is resumed as a new one, so nothing of a link need outlive it
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )


def _register(whole: Flowers, public_keys: Iterable[bytes]) -> None:
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

    state = whole.state.linkstate_factory.state()
    for key in public_keys:
        if state.get_node_id_by_public_key(key) is None:
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
