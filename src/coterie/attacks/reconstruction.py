"""What a curious server rebuilds from the sums of federated k-means: a record, or a client's mean (paper 002).

The paper adds noise to single messages and attacks those, whatever the protocol does. Here the attack reads the
protocol as it ran: single messages where the server is sent them in the open, else the published sum.

Guesses and truth are measured from the published centre. About the origin, the centre alone, which everybody knows,
already looks much like any of its points.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.data.auxiliary import Auxiliary
from coterie.errors import NotPermitted, require
from coterie.learn.clusters.clipping import RecordClip
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import ORIGIN, Unit, statistics, unscaled
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View

REST, OTHERS = "rest of the client", "other clients"
"""Parts of the auxiliary data: the target client's other records, and everybody else's."""

RESULT, LOCAL = "result", "local"
CURIOUS_SERVER = ThreatModel("curious server", server=True, knows="all other records of the client")


@dataclass(frozen=True)
class Rebuilt:
    """A vector for each question, and the public point from which it is measured."""

    vectors: Mapping[Hashable, Tensor]
    origins: Mapping[Hashable, Tensor]


@dataclass(frozen=True)
class Seen:
    """What the server has of one request: sums and counts in the data's own measure, and what it had published."""

    sums: Tensor  # (clusters, features)
    counts: Tensor  # (clusters,)
    public: Mapping[str, Tensor]
    single: bool  # whether it is one client's message, and not the sum over all


def seen(view: View, kind: str, client: int, unit: Unit) -> Seen:
    """The client's message, if the server can read it; else the sum that was published with the result."""
    rounds = view.rounds(kind)
    require(len(rounds) == 1, "kind", kind, "was not asked in this run; name one of its steps, such as 'lloyd 1'")
    public = {name: leaf[0] for name, leaf in view.received(rounds[0], kind).values.items()}
    sent = view.sent(rounds[0], kind)
    if sent.values:
        if client not in sent.ids.tolist():
            raise NotPermitted(
                f"{view.threat.name} sees nothing that client {client} sent; it sees {sent.ids.tolist()}"
            )
        row = sent.ids.tolist().index(client)
        leaves = {name: leaf[row, 0] for name, leaf in sent.values.items()}
    else:
        published = view.received(view.last(RESULT), RESULT).values
        leaves = {name: published[f"{kind}/{name}"][0] for name in ("sums", "counts")}
    plain = {name: unscaled(name, leaves[name], public, unit) for name in ("sums", "counts")}
    return Seen(plain["sums"], plain["counts"], public, bool(sent.values))


def _less_what_is_known(found: Seen, known: list[Tensor], kind: str, unit: Unit) -> Seen:
    """Take off what these records (one tensor a client) are known to add."""
    parts = [part for part in known if len(part)]
    if not parts:
        return found
    theirs = {name: leaf.sum(0) for name, leaf in statistics(kind, found.public, Points.of(parts), unit).items()}
    sums = found.sums - unscaled("sums", theirs["sums"], found.public, unit)
    counts = found.counts - unscaled("counts", theirs["counts"], found.public, unit)
    return Seen(sums, counts, found.public, found.single)


def _points(auxiliary: Auxiliary, *parts: str) -> list[Tensor]:
    return [auxiliary.part(name).x.flatten(1) for name in parts if name in auxiliary.parts]


def last_move(view: View) -> str:
    """The last request whose sums move centres: where noise is planned, the one that has the least of it."""
    published = view.received(view.last(RESULT), RESULT).values
    moves = [name.removesuffix("/sums") for name in published if name.endswith("/sums")]
    require(len(moves) > 0, "requests for sums", 0, "were made in this run; attack what else clients sent")
    return max(moves, key=view.first)


@dataclass(frozen=True)
class RecordReconstruction:
    """Section 5.2.1: subtract what all other records add; the cluster whose count rises most holds the record.

    Where only the sum is seen, the attacker is given all other clients' records as well: the strongest there is.
    """

    client: int
    kind: str = "lloyd 1"
    unit: Unit = RecordClip
    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Rebuilt:
        found = seen(view, self.kind, self.client, self.unit)
        known = _points(auxiliary, REST) if found.single else _points(auxiliary, REST, OTHERS)
        left = _less_what_is_known(found, known, self.kind, self.unit)
        cluster = int(left.counts.argmax())
        centre = found.public["centres"][cluster]
        vector = left.sums[cluster] - left.counts[cluster] * centre if ORIGIN in found.public else left.sums[cluster]
        return Rebuilt({self.client: vector}, {self.client: centre})


@dataclass(frozen=True)
class ClientReconstruction:
    """Section 5.2.2: a client's mean, as how far it lies from what the centres of its points would make it.

    The others' clients are known where only the sum is seen, ``others`` one tensor a client.
    """

    client: int
    kind: str = "lloyd 1"
    unit: Unit = RecordClip
    others: tuple[Tensor, ...] = field(default=(), repr=False)
    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Rebuilt:
        found = seen(view, self.kind, self.client, self.unit)
        left = found if found.single else _less_what_is_known(found, list(self.others), self.kind, self.unit)
        total = left.sums.sum(0)
        return Rebuilt({self.client: total}, {self.client: torch.zeros_like(total)})


@dataclass(frozen=True)
class MeansReconstruction:
    """The same on k-FED, whose clients send the means of their own clusters, and how many points each stands for.

    Together they are the sum of all the client's points: less the records that are known, the one that is not.
    """

    client: int
    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Rebuilt:
        sent = view.sent(view.first(LOCAL), LOCAL)
        row = sent.ids.tolist().index(self.client)
        weights = sent.values["weights"][row, 0].double()
        total = (sent.values["centres"][row, 0].double() * weights.unsqueeze(1)).sum(0)
        known = sum((part.double().sum(0) for part in _points(auxiliary, REST)), torch.zeros_like(total))
        guess = (total - known).float()
        centres = view.received(view.last(RESULT), RESULT).values["centres"][0]
        origin = centres[int((centres - guess).square().sum(1).argmin())]
        return Rebuilt({self.client: guess - origin}, {self.client: origin})
