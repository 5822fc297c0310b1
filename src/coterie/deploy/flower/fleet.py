"""A client's connection to the link."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
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
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.deploy.flower.contents import ARRIVES, PATIENCE, Flowers, unwrapped, wrapped
from coterie.deploy.flower.failures import link_errors


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
        with link_errors():
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
        with link_errors():
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
        return Parcel(unwrapped(whole), lambda body: self._push(whole, body))

    def _push(self, asked: Flowers, body: bytes) -> None:
        answer = Message(wrapped(body), reply_to=asked)
        with link_errors(), no_object_id_recompute():
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
