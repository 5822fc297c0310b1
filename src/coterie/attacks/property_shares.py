"""How much of a property does a client hold? Asked of clients as they are, by a server that sees what they send.

The adversary holds examples of its own on which the property is marked. It imagines clients that begin with the very
models that were published, each with a label mix and a share of the property of its own, learns by ridge regression
what a share does to an update, and reads every real update so (after Melis et al. 2019; Suri and Evans 2022 call the
question distribution inference). Such shadow federations of one round begin where the real one stood: that is worth
more than shadows from the start, and clusters need not be matched.

Two numbers a client: the share that it *holds*, and how much that lies *beyond* what its labels would lead one to
expect, since whoever recognises labels knows half of what goes with them. Several marks are asked about at once:
imagined clients differ in all of them, independently. Where uploads cannot be read, a client is taken to hold what the
clusters move by that it may be in (``placing``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.attacks.placing import Placing
from coterie.attacks.updates import Imitation, aggregates, cut, directions
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.errors import require
from coterie.learn.params import Params, pick, stack, subtract
from coterie.rng import Rng
from coterie.wire.messages import TRAIN
from coterie.wire.view import ThreatModel, View

KNOWS = "examples like the clients', labelled with class and property; the architecture; how clients train"
CURIOUS_SERVER = ThreatModel("curious server", server=True, knows=KNOWS)

Floats = NDArray[np.float64]
RIDGES = np.logspace(-3, 4, 15)  # times the mean of the squared singular values


@dataclass(frozen=True)
class Shares:
    """By client and mark: the share of its rows that have it, and that less what its labels lead one to expect."""

    held: Mapping[int, Mapping[str, float]]
    beyond: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class Moved:
    """A published model, and how it was moved in one round: by client, or by all of its cluster."""

    round: int
    slot: int
    start: Params
    updates: Mapping[int, Params]


@dataclass(frozen=True)
class PropertyShares:
    """``marks`` are tags of the auxiliary examples, 1 where an example has it."""

    imitation: Imitation
    marks: tuple[str, ...]
    rows: int  # that a client holds, about
    rounds: tuple[int, ...] = ()  # those that it looks at; all, if empty
    imagined: int = 96  # clients, for each published model
    skew: float = 1.0  # the Dirichlet concentration of their label mixes
    tilt: float = 1.5  # the deviation of the log odds of a mark among them
    most_features: int = 1024
    threat: ThreatModel = field(default=CURIOUS_SERVER)

    def __post_init__(self) -> None:
        require(len(self.marks) > 0, "marks", self.marks, "must be at least one tag")
        require(self.imagined >= 8, "imagined", self.imagined, "must be at least 8: a regression is made of them")
        require(self.rows >= 1, "rows", self.rows, "must be at least 1")

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Shares:
        view.last(TRAIN)  # raises where nothing at all was seen
        known = Marked.of(auxiliary.whole(), self.marks)
        clients = self._read(self._of_clients(view), known, rng)
        return self._told(clients or self._by_clusters(view, known, rng))

    def _by_clusters(self, view: View, known: Marked, rng: Rng) -> dict[int, Floats]:
        """Of each client, what clusters were read to hold, weighed by how likely it is in each."""
        clusters = self._read(self._of_clusters(view), known, rng)
        if not clusters or not any(view.has_sent(round) for round in view.rounds()):
            return {}
        found = {}
        for client, chances in Placing({}, self.threat).beliefs(view, rng.child("placing")).items():
            likely = {cluster: chance for cluster, chance in chances.items() if cluster in clusters}
            if total := sum(likely.values()):
                found[client] = sum((clusters[one] * chance / total for one, chance in likely.items()), np.zeros(()))
        return found

    def _read(self, moved: Iterable[Moved], known: Marked, rng: Rng) -> dict[int, Floats]:
        """By client or cluster, (held and beyond, for each mark), from the mean of what it moved over rounds."""
        by_slot: dict[int, list[Moved]] = {}
        for one in moved:
            by_slot.setdefault(one.slot, []).append(one)
        found: dict[int, list[Floats]] = {}
        for slot, rounds in by_slot.items():
            streams = rng.child("slot", slot)
            pools = known.pools(self.imagined, self.rows, self.skew, self.tilt, streams.child("clients").numpy())
            learnt = sum(self._imagined(one, pools, known, streams.child("round", one.round)) for one in rounds)
            seen: dict[int, list[Floats]] = {}
            for one in rounds:
                for who, row in zip(one.updates, self._features(stack([*one.updates.values()])), strict=True):
                    seen.setdefault(who, []).append(row)
            means = np.stack([np.mean(rows, axis=0) for rows in seen.values()])
            read = ridge(np.asarray(learnt) / len(rounds), known.shares(pools), means)
            for (who, rows), told in zip(seen.items(), read, strict=True):
                found.setdefault(who, []).extend([told] * len(rows))  # who moves counts where it was, as often
        return {who: np.mean(rows, axis=0) for who, rows in found.items()}

    def _imagined(self, one: Moved, pools: NDArray[np.int64], known: Marked, rng: Rng) -> Floats:
        """(imagined, features): how these clients would have moved the model that was published."""
        rows, (_, usual) = self._batches(pools, rng), self.imitation.local.shape(pools.shape[1])
        made = self.imitation.train(one.start, known.examples, rows, rng, one.round, usual)
        return self._features(made)

    def _features(self, updates: Params) -> Floats:
        return np.asarray(directions(updates, self.most_features).double().numpy())

    def _batches(self, pools: NDArray[np.int64], rng: Rng) -> Tensor:
        """(imagined, steps, batch): rows of each one's own; a negative one is none."""
        draws, (steps, _) = rng.child("batches").numpy(), self.imitation.local.shape(pools.shape[1])
        sizes = self.imitation.batch_sizes(pools.shape[1], (len(pools), steps), draws)
        width = int(sizes.max())
        places = draws.integers(pools.shape[1], size=(len(pools), steps * width))
        return cut(np.take_along_axis(pools, places, 1).reshape(len(pools), steps, width), sizes)

    def _looked_at(self, round: int) -> bool:
        return not self.rounds or round in self.rounds

    def _of_clients(self, view: View) -> Iterator[Moved]:
        for round in filter(self._looked_at, view.rounds()):
            sent = view.sent(round) if view.has_sent(round) else None
            models = view.received(round).values
            if sent is None or not sent.values or not models:  # sealed
                continue
            slots = sent.membership.argmax(1)
            for slot in slots.unique().tolist():
                start = pick(models, slot)
                updates = {}
                for position in (slots == slot).nonzero().flatten().tolist():
                    own = {name: leaf[position, slot if leaf.shape[1] > 1 else 0] for name, leaf in sent.values.items()}
                    updates[int(sent.ids[position])] = subtract(own, start)
                yield Moved(round, slot, start, updates)

    def _of_clusters(self, view: View) -> Iterator[Moved]:
        for one in aggregates(view):
            if self._looked_at(one.round):
                yield Moved(one.round, one.slot, one.start, {one.slot: one.update})

    def _told(self, found: Mapping[int, Floats]) -> Shares:
        held, beyond = (
            {who: dict(zip(self.marks, row[part::2].tolist(), strict=True)) for who, row in found.items()}
            for part in range(2)
        )
        return Shares(held, beyond)


@dataclass(frozen=True)
class Marked:
    """The auxiliary examples, which of them have which mark, and how often each class does."""

    examples: Examples
    has: Floats  # (examples, marks)
    rates: Floats  # (classes, marks)

    @staticmethod
    def of(examples: Examples, marks: tuple[str, ...]) -> Marked:
        has = torch.stack([examples.tags[mark] != 0 for mark in marks], 1).double().numpy()
        return Marked(examples, has, rates_by_class(examples.y.numpy(), has, examples.classes))

    def pools(self, count: int, size: int, skew: float, tilt: float, draws: np.random.Generator) -> NDArray[np.int64]:
        """(count, size) rows: each imagined client's own, by a label mix and a tilt for each mark."""
        labels = self.examples.y.numpy()
        present, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
        mixes = draws.dirichlet(np.full(len(present), skew), count) + 1e-9  # (count, classes)
        weights = (mixes / counts)[:, which] * np.exp(draws.normal(0, tilt, (count, self.has.shape[1])) @ self.has.T)
        ends = np.cumsum(weights / weights.sum(1, keepdims=True), 1)
        at = draws.random((count, size))
        return np.stack(
            [np.searchsorted(end, row).clip(max=len(labels) - 1) for end, row in zip(ends, at, strict=True)]
        )

    def shares(self, pools: NDArray[np.int64]) -> Floats:
        """(imagined, 2 marks): held and beyond, mark by mark."""
        held = self.has[pools].mean(1)
        expected = self.rates[self.examples.y.numpy()[pools]].mean(1)
        return np.stack([held, held - expected], 2).reshape(len(pools), -1)


def rates_by_class(labels: NDArray[np.int64], has: Floats, classes: int) -> Floats:
    """(classes, marks): the share of each class's examples that have each mark; 0 for a class without any."""
    counts = np.bincount(labels, minlength=classes)
    sums = np.stack([np.bincount(labels, column, classes) for column in has.T], 1)
    return sums / np.maximum(counts, 1)[:, None]


def ridge(learnt: Floats, targets: Floats, seen: Floats) -> Floats:
    """(seen, targets): what is read by a ridge regression whose strength the examples left out one by one choose."""
    centre, spread = learnt.mean(0), learnt.std(0) + 1e-12
    made, real = (learnt - centre) / spread, (seen - centre) / spread
    values, left = np.linalg.eigh(made @ made.T)  # the examples are fewer than the features
    values = values.clip(min=0)
    middle = targets.mean(0)
    inside, across = left.T @ (targets - middle), real @ made.T @ left
    best, found = np.full(targets.shape[1], np.inf), np.zeros((len(seen), targets.shape[1]))
    for strength in RIDGES * values.mean():
        kept = values / (values + strength)
        hats = (left**2 * kept).sum(1) + 1 / len(left)
        missed = (targets - middle - (left * kept) @ inside) / np.maximum(1 - hats, 1e-6)[:, None]
        errors = (missed**2).sum(0)
        found = np.where(errors < best, (across / (values + strength)) @ inside + middle, found)
        best = np.minimum(errors, best)
    return found
