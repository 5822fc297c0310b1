"""Who may see what: threat models, and the view of a recorded federation that each one is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.errors import InvalidInput, NotPermitted
from coterie.wire.messages import Contributions, Envelope, Params, Published


@dataclass(frozen=True)
class ThreatModel:
    """Which parties an adversary controls or taps, which keys it holds, and what it must know besides."""

    name: str
    server: bool = False  # reads everything that is sent up and published
    clients: frozenset[int] = frozenset()  # reads what these are given and send
    taps: frozenset[int] = frozenset()  # reads the links of these clients without being them
    keys: frozenset[str] = frozenset()
    knows: str = ""  # auxiliary knowledge, in words

    @property
    def parties(self) -> frozenset[int]:
        return self.clients | self.taps

    def positions(self, envelope: Envelope) -> Tensor:
        """Which of an envelope's clients this adversary can read."""
        if self.server:
            return torch.arange(len(envelope.clients))
        mine = [position for position, client in enumerate(envelope.clients.tolist()) if client in self.parties]
        return torch.tensor(mine, dtype=torch.int64)


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
    """All that an attack is handed. Reaching further raises ``NotPermitted``."""

    threat: ThreatModel
    _index: Mapping[tuple[int, str, bool], Sequence[Callable[[], Envelope]]]  # by (round, kind, down)
    _keys: Mapping[str, Any] = field(default_factory=dict)

    def kinds(self) -> list[str]:
        """The kinds of request from which anything was seen."""
        return sorted({kind for _, kind, _ in self._index})

    def rounds(self, kind: str = "train") -> list[int]:
        """The rounds of this kind from which anything was seen."""
        return sorted({round for round, of_kind, _ in self._index if of_kind == kind})

    def received(self, round: int, kind: str = "train") -> Received:
        """What the server published in this round, as far as this adversary was given it."""
        found = self._all(round, kind, down=True)
        if not found:
            raise NotPermitted(
                f"{self.threat.name} saw nothing published in round {round} of kind {kind!r}; "
                f"it saw rounds {self.rounds(kind)}"
            )
        payload = found[0].payload
        assert isinstance(payload, Published)
        positions = self.threat.positions(found[0])
        if self.threat.server or found[0].sees is None:
            return Received(torch.arange(payload.slots), payload)
        slots = found[0].sees[positions].any(0).nonzero().flatten()
        return Received(slots, payload.pick(slots))

    def has_sent(self, round: int, kind: str = "train") -> bool:
        """Whether anything that clients sent in this round can be read."""
        return bool(self._index.get((round, kind, False)))

    def sent(self, round: int, kind: str = "train") -> Contributions:
        """What clients sent up in this round, as far as this adversary can read their links."""
        parts = []
        for envelope in self._all(round, kind, down=False):
            payload = envelope.payload
            assert isinstance(payload, Contributions)
            positions = self.threat.positions(envelope)
            if len(positions):
                parts.append(payload.pick(positions))
        if not parts:
            raise NotPermitted(
                f"{self.threat.name} sees nothing that clients sent in round {round}; "
                "an attack on uploads needs a threat model with server=True, clients or taps"
            )
        return Contributions.join(parts)

    def key(self, name: str) -> Any:
        if name not in self.threat.keys:
            raise NotPermitted(
                f"{self.threat.name} does not hold the key {name!r}; its keys: {sorted(self.threat.keys)}"
            )
        if name not in self._keys:
            raise InvalidInput(f"key {name!r} does not exist in this federation; it has {sorted(self._keys)}")
        return self._keys[name]

    def _all(self, round: int, kind: str, down: bool) -> list[Envelope]:
        return [load() for load in self._index.get((round, kind, down), ())]
