"""Every answer is checked once, here, before anything uses it: what one client sends can neither stop nor spoil a run.

What fails is left out, as if its client had not answered, with a line in the log and a share in the metrics. What a
guard's own exchanges carry (masks, shares) the guard checks itself, for only it knows what they mean.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.flow.ask import finite, large_tables
from coterie.wire.messages import Contributions, Down, Up

log = logging.getLogger(__name__)

REFUSED = "refused"
"""The metric: the share of the answers that could not be used."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Expected:
    """What an answer to a request looks like, by what its protocol and its defence say."""

    leaves: Mapping[str, Shape]  # of one client: (slots or 1, ...); -1 for a length that the server does not know
    slots: int
    most_weight: Tensor | float = 1.0  # (clients of the federation,), or one for all
    one_slot: bool = False  # a client is in one slot at most
    between: tuple[float, float] = (-math.inf, math.inf)  # what every value lies in

    def sealed(self) -> Expected:
        """The same where a guard hides the values, and in which slots a client is."""
        return replace(self, leaves={}, one_slot=False)


@dataclass
class Admission:
    """Of the answers to one message."""

    asked: Down
    expected: Expected | None = None  # None: nobody says, and only what holds for all answers is checked
    late: bool = (
        False  # all answers or none are added up, and that is all: sums of large tables are then looked at instead
    )

    def __post_init__(self) -> None:
        self._places = {client: place for place, client in enumerate(self.asked.clients.tolist())}
        self._answered: set[int] = set()
        self.refused = 0

    def admit(self, up: Up) -> Contributions | None:
        """What of it can be used; None: nothing."""
        if why := self._misfit(up):
            self._refuse(_ids(up), why)
            return None
        faults = self._faults(up.sent)
        for client, why in faults.items():
            self._refuse([client], why)
        self._answered.update(up.sent.ids.tolist())
        if not faults:
            return up.sent
        kept = [place for place, client in enumerate(up.sent.ids.tolist()) if client not in faults]
        return up.sent.pick(torch.tensor(kept)) if kept else None

    @property
    def share_refused(self) -> float:
        return self.refused / max(1, len(self._places))

    def _refuse(self, clients: list[int], why: str) -> None:
        self.refused += len(clients)
        log.warning("round %d, %s: the answer of %s is left out: %s", self.asked.round, self.asked.kind, clients, why)

    def _misfit(self, up: Up) -> str:
        """Why a message, of one client or of many, cannot be read as an answer at all; empty if it can."""
        asked, sent, expected = self.asked, up.sent, self.expected
        if why := sent.misshapen():
            return why
        if (up.kind, up.round) != (asked.kind, asked.round):
            return f"it is about {up.kind} in round {up.round}"
        if strangers := set(sent.ids.tolist()) - set(self._places):
            return f"{sorted(strangers)} were not asked"
        if len(set(sent.ids.tolist())) < len(sent) or self._answered.intersection(sent.ids.tolist()):
            return "it has been answered before"
        if asked.kind.part or expected is None:
            return ""
        found = {name: tuple(leaf.shape[1:]) for name, leaf in sent.values.items()}
        if not _alike(found, expected.leaves):
            return f"its values are {found}, and {dict(expected.leaves)} were asked for"
        if sent.membership.shape[1] != expected.slots:
            return f"its membership is of {sent.membership.shape[1]} slots, not {expected.slots}"
        return ""

    def _faults(self, sent: Contributions) -> dict[int, str]:
        """Clients whose numbers cannot be used, and why."""
        membership, weights = sent.membership.double(), sent.weights.double()
        ids = sent.ids
        bad = {
            "a value is NaN or infinite": ~self._finite(sent),
            "its weight is negative, NaN or infinite": ~(weights.isfinite() & (weights >= 0)),
            "its membership is not between 0 and 1": ~((membership >= 0) & (membership <= 1)).all(1),
        }
        if self.expected is not None and not self.asked.kind.part:
            most = torch.as_tensor(self.expected.most_weight, dtype=torch.float64)
            most = most[ids] if most.dim() else most.expand(len(ids))
            bad["its weight is more than its data's"] = weights > most
            low, high = self.expected.between
            if math.isfinite(low) or math.isfinite(high):
                bad[f"a value is not between {low:g} and {high:g}"] = ~_within(sent, low, high)
            if self.expected.one_slot:
                bad["it is in more than one slot"] = membership.sum(1) > 1 + 1e-6
            if self.asked.sees is not None and sent.values:
                sees = self.asked.sees[[self._places[client] for client in ids.tolist()]]
                bad["it is in a slot that it was not given"] = (membership * ~sees).any(1)
        found: dict[int, str] = {}
        if not torch.stack(list(bad.values())).any():
            return found
        for why, rows in bad.items():
            for client in ids[rows].tolist():
                found.setdefault(client, why)
        return found

    def _finite(self, sent: Contributions) -> Tensor:
        """(clients,); of large tables whose sums will be looked at, without a look of their own."""
        if self.late and len(sent) == len(self._places) and large_tables(sent):
            return torch.ones(len(sent), dtype=torch.bool)
        return finite(sent)


def _alike(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> bool:
    return found.keys() == expected.keys() and all(
        len(shape) == len(found[name])
        and all(due in (-1, length) for due, length in zip(shape, found[name], strict=True))
        for name, shape in expected.items()
    )


def _ids(up: Up) -> list[int]:
    return [int(client) for client in up.sent.ids.flatten().tolist()]


def _within(sent: Contributions, low: float, high: float) -> Tensor:
    """(clients,)"""
    inside = torch.ones(len(sent), dtype=torch.bool)
    for leaf in sent.values.values():
        inside &= ((leaf >= low) & (leaf <= high)).flatten(1).all(1)
    return inside
