"""Messages that only their sender can have made, for this request alone: tags under a key shared with the server.

Whoever changes a message on its way, sends one in another's name, or sends an old one again, has no key, and the server
leaves the message out and says whose it was. It hides nothing: who reads a link still reads it. A party that lies about
its own numbers has its key, and nothing here sees that (``measure.recognition`` looks for it).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from coterie.errors import require
from coterie.flow.ask import Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.wire.codec import encode
from coterie.wire.messages import Contributions

KEY_BYTES = TAG_BYTES = 32
REFUSED = "messages without their sender's tag"  # among the run's metrics


class MessageRefused(UserWarning):
    """A message did not carry its sender's tag for this request; it was left out."""


@dataclass(frozen=True)
class Authenticated(Defence):
    """``key`` is what each client's own key follows from. In a deployment every client has its own, and no more."""

    key: bytes = field(default_factory=lambda: os.urandom(KEY_BYTES), repr=False)

    def __post_init__(self) -> None:
        require(len(self.key) == KEY_BYTES, "len(key)", len(self.key), f"must be {KEY_BYTES} bytes from os.urandom")

    @property
    def tags(self) -> bool:
        return True

    @property
    def client(self) -> ClientGuard:
        return TaggingClient(self.key)

    @property
    def server(self) -> ServerGuard:
        return CheckingServer(self.key)

    def fits(self, protocol: AnyProtocol) -> str:
        return f"the server reads {protocol.looks} before tags are checked" if protocol.looks else ""


@dataclass(frozen=True)
class TaggingClient(ClientGuard):
    key: bytes = field(repr=False)

    @property
    def reveals(self) -> str:
        return ""

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        parts = [sent.pick(cohort.ids.new_tensor([position])) for position in range(len(sent))]
        return replace(sent, notes=tuple(tag(self.key, part, cohort.turn) for part in parts))


@dataclass(frozen=True)
class CheckingServer(ServerGuard):
    key: bytes = field(repr=False)

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        return Sums.over(self._genuine(replies, turn))

    def _genuine(self, replies: Iterable[Contributions], turn: Turn) -> Iterator[Contributions]:
        seen: set[int] = set()
        for part in replies:
            kept = []
            for position, client in enumerate(part.ids.tolist()):
                one = part.pick(part.ids.new_tensor([position]))
                note = one.notes[0] if one.notes else b""
                genuine = hmac.compare_digest(note, tag(self.key, one, turn)) and client not in seen
                turn.metrics.note(REFUSED, float(not genuine))
                if genuine:
                    seen.add(client)
                    kept.append(position)
                    continue
                text = f"client {client}'s message is not its own for this request, and was left out"
                warnings.warn(f"round {turn.round}, {turn.kind}: {text}", MessageRefused, stacklevel=2)
            if kept:
                yield replace(part.pick(part.ids.new_tensor(kept)), notes=())


def tag(key: bytes, one: Contributions, turn: Turn) -> bytes:
    """Over everything that one client says, to which request: an old message fits no other round or kind."""
    client = int(one.ids[0])
    own = hashlib.blake2b(b"client %d" % client, key=key, digest_size=KEY_BYTES).digest()
    said = encode((turn.round, turn.kind, client, dict(one.values), one.weights, one.membership))
    return hashlib.blake2b(said, key=own, digest_size=TAG_BYTES).digest()
