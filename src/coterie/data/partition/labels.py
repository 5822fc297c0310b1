"""Partitions by label: alike for all, in label sets, or skewed by Dirichlet draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition.dealing import (
    Partition,
    Rows,
    apportion,
    hold_out,
    in_random_order,
    is_split,
    mirror,
    pool,
    rank_within,
    require_alpha,
    require_clients,
    require_share,
    shards,
    shared,
    strata,
    unknown_groups,
)
from coterie.errors import require, require_used
from coterie.rng import Rng


@dataclass(frozen=True)
class Iid(Partition):
    """Every client draws from the same distribution; one true cluster.

    ``alpha`` skews quantities: sizes are in the proportions of a symmetric Dirichlet draw (the smaller, the more
    unequal), and nobody has fewer than ``minimum`` rows.
    """

    clients: int
    test_share: float = 0.2
    alpha: float | None = None
    minimum: int = 2

    def split(self, examples: Examples, rng: Rng) -> Federation:
        require_share("test_share", self.test_share, 0.9)
        train_rows, test_rows = pool(examples, self.test_share, rng)
        require_clients(self.clients, len(train_rows))
        train = shards(train_rows, self.owners(len(train_rows), rng), self.clients)
        test = mirror(train, strata(examples), test_rows, rng)
        return Federation(examples, train, test, groups=torch.zeros(self.clients, dtype=torch.int64))

    def owners(self, rows: int, rng: Rng) -> Rows:
        if self.alpha is None:
            require_used("alpha=None, where all have as many", minimum=(self.minimum, Iid.minimum))
            return np.arange(rows) % self.clients
        require_alpha("alpha", self.alpha, "leave it out for equal sizes")
        require(
            0 <= self.minimum * self.clients <= rows,
            "minimum",
            self.minimum,
            f"must be at least 0, and {self.clients} clients x minimum at most {rows} rows",
        )
        weights = rng.child("sizes").numpy().gamma(self.alpha, size=self.clients) + 1e-300
        return top_up(np.repeat(np.arange(self.clients), apportion(rows, weights)), self.clients, self.minimum)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each label is spread over the clients in proportions drawn from a symmetric Dirichlet (paper 000, 4.1.1).

    The smaller ``alpha``, the fewer labels a client holds. Small alphas leave clients empty: clients with fewer
    than ``minimum`` rows then take random rows from whoever holds the most at that moment.
    """

    clients: int
    alpha: float = 0.5
    minimum: int = 2
    test_share: float = 0.2

    def split(self, examples: Examples, rng: Rng) -> Federation:
        require_share("test_share", self.test_share, 0.9)
        y = examples.classes_for("partition 'dirichlet'").numpy()
        rows = pool(examples, 0.0, rng)[0]
        require_clients(self.clients, len(rows))
        owner = skew(y[rows], self.clients, self.alpha, self.minimum, rng)
        parts = shards(rows, owner, self.clients)
        if is_split(examples):
            train, test = parts, mirror(parts, y, pool(examples, 0.0, rng)[1], rng)
        else:
            train, test = hold_out(parts, self.test_share, rng)
        return Federation(examples, train, test, groups=unknown_groups(self.clients))


def skew(labels: NDArray[np.int64], clients: int, alpha: float, minimum: int, rng: Rng) -> Rows:
    """A client for each of the labels; the rows behind them must be in random order."""
    require_alpha("alpha", alpha, "for no skew at all use Iid")
    require(
        0 <= minimum * clients <= len(labels),
        "minimum",
        minimum,
        f"must be at least 0, and {clients} clients x minimum at most {len(labels)} rows",
    )
    draw = rng.child("dirichlet").numpy()
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        # Gamma draws, scaled, are a Dirichlet draw; the floor keeps an all-underflow draw of a tiny alpha valid.
        weights = draw.gamma(alpha, size=clients) + 1e-300
        where = np.flatnonzero(labels == label)
        owner[where] = np.repeat(np.arange(clients), apportion(len(where), weights))
    return top_up(owner, clients, minimum)


def top_up(owner: Rows, clients: int, minimum: int) -> Rows:
    """Moves rows from the largest clients until nobody has fewer than ``minimum``."""
    sizes = np.bincount(owner, minlength=clients)
    lack = np.maximum(minimum - sizes, 0)
    short = int(lack.sum())
    if not short:
        return owner
    # Cutting everyone down to one level frees the same rows as taking one at a time from the largest.
    low, high = minimum, int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= short else (low, level - 1)
    spare = np.flatnonzero(rank_within(owner) >= low)
    spare = spare[np.argsort(-rank_within(owner)[spare], kind="stable")][:short]
    moved = owner.copy()
    moved[spare] = np.repeat(np.arange(clients), lack)
    return moved


@dataclass(frozen=True)
class LabelSets(Partition):
    """Clusters of clients that hold different labels (MingledPie, Section VI-A and Tables III and VII).

    ``sets`` is the number of label sets, cut at random, or the sets themselves. ``sizes`` (smallest, largest) makes
    them unequal; the clients are then shared out in proportion to the sets' sizes, as the paper does. ``iid_rate``
    is the share of a client's examples that come from all labels instead of its own set, for all clients or one for
    each. A client's test rows follow its own mix of labels; clients of one set and rate share them. Examples whose
    label is in no set are left out. Clients come in random order, so that no number tells a group, unless
    ``shuffled=False``.
    """

    clients: int
    sets: int | tuple[tuple[int, ...], ...] = 5
    sizes: tuple[int, int] | None = None
    iid_rate: float | tuple[float, ...] = 0.0
    samples: int | None = None  # at most so many training examples a client
    test_share: float = 0.2
    shuffled: bool = True

    def split(self, examples: Examples, rng: Rng) -> Federation:
        require_share("test_share", self.test_share, 0.9)
        y = examples.classes_for("partition 'label_sets'").numpy()
        label_sets = self.label_sets(examples, rng)
        set_of = np.full(examples.classes, -1)
        for number, labels in enumerate(label_sets):
            set_of[list(labels)] = number
        train_rows, test_rows = (rows[set_of[y[rows]] >= 0] for rows in pool(examples, self.test_share, rng))
        require_clients(self.clients, len(train_rows))
        require(
            self.clients >= len(label_sets),
            "clients",
            self.clients,
            f"must be at least one a label set ({len(label_sets)})",
        )
        groups = self.client_groups(label_sets)
        groups = in_random_order(groups, rng) if self.shuffled else groups
        rates = self.rates()
        owner, rows = self.deal(train_rows, set_of[y[train_rows]], groups, rates, rng)
        test = self.tests(test_rows, set_of[y[test_rows]], groups, rates)
        return Federation(examples, shards(rows, owner, self.clients), test, groups=torch.from_numpy(groups))

    def label_sets(self, examples: Examples, rng: Rng) -> tuple[tuple[int, ...], ...]:
        present = np.unique(examples.y.numpy())
        if not isinstance(self.sets, int):
            given = [label for labels in self.sets for label in labels]
            for label in given:
                require(
                    label in present, "sets: label", label, f"has no examples; {examples.name} has {present.tolist()}"
                )
            require(len(given) == len(set(given)), "sets", self.sets, "must not name a label twice")
            require(all(self.sets) and len(self.sets) > 0, "sets", self.sets, "must not hold an empty set")
            return self.sets
        require(
            1 <= self.sets <= len(present),
            "sets",
            self.sets,
            f"must be 1 to {len(present)}, the number of labels there are",
        )
        draw = rng.child("label sets").numpy()
        cuts = np.cumsum(self.set_sizes(len(present), draw))[:-1]
        return tuple(tuple(sorted(map(int, part))) for part in np.split(draw.permutation(present), cuts))

    def set_sizes(self, labels: int, draw: np.random.Generator) -> Rows:
        count = int(self.sets) if isinstance(self.sets, int) else len(self.sets)
        if self.sizes is None:
            return apportion(labels, np.ones(count))
        low, high = self.sizes
        require(
            1 <= low <= high and count * low <= labels <= count * high,
            "sizes",
            self.sizes,
            f"cannot cut {labels} labels into {count} sets of {low} to {high}; widen the range",
        )
        sizes = np.full(count, low)
        while sizes.sum() < labels:  # at most as many turns as there are labels
            sizes[draw.choice(np.flatnonzero(sizes < high))] += 1
        return sizes

    def client_groups(self, label_sets: tuple[tuple[int, ...], ...]) -> Rows:
        """The label set of each client; every set has one client at least."""
        weights = np.array([len(labels) for labels in label_sets], float)
        counts = apportion(self.clients, weights)
        if counts.min() == 0:
            counts = 1 + apportion(self.clients - len(weights), weights)
        return np.repeat(np.arange(len(weights)), counts)

    def rates(self) -> NDArray[np.float64]:
        given = np.asarray(self.iid_rate, float)
        require(
            given.ndim == 0 or len(given) == self.clients,
            "len(iid_rate)",
            given.size,
            f"must be a single rate or one a client ({self.clients})",
        )
        for rate in np.unique(given):
            require_share("iid_rate", float(rate))
        return np.broadcast_to(given, (self.clients,))

    def deal(
        self, rows: Rows, set_of_row: Rows, groups: Rows, rates: NDArray[np.float64], rng: Rng
    ) -> tuple[Rows, Rows]:
        """Owner and row of each training example.

        The share ``mean(rates)`` of all rows forms a pot, dealt in proportion to the clients' rates; the rest
        stays with its label set and is dealt there in proportion to 1 - rate. So nothing is dealt twice, and with
        one rate for all, every client has that share from the pot, to rounding.
        """
        in_pot = rng.child("pot").numpy().permutation(len(rows)) < round(float(rates.mean()) * len(rows))
        owner = np.full(len(rows), -1)
        due = np.full(len(groups), len(rows) / len(groups))  # how many rows each client should come to
        for group in range(int(groups.max()) + 1):
            members = np.flatnonzero(groups == group)
            own = np.flatnonzero(~in_pot & (set_of_row == group))
            keen = 1 - rates[members]
            if keen.sum() == 0:  # nobody here keeps to the set: its own rows stay out, or the pot would lean
                continue
            require(
                len(own) >= len(members),
                f"clients of label set {group}",
                len(members),
                f"share only {len(own)} examples; take fewer clients or larger sets",
            )
            owner[own] = np.repeat(members, apportion(len(own), keen))
            due[members] = len(own) / keen.sum()
        if in_pot.any():
            counts = apportion(int(in_pot.sum()), rates * due)
            owner[in_pot] = np.repeat(np.arange(len(groups)), counts)
        dealt = owner >= 0
        return self.limited(owner[dealt], rows[dealt], in_pot[dealt])

    def limited(self, owner: Rows, rows: Rows, in_pot: NDArray[np.bool_]) -> tuple[Rows, Rows]:
        if self.samples is None:
            return owner, rows
        require(self.samples >= 1, "samples", self.samples, "must be at least 1")
        # Both kinds are cut in the same proportion, so that the rate stays.
        scale = np.minimum(self.samples / np.maximum(np.bincount(owner, minlength=self.clients), 1), 1)
        keep = np.zeros(len(rows), bool)
        for kind in (np.flatnonzero(in_pot), np.flatnonzero(~in_pot)):
            have = np.bincount(owner[kind], minlength=self.clients)
            keep[kind] = rank_within(owner[kind]) < np.floor(have * scale + 0.5)[owner[kind]]
        return owner[keep], rows[keep]

    def tests(self, rows: Rows, set_of_row: Rows, groups: Rows, rates: NDArray[np.float64]) -> Shards:
        """For a set with T test rows and rate r: r T rows of all labels, and (1 - r) T others of its own."""
        kinds, kind_of = np.unique(np.stack([groups, rates], 1), axis=0, return_inverse=True)
        by_kind = {}
        for number, (group, rate) in enumerate(kinds):
            own = rows[set_of_row == group]
            pot = rows[: round(rate * len(own))]
            by_kind[number] = np.concatenate([pot, own[~np.isin(own, pot)][: len(own) - len(pot)]])
        return shared(by_kind, kind_of.reshape(-1))
