"""The server's connection to the link."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
)
from flwr.supercore.constant import TaskType
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
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from coterie.deploy.flower.contents import PATIENCE, Flowers, unwrapped, wrapped
from coterie.deploy.flower.failures import LinkGone, link_errors
from coterie.deploy.flower.gate import SECRET_HEADER

MESSAGE_TYPE = "query.coterie"


class _Headers:
    """Puts these on every request."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def intercept(self, context: Flowers, call_next: Callable[[Flowers], Flowers]) -> Flowers:
        context.request.headers.update(self._headers)
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
        self._secret, self._admitted = secret, _Headers({SECRET_HEADER: secret})
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._control = ControlHttpClient.from_server_address(
            self._address, True, None, interceptors=[self._admitted, version]
        )
        self._runtime: Flowers = None
        self._heart: Flowers = None
        self._pulling = ThreadPoolExecutor(8, thread_name_prefix="pull")

    def nodes(self) -> list[NodeState]:
        """All that are registered."""
        with link_errors():
            found = self._control.ListNodes(ListNodesRequest()).nodes_info
        return [NodeState(one.node_id, one.public_key, one.status == "online") for one in found]

    def register(self, public_key: bytes) -> None:
        with link_errors():
            self._control.RegisterNode(RegisterNodeRequest(public_key=public_key))

    def start(self) -> int:
        """A new run, whose task this process takes; its number at the link."""
        with link_errors():
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
            self._address, True, None, interceptors=[self._admitted, version, _Headers(headers)]
        )
        taken = first.AcquireTask(wanted)
        first.close()
        runtime = RuntimeHttpClient.from_server_address(
            self._address,
            True,
            None,
            interceptors=[self._admitted, version, RuntimeTokenHttpInterceptor(token=taken.token)],
        )
        task = runtime.PullTaskInput(PullTaskInputRequest())
        if task.run.run_id != run:
            raise LinkGone(f"task of run {task.run.run_id} was waiting before {run}; run it again")
        TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        return runtime

    def push(self, bodies: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        """Send each node its message, which is void after so many seconds; which node answers to which name."""
        messages = [Message(wrapped(body), node, MESSAGE_TYPE, ttl=seconds) for node, body in bodies.items()]
        objects: dict[str, Flowers] = {}
        with link_errors(), no_object_id_recompute():
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
                with link_errors():
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
            return asked, unwrapped(inflate_object_from_contents(tree.object_id, contents))
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


def _empty_app() -> bytes:
    """A run needs an app; ours holds no code, for nobody shall execute any: what it names is in no package."""
    said = (
        '[project]\nname = "coterie"\nversion = "1.0.0"\n[tool.flwr.app]\npublisher = "coterie"\n'
        '[tool.flwr.app.components]\nserverapp = "never_executed:no_server"\n'
        'clientapp = "never_executed:no_client"\n'
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("pyproject.toml", said)
    return packed.getvalue()
