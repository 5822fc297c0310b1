"""Who may see what: threat models, and the view of a recorded federation that each one is given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted, require
from coterie.wire.messages import BEFORE, TRAIN, Contributions, Down, Kind, Message, Params, Published, Up

OVERHEARD = "overheard"
"""Where an insider that also taps links finds, in its memory, what passed on them last: an ``Up`` of each client."""


class Entries(Enum):
    """Which entries of a tapped upload are read, where it is not all of them."""

    RANDOM = "at random"
    LAYERS = "whole leaves, from the first"
    LAST = "whole leaves, from the last"


@dataclass(frozen=True)
class ThreatModel:
    """Which seats an adversary has, which keys it holds, and what it must know besides.

    ``clients`` are its own (an *insider*), ``taps`` are others' links of which it reads a ``share`` of what is sent up
    (*on the wire*), and ``server`` is the *server's* seat, which reads everything that is sent up and published.
    """

    name: str
    server: bool = False
    clients: frozenset[int] = frozenset()
    taps: frozenset[int] = frozenset()
    keys: frozenset[str] = frozenset()
    knows: str = ""  # auxiliary knowledge, in words
    share: float = 1.0
    entries: Entries = Entries.RANDOM

    def __post_init__(self) -> None:
        require(
            0 <= self.share <= 1, "share", self.share, "must lie in [0, 1]; it is how much of a tapped link is read"
        )

    @property
    def parties(self) -> frozenset[int]:
        return self.clients | self.taps

    def positions(self, message: Message) -> Tensor:
        """Which of a message's clients this adversary can read."""
        if self.server:
            return torch.arange(len(message.clients))
        mine = [position for position, client in enumerate(message.clients.tolist()) if client in self.parties]
        return torch.tensor(mine, dtype=torch.int64)

    def reads(self, values: Params) -> dict[str, Tensor]:
        """Of one client's tapped leaves, which entries this adversary reads: the same in every round."""
        if self.entries is Entries.RANDOM:
            return {name: _coins(self.name, name, leaf, self.share) for name, leaf in values.items()}
        names = list(values) if self.entries is Entries.LAYERS else list(values)[::-1]
        left = self.share * sum(leaf.numel() for leaf in values.values())
        read = {}
        for name in names:
            left -= values[name].numel()
            read[name] = torch.full(values[name].shape, left >= 0)
        return read


def _coins(adversary: str, name: str, leaf: Tensor, share: float) -> Tensor:
    seed = hashlib.blake2b(f"{adversary}/{name}".encode(), digest_size=4).digest()
    draws = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    return torch.rand(leaf.shape, generator=draws) < share


@dataclass(frozen=True)
class Received:
    """Published models as one adversary saw them: the slots that it was given, and no others."""

    slots: Tensor  # the numbers of those slots
    published: Published  # leaves (len(slots), ...)

    @property
    def values(self) -> Params:
        """The visible models, leaves (len(slots), ...)."""
        return self.published.values


@dataclass(frozen=True)
class View:
    """All that an attack is handed. Reaching further raises ``NotPermitted``.

    Messages come as this adversary saw them (``as_seen``): a view that is given another threat model holds no more.
    """

    threat: ThreatModel
    _index: Mapping[tuple[int, Kind, bool], Sequence[Callable[[], Message]]]  # by (round, kind, down)
    _keys: Mapping[str, object] = field(default_factory=dict)
    _open: Callable[[Published], Published] | None = None  # how its own clients open what they are sent

    def kinds(self) -> list[Kind]:
        """The kinds of request from which anything was seen."""
        return sorted({kind for _, kind, _ in self._index}, key=str)

    def rounds(self, kind: Kind | str = TRAIN) -> list[int]:
        """The rounds of this kind from which anything was seen."""
        wanted = Kind.of(kind)
        return sorted({round for round, of_kind, _ in self._index if of_kind == wanted})

    def first(self, kind: Kind | str = TRAIN) -> int:
        """The first round of this kind from which anything was seen; ``NotPermitted`` if none was."""
        return self._seen(kind)[0]

    def last(self, kind: Kind | str = TRAIN) -> int:
        return self._seen(kind)[-1]

    def _seen(self, kind: Kind | str) -> list[int]:
        found = self.rounds(kind)
        if not found:
            kinds = [str(seen) for seen in self.kinds()]
            raise NotPermitted(f"{self.threat.name} saw nothing of kind {str(kind)!r}; it saw {kinds}")
        return found

    def received(self, round: int, kind: Kind | str = TRAIN) -> Received:
        """What the server published in this round, as far as this adversary was given it and can open it."""
        found = [message for message in self._all(round, kind, down=True) if isinstance(message, Down)]
        if not found:
            raise NotPermitted(
                f"{self.threat.name} saw nothing published in round {round} of kind {str(kind)!r}; "
                f"it saw rounds {self.rounds(kind)}"
            )
        asked = found[0]
        published = asked.published
        if self._open is not None:
            published = self._open(published)
        published = replace(published, values={name: leaf.clone() for name, leaf in published.values.items()})
        if self.threat.server or asked.sees is None:
            return Received(torch.arange(published.slots), published)
        slots = asked.slots(self.threat.positions(asked))
        return Received(slots, published.pick(slots))

    def has_sent(self, round: int, kind: Kind | str = TRAIN) -> bool:
        """Whether anything that clients sent in this round can be read."""
        return bool(self._index.get((round, Kind.of(kind), False)))

    def sent(self, round: int, kind: Kind | str = TRAIN) -> Contributions:
        """What clients sent up in this round, as far as this adversary can read their links: NaN where it cannot."""
        parts = [message.sent for message in self._all(round, kind, down=False) if isinstance(message, Up)]
        if not parts:
            raise NotPermitted(
                f"{self.threat.name} sees nothing that clients sent in round {round}; "
                "an attack on uploads needs a threat model with server=True, clients or taps"
            )
        return Contributions.join(parts)

    def answered(self, round: int, kind: Kind | str = TRAIN) -> Contributions | None:
        """What this adversary's own clients answered in this round, also where their guard sealed it on its way out."""
        wanted = Kind.of(kind)
        for found in (wanted, replace(wanted, part=BEFORE)):
            parts = [message.sent for message in self._all(round, found, down=False) if isinstance(message, Up)]
            own = [part.pick(here) for part in parts if part.values and len(here := self._own(part))]
            if own:
                return Contributions.join(own)
        return None

    def _own(self, sent: Contributions) -> Tensor:
        mine = [position for position, client in enumerate(sent.ids.tolist()) if client in self.threat.clients]
        return torch.tensor(mine, dtype=torch.int64)

    def key(self, name: str) -> Any:
        if name not in self.threat.keys:
            raise NotPermitted(
                f"{self.threat.name} does not hold the key {name!r}; its keys: {sorted(self.threat.keys)}"
            )
        if name not in self._keys:
            raise InvalidInput(f"key {name!r} does not exist in this federation; it has {sorted(self._keys)}")
        return self._keys[name]

    def _all(self, round: int, kind: Kind | str, down: bool) -> list[Message]:
        return [load() for load in self._index.get((round, Kind.of(kind), down), ())]


def seat_at(threat: ThreatModel, message: Message) -> ThreatModel:
    """Where an adversary stands for a message: what never passed a link, only the client itself has seen."""
    return replace(threat, server=False, taps=frozenset()) if message.kind.part == BEFORE else threat


def as_seen(threat: ThreatModel, message: Message) -> Message:
    """What of a message this adversary can read: the clients, the share of a link and the models that are its own."""
    seat = seat_at(threat, message)
    positions = seat.positions(message)
    seen = message if len(positions) == len(message.clients) else message.pick(positions)
    if isinstance(seen, Up):
        return replace(seen, sent=overheard(seat, seen.sent))
    return seen if seat.server else only_given(seen)


def only_given(down: Down) -> Down:
    """Without the models of slots that nobody among its clients is given: zeros stand in their place."""
    if down.sees is None or down.published.sealed:
        return down
    hidden = torch.ones(down.published.slots, dtype=torch.bool)
    hidden[down.slots(torch.arange(len(down.clients)))] = False
    if not bool(hidden.any()):
        return down
    values = {
        name: leaf.masked_fill(hidden.view(-1, *[1] * (leaf.dim() - 1)), 0)
        for name, leaf in down.published.values.items()
    }
    return replace(down, published=replace(down.published, values=values))


def overheard(threat: ThreatModel, sent: Contributions) -> Contributions:
    """Of links that are only tapped, the share of the model that is read, and nothing else."""
    if threat.share >= 1 or threat.server:
        return sent
    tapped = torch.tensor([client not in threat.clients for client in sent.ids.tolist()])
    if not bool(tapped.any()):
        return sent
    read = threat.reads({name: leaf[0] for name, leaf in sent.values.items()})
    values = {}
    for name, leaf in sent.values.items():
        hidden = tapped.view(-1, *[1] * (leaf.dim() - 1)) & ~read[name]
        readable = leaf if leaf.is_floating_point() else leaf.double()  # whole numbers have no NaN
        values[name] = readable.masked_fill(hidden, torch.nan)
    weights = sent.weights.masked_fill(tapped, torch.nan)
    membership = sent.membership.masked_fill(tapped.unsqueeze(1), torch.nan)
    return replace(sent, values=values, weights=weights, membership=membership, sealed={}, notes=())
