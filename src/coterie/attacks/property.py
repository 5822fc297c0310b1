"""Property inference from published models (paper 000: Kim et al., RAID 2023, after Melis et al. 2019).

The adversary is a client. From the models published in consecutive rounds it has each cluster's aggregate update; from
auxiliary data it makes aggregates with and without the property, trains one random forest for all clusters on them,
and scores the real ones. One score a (round, cluster).

Where the paper is silent or wrong: Algorithm 3 starts every imagined client from the model of the adversary's own
cluster (``w[i]``); the text's "for each cluster" needs ``w[j]``, which is used here. The size of a cluster is unknown
to the adversary, so the number of clients averaged is drawn from ``sizes``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.attacks.base import Suspicions
from coterie.attacks.updates import Features, Imitation, Observed, aggregates, magnitudes
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples
from coterie.errors import require
from coterie.learn.params import Params, map_leaves, stack
from coterie.rng import Rng
from coterie.wire.view import ThreatModel, View


def property_threat(attacker: int = 0) -> ThreatModel:
    return ThreatModel(
        "property inference",
        clients=frozenset({attacker}),
        knows="examples like the victim's, labelled with class and property; the architecture; how clients train",
    )


@dataclass(frozen=True)
class Known:
    """The auxiliary examples as one set: the first ``marked`` of them have the property."""

    examples: Examples
    marked: int

    @staticmethod
    def of(auxiliary: Auxiliary) -> Known:
        has, lacks = auxiliary.with_property, auxiliary.without_property
        both = Examples(torch.cat([has.x, lacks.x]), torch.cat([has.y, lacks.y]), has.classes, has.name)
        return Known(both, len(has))


@dataclass(frozen=True)
class Own:
    """The mean update of the adversary's own clients in a cluster, and how many they are."""

    update: Params
    clients: int


@dataclass(frozen=True)
class PassiveProperty:
    """Algorithm 3, with its parameters' values in Melis et al.'s code where the paper gives none.

    Each round and cluster it imagines ``others`` clients, and ``each`` that are like the victim with and ``each`` that
    are like it without property data. From these it makes ``pairs`` aggregates of either kind, which differ in one
    client. The others' label mixes are drawn from a Dirichlet of concentration ``skew``, because clients are not
    alike; None gives all of them the auxiliary data's mix, as the paper does.
    """

    imitation: Imitation
    threat: ThreatModel
    warmup: int = 0  # rounds that are not looked at
    imagine_every: int = 1  # so many rounds; all are scored
    others: int = 6
    each: int = 3
    pairs: int = 8
    sizes: tuple[int, int] = (2, 5)  # the range from which the number of clients behind an aggregate is drawn
    mix: tuple[float, float] = (0.2, 1.0)  # the range of the property's share in an imagined client's batch
    skew: float | None = 0.5
    trees: int = 100
    least_leaf: int = 5
    most_features: int = 4096  # a leaf of the model
    features: Features = magnitudes  # as published; directions finds more

    def __post_init__(self) -> None:
        low, high = self.sizes
        require(1 <= low <= high, "sizes", self.sizes, "must be a range of whole numbers from 1 up")
        require(
            self.others >= high - 1,
            "others",
            self.others,
            f"must be at least {high - 1}, for the largest cluster in sizes",
        )
        require(self.imagine_every >= 1, "imagine_every", self.imagine_every, "must be at least 1")
        require(self.each >= 1, "each", self.each, "must be at least 1")
        require(self.pairs >= 1, "pairs", self.pairs, "must be at least 1")
        require(0 < self.mix[0] <= self.mix[1] <= 1, "mix", self.mix, "must be a range within (0, 1]")
        require(self.skew is None or self.skew > 0, "skew", self.skew, "must be positive, or None for no skew")

    def infer(self, view: View, auxiliary: Auxiliary, rng: Rng) -> Suspicions:
        return self.infer_by(view, auxiliary, rng, (self.features,))[0]

    def infer_by(self, view: View, auxiliary: Auxiliary, rng: Rng, ways: Sequence[Features]) -> list[Suspicions]:
        """One guess for each way of making features. Imagining, which costs the most, is done once for all."""
        known = Known.of(auxiliary)
        keys: list[Hashable] = []
        seen: list[list[Tensor]] = [[] for _ in ways]
        made: list[list[Tensor]] = [[] for _ in ways]
        for observed in aggregates(view, self.warmup):
            keys.append((observed.round, observed.slot))
            for number, way in enumerate(ways):
                seen[number].append(way(stack([observed.update]), self.most_features))
            if (observed.round - self.warmup) % self.imagine_every:
                continue
            streams = rng.child("round", observed.round, "slot", observed.slot)
            imagined = self.imagine(observed, self.own_update(view, observed), known, streams)
            for number, way in enumerate(ways):
                made[number].append(way(imagined, self.most_features))
        require(
            len(made[0]) > 0,
            "aggregates",
            len(keys),
            f"were seen after {self.warmup} rounds of warm-up; run more rounds",
        )
        has = (torch.arange(2 * self.pairs) < self.pairs).repeat(len(made[0]))
        guesses = []
        for examples, questions in zip(made, seen, strict=True):
            scores = self.learn_and_score(torch.cat(examples), has, torch.cat(questions), rng)
            guesses.append(Suspicions(dict(zip(keys, scores.tolist(), strict=True))))
        return guesses

    def imagine(self, observed: Observed, own: Own | None, known: Known, rng: Rng) -> dict[str, Tensor]:
        """Aggregates (2 pairs, ...) from the observed start, the first half with the property.

        Where the adversary's own upload went into the cluster, it is one of those averaged.
        """
        draws = rng.child("clients").numpy()
        rows = torch.from_numpy(self.rows(known, draws))
        updates = self.imitation.train(observed.start, known.examples, rows, rng.child("training"))
        if own is not None:
            updates = {name: torch.cat([leaf, own.update[name].unsqueeze(0)]) for name, leaf in updates.items()}
        weights = torch.from_numpy(self.averages(draws, own.clients if own else 0)).float()  # (2 pairs, clients)
        return map_leaves(lambda leaf: torch.tensordot(weights, leaf, 1), updates)

    def rows(self, known: Known, draws: np.random.Generator) -> NDArray[np.int64]:
        """(others + 2 each, steps, batch): others, then the likes of the victim without and with property data."""
        labels = known.examples.y.numpy()
        marked, plain = np.split(np.arange(len(labels)), [known.marked])
        shape = (self.imitation.local.steps, self.imitation.local.batch_size)
        parts = [draws.choice(plain, shape, p=self.preference(labels[plain], draws)) for _ in range(self.others)]
        parts += [draws.choice(plain, shape) for _ in range(self.each)]
        for share in draws.uniform(*self.mix, self.each):
            mixed = draws.choice(plain, shape)
            count = max(1, round(share * shape[1]))
            mixed[:, :count] = draws.choice(marked, (shape[0], count))
            parts.append(mixed)
        return np.stack(parts)

    def preference(self, labels: NDArray[np.int64], draws: np.random.Generator) -> NDArray[np.float64] | None:
        """With which probability an imagined other draws each row."""
        if self.skew is None:
            return None
        present, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
        weights = draws.dirichlet(np.full(len(present), self.skew)) + 1e-9
        chances = (weights / counts)[which]
        shares: NDArray[np.float64] = chances / chances.sum()
        return shares

    def averages(self, draws: np.random.Generator, own: int) -> NDArray[np.float64]:
        """(2 pairs, imagined clients [and the adversary's own]): whose mean each imagined aggregate is."""
        weights = np.zeros((2 * self.pairs, self.others + 2 * self.each + (own > 0)))
        for number in range(2 * self.pairs):
            size = int(draws.integers(self.sizes[0], self.sizes[1] + 1))
            strangers = max(size - 1 - own, 0)
            weights[number, draws.choice(self.others, strangers, replace=False)] = 1
            first = self.others + (self.each if number < self.pairs else 0)
            weights[number, first + draws.integers(self.each)] = 1
            if own:
                weights[number, -1] = own
        means: NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
        return means

    def own_update(self, view: View, observed: Observed) -> Own | None:
        """What the adversary's clients sent to this cluster; None if they were elsewhere, or no record of it is open.

        Of its own answer it would also know what it sealed; it goes without, which costs it little among others.
        """
        if not view.has_sent(observed.round):
            return None
        sent = view.sent(observed.round)
        mine = sent.membership[:, observed.slot].nonzero().flatten()
        if not len(mine) or not sent.values:
            return None
        mean = {name: leaf[mine, 0].mean(0) - observed.start[name] for name, leaf in sent.values.items()}
        return Own(mean, len(mine))

    def learn_and_score(self, made: Tensor, has: Tensor, seen: Tensor, rng: Rng) -> NDArray[np.float64]:
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(
            self.trees, min_samples_leaf=self.least_leaf, random_state=rng.child("forest").seed() % 2**32, n_jobs=1
        )
        forest.fit(made.numpy(), has.numpy())
        scores: NDArray[np.float64] = forest.predict_proba(seen.numpy())[:, 1]
        return scores
