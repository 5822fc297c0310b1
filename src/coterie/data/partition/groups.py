"""Groups of clients that see the same examples changed in different ways: turned, or under other labels."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Examples, Federation
from coterie.data.partition.dealing import (
    Partition,
    Rows,
    Weights,
    apportion,
    in_random_order,
    pool,
    rank_within,
    require_alpha,
    require_clients,
    require_share,
    shards,
)
from coterie.data.partition.features import rotate
from coterie.errors import require
from coterie.rng import Rng


@dataclass(frozen=True)
class Grouped(Partition):
    """What rotations and label permutations share: each group has its own version of the examples.

    ``members`` says how many clients each group has; without it they have equal numbers. Clients come in random order,
    so that no number tells a group, unless ``shuffled=False``.

    Each row is dealt to one client and changed once, so the data keeps its size. With ``full`` every version has all
    rows, each version's dealt to its own clients, as in Ghosh et al.'s code; ``samples`` are then a client's, and the
    test rows are all of its version's. With ``mixing`` a client's rows come from all versions, in shares drawn from a
    symmetric Dirichlet of that alpha (a mixture of distributions, which FedEM is made for); its group is the version of
    which it has most.
    """

    clients: int
    members: tuple[int, ...] | None = field(default=None, kw_only=True)
    full: bool = field(default=False, kw_only=True)
    samples: int | None = field(default=None, kw_only=True)  # training rows a client, with ``full``
    mixing: float | None = field(default=None, kw_only=True)
    shuffled: bool = field(default=True, kw_only=True)
    test_share: float = field(default=0.2, kw_only=True)

    @abstractmethod
    def versions(self, examples: Examples) -> int:
        """How many there are; an error if the examples cannot be changed so."""

    @abstractmethod
    def changed(self, part: Examples, version: int, rng: Rng) -> tuple[Tensor, Tensor]:
        """The part's x and y in this version."""

    def split(self, examples: Examples, rng: Rng) -> Federation:
        require_share("test_share", self.test_share, 0.9)
        if self.mixing is not None:
            require_alpha("mixing", self.mixing, "leave it out for none")
        require(
            self.samples is None or (self.full and self.samples >= 1),
            "samples",
            self.samples,
            "must be at least 1, and needs full=True; without, all rows are dealt",
        )
        versions = self.versions(examples)
        train, test = pool(examples, self.test_share, rng)
        require_clients(self.clients, len(train) * (versions if self.full else 1))
        groups = self.client_groups(versions, rng)
        weights = np.eye(versions)[groups]  # (clients, versions)
        if self.mixing is not None:
            weights = rng.child("mixing").numpy().dirichlet([self.mixing] * versions, self.clients)
            groups = weights.argmax(1)
        rows, owner, version = (self._dealt_full if self.full else self._dealt)(train, weights, rng)
        tested = self._tests(test, groups, weights)
        whole, places = self._made(examples, (rows, version), tested, rng)
        return Federation(
            whole,
            shards(places[: len(rows)], owner, self.clients),
            shards(places[len(rows) :], np.repeat(np.arange(self.clients), tested[2]), self.clients),
            groups=torch.from_numpy(groups),
        )

    def client_groups(self, versions: int, rng: Rng) -> Rows:
        members = self.members
        if members is None:
            require(self.clients >= versions, "clients", self.clients, f"must be one a group ({versions})")
            members = tuple(apportion(self.clients, np.ones(versions)))
        require(
            len(members) == versions and sum(members) == self.clients and min(members) >= 1,
            "members",
            members,
            f"must be one number a group ({versions}), each at least 1, {self.clients} in all",
        )
        groups = np.repeat(np.arange(versions), members)
        return in_random_order(groups, rng) if self.shuffled else groups

    def _dealt(self, train: Rows, weights: Weights, rng: Rng) -> tuple[Rows, Rows, Rows]:
        """Row, owner and version of each training example; every row once."""
        owner = np.arange(len(train)) % self.clients
        sizes = np.bincount(owner, minlength=self.clients)
        ends = np.stack([apportion(size, share).cumsum() for size, share in zip(sizes, weights, strict=True)])
        version = (rank_within(owner)[:, None] >= ends[owner]).sum(1)  # a client's first rows are of version 0, ...
        return train, owner, version

    def _dealt_full(self, train: Rows, weights: Weights, rng: Rng) -> tuple[Rows, Rows, Rows]:
        """Likewise; every row once in each version, as far as it is wanted."""
        most = int(len(train) / weights.sum(0).max())
        each = most if self.samples is None else self.samples
        require(
            1 <= each <= most,
            "samples",
            each,
            f"must be at most {most}: {len(train)} rows a version are dealt to its clients; take fewer clients",
        )
        counts = np.stack([apportion(each, share) for share in weights])  # (clients, versions)
        rows, owners, versions = [], [], []
        for version, column in enumerate(counts.T):
            order = rng.child("full", version).numpy().permutation(train)
            while len(order) < column.sum():  # rounding may ask for a few more than there are
                order = np.r_[order, order]
            rows.append(order[: column.sum()])
            owners.append(np.repeat(np.arange(self.clients), column))
            versions.append(np.full(column.sum(), version))
        return np.concatenate(rows), np.concatenate(owners), np.concatenate(versions)

    def _tests(self, test: Rows, groups: Rows, weights: Weights) -> tuple[Rows, Rows, Rows]:
        """Row and version of each client's test examples, and how many each has; clients of a version share them."""
        versions = weights.shape[1]
        share = np.bincount(groups, minlength=versions).astype(float) if self.mixing is None else np.ones(versions)
        parts = [test] * versions if self.full else np.split(test, apportion(len(test), share).cumsum()[:-1])
        rows, kinds, sizes = [], [], []
        for client in range(self.clients):
            if self.mixing is None:
                counts = np.where(np.arange(versions) == groups[client], len(parts[groups[client]]), 0)
            else:
                counts = apportion(min(map(len, parts)), weights[client])
            rows += [part[:count] for part, count in zip(parts, counts, strict=True)]
            kinds.append(np.repeat(np.arange(versions), counts))
            sizes.append(int(counts.sum()))
        return np.concatenate(rows), np.concatenate(kinds), np.array(sizes)

    def _made(
        self, examples: Examples, trained: tuple[Rows, Rows], tested: tuple[Rows, Rows, Rows], rng: Rng
    ) -> tuple[Examples, Rows]:
        """The examples in all versions that are used, and where each of the dealt ones is among them.

        Without ``full`` a row has one version at most, and stays where it was.
        """
        rows, kinds = np.r_[trained[0], tested[0]], np.r_[trained[1], tested[1]]
        if self.full:
            used = np.zeros((int(kinds.max()) + 1, len(examples)), bool)
            used[kinds, rows] = True
            places = used.cumsum().reshape(used.shape)[kinds, rows] - 1
            kind_of, kept = np.nonzero(used)
            whole = examples.take(torch.from_numpy(kept))
        else:
            kind_of = np.full(len(examples), -1)
            kind_of[rows] = kinds
            whole, places = examples, rows
        x, y = whole.x.clone(), whole.y.clone()
        for version in np.unique(kinds).tolist():
            here = torch.from_numpy(np.flatnonzero(kind_of == version))
            x[here], y[here] = self.changed(whole.take(here), version, rng.child("version", version))
        again = "records that are dealt once in every version" if self.full and len(np.unique(kinds)) > 1 else ""
        return replace(whole, x=x, y=y, elsewhere=again or whole.elsewhere), places


@dataclass(frozen=True)
class Rotation(Grouped):
    """Groups of clients that see the pictures turned by different angles (paper 004, Section V; Ghosh et al.).

    Angles are in degrees clockwise. Ghosh et al.'s federation, every picture in every angle, is ``full=True`` with
    their m ``clients`` and n ``samples``.
    """

    angles: tuple[float, ...] = (0, 90, 180, 270)

    def versions(self, examples: Examples) -> int:
        require(examples.x.dim() == 4, f"{examples.name}.x", tuple(examples.x.shape), "must be pictures (n, c, h, w)")
        require(len(self.angles) >= 1, "angles", self.angles, "must not be empty")
        return len(self.angles)

    def changed(self, part: Examples, version: int, rng: Rng) -> tuple[Tensor, Tensor]:
        return rotate(part.x, self.angles[version]), part.y


@dataclass(frozen=True)
class LabelPermutations(Grouped):
    """Groups of clients that give the same things different names (Sattler et al., Section V).

    ``permutations`` is how many groups, the first with the labels as they are and the others with random ones, or the
    permutations themselves: label i becomes the i-th entry.
    """

    permutations: int | tuple[tuple[int, ...], ...] = 4

    def versions(self, examples: Examples) -> int:
        examples.classes_for("partition 'label_permutations'")
        given = self.permutations
        if isinstance(given, int):
            require(given >= 1, "permutations", given, "must be at least 1")
            return given
        for labels in given:
            right = sorted(labels) == list(range(examples.classes))
            require(right, "permutations", labels, f"must have each of 0..{examples.classes - 1} once")
        require(len(given) >= 1, "permutations", given, "must not be empty")
        return len(given)

    def changed(self, part: Examples, version: int, rng: Rng) -> tuple[Tensor, Tensor]:
        if not isinstance(self.permutations, int):
            return part.x, torch.tensor(self.permutations[version])[part.y]
        drawn = torch.randperm(part.classes, generator=rng.child("labels").torch())
        return part.x, part.y if version == 0 else drawn[part.y]
