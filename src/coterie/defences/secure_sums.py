"""Secure sums in the ring: what clients wait with until all are known, and who asks whom for what opens the sums.

Masks are agreed among those who take part, so a client cannot mask before it knows who else does. It waits
(``Waiting``), the round's clients agree (``ClientGuard.together``), and then their answers leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.flow.guard import Turn
from coterie.learn.params import Layout
from coterie.seal.cipher import Grid
from coterie.seal.masked import MaskedBatch, MaskedSum, SecureSum, Session
from coterie.seal.pairwise import Roster
from coterie.wire.codec import register
from coterie.wire.messages import Contributions, Envelope
from coterie.wire.sealed import SEALED, SealedBatch, SealedSum


@dataclass(frozen=True)
class PairwiseMasks:
    """Settings of secure sums: with how many others a member shares masks (None: with all), and the grid."""

    neighbours: int | None = None
    grid: Grid = field(default_factory=Grid)


@register
@dataclass(frozen=True)
class Waiting(SealedBatch):
    """Values that have not been masked yet. They stay with their clients: neither the server nor anybody opens them."""

    ids: tuple[int, ...]
    values: Tensor = field(repr=False)  # (clients, 1 | slots, length)
    shapes: Mapping[str, tuple[int, ...]]  # what the vector is made of, leaf by leaf

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        return 0  # it never travels

    def pick(self, positions: Sequence[int]) -> Waiting:
        rows = list(positions)
        return Waiting(tuple(self.ids[i] for i in rows), self.values[rows], self.shapes)

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> Waiting:
        first, *_ = waiting = [part for part in parts if isinstance(part, Waiting)]
        ids = tuple(client for part in waiting for client in part.ids)
        return cls(ids, torch.cat([part.values for part in waiting]), first.shapes)

    def add(self, membership: Tensor) -> NoReturn:
        raise InvalidInput(
            f"answers of clients {list(self.ids)} left before they were masked; a transport must pass all answers "
            "of a round through ClientGuard.together"
        )

    def open(self, key: Any) -> NoReturn:
        raise NotPermitted(f"key={type(key).__name__} cannot open values that wait to be masked")


@register
@dataclass(frozen=True)
class OpenedSum(SealedSum):
    """Sums that the server has opened and hands to the clients as they are: no secret from anybody."""

    values: Tensor  # (slots, length)

    @property
    def slots(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def __add__(self, other: SealedSum) -> OpenedSum:
        if not isinstance(other, OpenedSum):
            raise InvalidInput(f"sum={type(other).__name__} must be opened too to be added")
        return OpenedSum(self.values + other.values)

    def open(self, key: Any = None) -> Tensor:
        return self.values


class Relay:
    """What passes between clients and server to agree on masks and to open sums, within one process.

    Public keys and sealed shares go from client to client, and the server asks the survivors once for the shares that
    open the sums. Deployed, this is the network, and each party is on its own machine. A round's secrets are forgotten
    when it is opened, or when the next begins.
    """

    def __init__(self) -> None:
        self._open_rounds: dict[tuple[int, str], tuple[Session, Layout]] = {}
        self.setup_bytes = 0  # of the newest round: keys and shares

    def mask(self, answers: Sequence[Envelope], turn: Turn, settings: PairwiseMasks) -> Iterator[Envelope]:
        """The clients' part: announce the clusters, agree on masks, and send the sums' masked parts."""
        sent = [_waiting(envelope) for envelope in answers]
        ids = [client for _, waiting in sent for client in waiting.ids]
        membership = torch.cat([contributions.membership for contributions, _ in sent])
        cipher = SecureSum(Roster.of(ids, membership, settings.neighbours), settings.grid)
        session = cipher.keygen()
        self._open_rounds = {(turn.round, turn.kind): (session, _layout(sent[0][1]))}
        self.setup_bytes = session.setup_bytes
        for envelope, (contributions, waiting) in zip(answers, sent):
            masked = _mask(cipher, session, waiting, contributions.membership)
            yield replace(envelope, payload=replace(contributions, sealed={SEALED: masked}))

    def open(self, total: MaskedSum, turn: Turn) -> tuple[Tensor, Layout]:
        """The server's part: the sums (slots, length), and what they are made of."""
        require(
            (turn.round, turn.kind) in self._open_rounds,
            "round",
            (turn.round, turn.kind),
            f"has no masks that wait to be opened; there are {sorted(self._open_rounds)}",
        )
        session, layout = self._open_rounds.pop((turn.round, turn.kind))
        return total.open(session), layout


def _waiting(envelope: Envelope) -> tuple[Contributions, Waiting]:
    assert isinstance(envelope.payload, Contributions)
    waiting = envelope.payload.sealed[SEALED]
    assert isinstance(waiting, Waiting)
    return envelope.payload, waiting


def _layout(waiting: Waiting) -> Layout:
    return Layout({name: torch.Size(shape) for name, shape in waiting.shapes.items()})


def _mask(cipher: SecureSum, session: Session, waiting: Waiting, membership: Tensor) -> MaskedBatch:
    """Client by client: all clusters of all clients at once would fill the memory."""
    slots = membership.shape[1]
    return MaskedBatch.join(
        [
            cipher.seal(values.expand(slots, -1).unsqueeze(0), session, [client], flags.unsqueeze(0))
            for client, values, flags in zip(waiting.ids, waiting.values, membership)
        ]
    )
