"""All that touches Flower's private names, for version 1.41: the link, a client's connection to it, and the server's.

Bytes in, bytes out: what they mean is nobody's business here. A client's connection pulls messages and pushes answers;
it asks for no app, so nothing that the link holds is ever executed. The server's takes the run's one task itself.
"""

from __future__ import annotations

import asyncio
import hmac
import io
import logging
import time
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import (
    FLEET_API_GRPC_RERE_DEFAULT_ADDRESS,
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    SUPERLINK_NODE_ID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
)
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.logger import console_handler
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.errors import CoterieError, InvalidInput

console_handler.setLevel(logging.WARNING)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Flowers = Any
"""An object of Flower's, which only this module looks into."""

FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
        "confirm-message-received",
    )
)
"""The only paths that are served to the world. Registering a node and fetching an app are not among them."""

SECRET_HEADER = "x-coterie-secret"
MESSAGE_TYPE = "query.coterie"
RECORD, BODY = "coterie", "body"
ARRIVES = 20.0  # seconds for the contents of a message that was announced
PATIENCE = 0.05  # seconds before an object that is still on its way is asked for again


class LinkGone(CoterieError, ConnectionError):
    """The link does not answer any more."""


class NotAdmitted(CoterieError, PermissionError):
    """The link refuses this party."""


# -- the link ---------------------------------------------------------------------------------------------------------


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
    whole = create_app(_lifespan_config(settings), SuperLinkLifespan)
    outer = uvicorn.Server(
        uvicorn.Config(
            _fleet_alone(whole, settings.most_bytes),
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
            _with_secret(whole, settings.secret), host="127.0.0.1", port=settings.local_port, log_level="warning"
        )
    )
    _register(whole, public_keys)
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


def _fleet_alone(whole: App, most_bytes: int) -> App:
    """What the world may reach of an app: the fleet's paths, and nothing else that is or will be in it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in FLEET:
            await _deny(scope, send, 404)
            return
        length = dict(scope["headers"]).get(b"content-length", b"")
        if not length.isdigit() or int(length) > most_bytes:
            await _deny(scope, send, 413)
            return
        await whole(scope, receive, send)

    return app


def _with_secret(whole: App, secret: str) -> App:
    """The whole app for those on this machine who have the secret, whatever the path."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told = dict(scope.get("headers", ())).get(SECRET_HEADER.encode(), b"")
        if scope["type"] == "http" and not hmac.compare_digest(told, secret.encode()):
            await _deny(scope, send, 401)
            return
        await whole(scope, receive, send)

    return app


async def _deny(scope: Scope, send: Send, status: int) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


# -- a client's connection --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parcel:
    """A message as it was pulled, and how to answer it."""

    body: bytes
    reply: Callable[[bytes], None]


class Fleet:
    """A client's connection to the link: it pulls messages, pushes answers, and says that it is alive."""

    def __init__(
        self, address: str, root_certificates: bytes, key: EllipticCurvePrivateKey, note: Path | None = None
    ) -> None:
        """``note``: a file with the node's number. A link takes a killed client for alive until one says goodbye."""
        self._address, self._roots, self._key, self._note = address, root_certificates, key, note
        self._client: Flowers = None
        self._node: Flowers = None
        self._heart: Flowers = None

    def connect(self) -> None:
        """Raises ``LinkGone`` if nobody is there, ``NotAdmitted`` if this key or that certificate is not known."""
        self.close()
        public = self._key.public_key()
        self._client = FleetHttpClient.from_server_address(
            self._address,
            False,
            self._roots,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self._key, public),
            ],
        )
        activate = ActivateNodeRequest(
            public_key=public_key_to_bytes(public), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        self._say_goodbye_for_former()
        with _link_errors():
            self._node = Node(node_id=self._client.ActivateNode(activate).node_id)
        if self._note is not None:
            self._note.write_text(str(self._node.node_id))
        self._heart = HeartbeatSender(self._beat)
        self._heart.start()

    def _say_goodbye_for_former(self) -> None:
        if self._note is None or not self._note.exists():
            return
        with suppress(httpx.HTTPError, ValueError):  # a link that began anew does not know that number
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=int(self._note.read_text())))

    def _beat(self) -> bool:
        client, node = self._client, self._node
        if client is None or node is None:
            return True
        try:
            beat = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            return bool(client.SendNodeHeartbeat(beat).success)
        except httpx.HTTPError:
            return True  # whoever pulls will notice, and connect again

    def pull(self) -> Parcel | None:
        """The next message for this node, if there is one; an empty one, if the rest of it never came."""
        with _link_errors():
            found = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not found.messages_list:
                return None
            message, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
            run = message.metadata.run_id
            try:
                contents = pull_objects(
                    [one.object_id for one in iterate_object_tree(tree)],
                    make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
                    initial_backoff=PATIENCE,
                    max_tries_per_object=None,
                    max_time=ARRIVES,
                )
            except ObjectPullError:
                return Parcel(b"", lambda _: None)  # whoever was sending it is gone
            received = ConfirmMessageReceivedRequest(
                node=self._node, run_id=run, message_object_id=message.metadata.message_id
            )
            self._client.ConfirmMessageReceived(received)
            whole = inflate_object_from_contents(tree.object_id, contents)
        whole.metadata.__dict__["_message_id"] = message.metadata.message_id
        return Parcel(_body(whole), lambda body: self._push(whole, body))

    def _push(self, asked: Flowers, body: bytes) -> None:
        answer = Message(_content(body), reply_to=asked)
        with _link_errors(), no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            told = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(answer))],
                    message_object_trees=[get_object_tree(answer)],
                    clientapp_runtime_list=[0.0],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, asked.metadata.run_id, told.session_id
            )
            push_objects(get_all_nested_objects(answer), push, object_ids_to_push=set(told.objects_to_push))

    def close(self) -> None:
        heart, client, node = self._heart, self._client, self._node
        self._heart = self._client = self._node = None
        if heart is not None and heart.is_running:
            heart.stop()
        if client is not None:
            if node is not None:
                with suppress(Exception):  # it is going in any case
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
            client.close()


# -- the server's connection ------------------------------------------------------------------------------------------


class _Secret:
    """Puts the secret on every request."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Flowers, call_next: Callable[[Flowers], Flowers]) -> Flowers:
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)


@dataclass(frozen=True)
class NodeState:
    node: int
    public_key: bytes
    online: bool


class Office:
    """The server's side: starts a run at the link, takes its task itself, and sends and collects messages."""

    def __init__(self, port: int, secret: str) -> None:
        self._address = f"127.0.0.1:{port}"
        self._secret = secret
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._control = ControlHttpClient.from_server_address(
            self._address, True, None, interceptors=[_Secret(secret), version]
        )
        self._runtime: Flowers = None
        self._heart: Flowers = None
        self._pulling = ThreadPoolExecutor(8, thread_name_prefix="pull")

    def nodes(self) -> list[NodeState]:
        """All that are registered."""
        with _link_errors():
            found = self._control.ListNodes(ListNodesRequest()).nodes_info
        return [NodeState(one.node_id, one.public_key, one.status == "online") for one in found]

    def register(self, public_key: bytes) -> None:
        with _link_errors():
            self._control.RegisterNode(RegisterNodeRequest(public_key=public_key))

    def start(self) -> int:
        """A new run, whose task this process takes; its number at the link."""
        with _link_errors():
            told = self._control.StartRun(StartRunRequest(fab=Fab(content=_empty_app())))
            self._runtime = self._taken(told.run_id)
        self._heart = HeartbeatSender(make_task_heartbeat_fn_http(self._runtime))
        self._heart.start()
        return int(told.run_id)

    def _taken(self, run: int) -> Flowers:
        from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret

        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        headers = create_superexec_auth_metadata(
            auth_secret=derive_auth_secret(self._secret.encode()),
            method="/flwr.proto.Runtime/AcquireTask",
            request=wanted,
        )
        first = RuntimeHttpClient.from_server_address(
            self._address, True, None, interceptors=[_Secret(self._secret), version, _Headers(headers)]
        )
        taken = first.AcquireTask(wanted)
        first.close()
        runtime = RuntimeHttpClient.from_server_address(
            self._address,
            True,
            None,
            interceptors=[_Secret(self._secret), version, RuntimeTokenHttpInterceptor(token=taken.token)],
        )
        task = runtime.PullTaskInput(PullTaskInputRequest())
        if task.run.run_id != run:
            raise LinkGone(f"task of run {task.run.run_id} was waiting before {run}; run it again")
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return runtime

    def push(self, bodies: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        """Send each node its message, which is void after so many seconds; which node answers to which name."""
        messages = [Message(_content(body), node, MESSAGE_TYPE, ttl=seconds) for node, body in bodies.items()]
        objects: dict[str, Flowers] = {}
        with _link_errors(), no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                objects |= get_all_nested_objects(message)
            told = self._runtime.PushMessages(
                PushAppMessagesRequest(
                    messages_list=[message_to_proto(remove_content_from_message(one)) for one in messages],
                    message_object_trees=[get_object_tree(one) for one in messages],
                )
            )
            push = make_push_object_fn_protobuf(
                self._runtime.PushObject, Node(node_id=SUPERLINK_NODE_ID), TaskIdentity.run_id, told.session_id
            )
            push_objects(objects, push, object_ids_to_push=set(told.objects_to_push))
        return {name: node for name, node in zip(told.message_ids, bodies, strict=True) if name}

    def pull(self, names: Iterable[str], until: float) -> Iterator[tuple[str, bytes]]:
        """The answers to these messages as they come, until the clock (``time.monotonic``) says so."""
        waiting, arriving = set(names), set[Future[tuple[str, bytes]]]()
        while (waiting or arriving) and time.monotonic() < until:
            if waiting:
                with _link_errors():
                    found = self._runtime.PullMessages(PullAppMessagesRequest(message_ids=waiting))
                for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                    waiting.discard(proto.metadata.reply_to_message_id)
                    arriving.add(self._pulling.submit(self._fetch, proto, tree, until))
            done = {one for one in arriving if one.done()}
            arriving -= done
            yield from (one.result() for one in done)
            if (waiting or arriving) and not done:
                time.sleep(PATIENCE)

    def _fetch(self, proto: Flowers, tree: Flowers, until: float) -> tuple[str, bytes]:
        """One answer, to which its sender may never add the contents: then it is empty."""
        asked, run = proto.metadata.reply_to_message_id, TaskIdentity.run_id
        office = Node(node_id=SUPERLINK_NODE_ID)
        try:
            contents = pull_objects(
                [one.object_id for one in iterate_object_tree(tree)],
                make_pull_object_fn_protobuf(self._runtime.PullObject, office, run),
                initial_backoff=PATIENCE,
                backoff_cap=1.0,
                max_tries_per_object=None,
                max_time=max(PATIENCE, until - time.monotonic()),
            )
            done = ConfirmMessageReceivedRequest(node=office, run_id=run, message_object_id=proto.metadata.message_id)
            self._runtime.ConfirmMessageReceived(done)
            return asked, _body(inflate_object_from_contents(tree.object_id, contents))
        except (ObjectPullError, httpx.HTTPError, ValueError, KeyError, TypeError):
            return asked, b""

    def close(self) -> None:
        self._pulling.shutdown(wait=False, cancel_futures=True)
        if self._heart is not None and self._heart.is_running:
            self._heart.stop()
        for client in (self._control, self._runtime):
            if client is not None:
                client.close()
        self._heart = self._runtime = None


class _Headers:
    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def intercept(self, context: Flowers, call_next: Callable[[Flowers], Flowers]) -> Flowers:
        context.request.headers.update(self._headers)
        return call_next(context)


def _empty_app() -> bytes:
    """A run needs an app; ours says what it is and holds no code, for nobody shall execute any."""
    said = (
        '[project]\nname = "coterie"\nversion = "1.0.0"\n[tool.flwr.app]\npublisher = "coterie"\n'
        '[tool.flwr.app.components]\nserverapp = "coterie.deploy.apps:server"\n'
        'clientapp = "coterie.deploy.apps:client"\n'
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("pyproject.toml", said)
    return packed.getvalue()


def _content(body: bytes) -> Flowers:
    return RecordDict({RECORD: ConfigRecord({BODY: body})})


def _body(message: Flowers) -> bytes:
    """Empty if there is none of ours in it."""
    if not message.has_content() or RECORD not in message.content.config_records:
        return b""
    found = message.content.config_records[RECORD].get(BODY, b"")
    return found if isinstance(found, bytes) else b""


@contextmanager
def _link_errors() -> Iterator[None]:
    """What goes wrong on the way, by what one can do about it."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, path = error.response.status_code, error.request.url.path
        if status in (401, 403, 404):
            raise NotAdmitted(
                f"the link refuses {path} with {status}; is this key enrolled there, and has the run not ended?"
            ) from error
        raise LinkGone(f"the link answers {path} with {status}: {error.response.text[:200]}") from error
    except httpx.TransportError as error:
        text = str(error)
        if "certificate" in text.lower() or "ssl" in text.lower():
            raise NotAdmitted(f"the link's certificate is not of the authority that was named: {text}") from error
        raise LinkGone(f"the link does not answer: {text or type(error).__name__}") from error
    except ObjectPullError as error:
        raise LinkGone(f"the link does not have what it announced: {error}") from error
