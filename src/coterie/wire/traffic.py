"""How many bytes travel: the lengths of the messages as they are encoded, one a client, up and down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from coterie.wire.codec import encoded_length, register
from coterie.wire.messages import Down, Message, Published, Up
from coterie.wire.sealed import SealedBatch, SealedSum

Sealed = TypeVar("Sealed", SealedBatch, SealedSum)


@register
@dataclass
class Traffic:
    """Counts every exchange of a run, those that set keys up included."""

    up: dict[str, int] = field(default_factory=dict)  # by kind
    down: dict[str, int] = field(default_factory=dict)
    answers: int = 0  # one a client and request, those of a guard's own conversation not counted

    def count(self, message: Message) -> None:
        if isinstance(message, Down):
            _add(self.down, message, sum(down_lengths(message)))
        else:
            _add(self.up, message, sum(up_lengths(message)))
            self.answers += 0 if message.kind.part else len(message.sent)

    @property
    def up_bytes(self) -> int:
        return sum(self.up.values())

    @property
    def down_bytes(self) -> int:
        return sum(self.down.values())

    @property
    def up_a_client(self) -> float:
        """A client and request."""
        return self.up_bytes / max(self.answers, 1)


def _add(counts: dict[str, int], message: Message, length: int) -> None:
    counts[str(message.kind)] = counts.get(str(message.kind), 0) + length


def down_lengths(message: Down) -> list[int]:
    """What each client is sent, encoded on its own. Those that are given equally many slots are sent equally much."""
    if message.each:
        return [message_length(message.to_one(position)) for position in range(len(message.clients))]
    given = [message.published.slots] * len(message.clients) if message.sees is None else message.sees.sum(1).tolist()
    measured = {count: message_length(message.to_one(given.index(count))) for count in set(given)}
    return [measured[count] for count in given]


def up_lengths(message: Up) -> list[int]:
    """What each client sends, encoded on its own. Plain tensors are of one length for all clients."""
    clients = len(message.sent)
    if clients and not message.sent.sealed and not message.sent.notes:
        return [message_length(replace(message, sent=message.sent.first))] * clients
    return [message_length(message.pick(torch.tensor([position]))) for position in range(clients)]


def message_length(message: Message) -> int:
    """Bytes on the wire. A ciphertext that only stands for a real one counts as the real one would."""
    if isinstance(message, Up):
        kept, stand_ins = _split(message.sent.sealed)
        return stand_ins + encoded_length(replace(message, sent=replace(message.sent, sealed=kept)))
    published, stand_ins = _without_stand_ins(message.published)
    return stand_ins + encoded_length(replace(message, published=published))


def _without_stand_ins(published: Published) -> tuple[Published, int]:
    kept, stand_ins = _split(published.sealed)
    previous = published.previous
    if previous is not None:
        previous, more = _without_stand_ins(previous)
        stand_ins += more
    return replace(published, sealed=kept, previous=previous), stand_ins


def _split(sealed: Mapping[str, Sealed]) -> tuple[dict[str, Sealed], int]:
    """What travels as it is, and the bytes for which the others stand."""
    kept = {name: one for name, one in sealed.items() if not one.stands_in}
    return kept, sum(one.nbytes for one in sealed.values() if one.stands_in)
