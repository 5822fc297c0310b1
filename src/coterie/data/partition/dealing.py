"""How rows are dealt to clients: the steps that partitions share. All of it in whole arrays, never client by client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Examples, Federation, Shards
from coterie.data.sources.base import SPLIT, TEST
from coterie.errors import nearest, require
from coterie.rng import Rng

Rows = NDArray[np.int64]
Weights = NDArray[np.float64]


class Partition(ABC):
    """A way of spreading examples over clients.

    Where the examples carry a published test split (tag ``split``), clients train on its training part and are
    tested on its test part; elsewhere a seeded share of the rows is held out. A row of the training part goes to
    one client at most.
    """

    @abstractmethod
    def split(self, examples: Examples, rng: Rng) -> Federation: ...


def require_clients(clients: int, rows: int) -> None:
    require(clients >= 1, "clients", clients, "must be at least 1")
    require(clients <= rows, "clients", clients, f"must not exceed the {rows} training examples; take fewer clients")


MOST_ALPHA = 1e6  # of a Dirichlet draw: beyond it all shares are alike


def require_alpha(name: str, alpha: float, without: str) -> None:
    require(0 < alpha <= MOST_ALPHA, name, alpha, f"must be positive and at most {MOST_ALPHA:g}; {without}")


def require_share(name: str, value: float, top: float = 1.0) -> None:
    require(0 <= value <= top, name, value, f"must lie between 0 and {top:g}")


def tag_of(examples: Examples, tag: str) -> Rows:
    require(tag in examples.tags, f"tag of {examples.name}", tag, nearest(tag, examples.tags))
    values: Rows = examples.tags[tag].numpy()
    return values


def value_of(examples: Examples, tag: str, value: int | str) -> int:
    """A value of a tag as its number: given as that, or as what it stands for."""
    held, names = tag_of(examples, tag), examples.tag_names.get(tag, ())
    known = names or tuple(str(number) for number in np.unique(held)[:100])
    if isinstance(value, str) and value in names:
        return names.index(value)
    number = int(value) if isinstance(value, int) or (value.lstrip("-").isdigit() and not names) else None
    require(number is not None and bool((held == number).any()), f"value of tag {tag!r}", value, nearest(value, known))
    assert number is not None
    return number


def is_split(examples: Examples) -> bool:
    return SPLIT in examples.tags and bool((examples.tags[SPLIT] == TEST).any())


def pool(examples: Examples, test_share: float, rng: Rng) -> tuple[Rows, Rows]:
    """Training and test rows, each shuffled: the published split, or a hold-out of each class's ``test_share``."""
    order = rng.child("pool").numpy().permutation(len(examples))
    if is_split(examples):
        held = examples.tags[SPLIT].numpy()[order] == TEST
    else:
        y = strata(examples)[order]
        sizes = np.bincount(y)
        held = rank_within(y) < np.floor(sizes * test_share + 0.5)[y]
    return order[~held], order[held]


def strata(examples: Examples) -> Rows:
    """What is held out in equal shares: the classes; all rows together where there are none."""
    return examples.y.numpy() if examples.classified else np.zeros(len(examples), np.int64)


def rank_within(groups: NDArray[np.int64]) -> Rows:
    """Each entry's place among the entries of its own group: [5, 7, 5, 5, 7] -> [0, 0, 1, 2, 1]."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else np.empty(0, np.int64)
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
    return ranks


def apportion(total: int, weights: Weights) -> Rows:
    """Whole numbers in proportion to the weights that add up to the total (largest remainders)."""
    exact = total * weights / weights.sum()
    whole: Rows = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


def shards(rows: Rows, owner: NDArray[np.int64], clients: int) -> Shards:
    """Row i goes to client ``owner[i]``, in the order given."""
    order = np.argsort(owner, kind="stable")
    offsets = np.r_[0, np.cumsum(np.bincount(owner, minlength=clients))]
    return Shards(torch.from_numpy(rows[order].astype(np.int64)), torch.from_numpy(offsets.astype(np.int64)))


def owners(parts: Shards) -> Rows:
    """The client of each of ``parts.rows``."""
    client: Rows = np.repeat(np.arange(len(parts)), parts.sizes.numpy())
    return client


def hold_out(parts: Shards, share: float, rng: Rng) -> tuple[Shards, Shards]:
    """Each client's rows as training and test. A client with a single row trains on it and has no test."""
    order = rng.child("hold-out").numpy().permutation(len(parts.rows))
    owner, rows = owners(parts)[order], parts.rows.numpy()[order]
    sizes = parts.sizes.numpy()
    tested = np.clip(np.floor(sizes * share + 0.5), min(1, np.ceil(share)), np.maximum(sizes - 1, 0))
    held = rank_within(owner) < tested[owner]
    return shards(rows[~held], owner[~held], len(parts)), shards(rows[held], owner[held], len(parts))


def mirror(train: Shards, y: NDArray[np.int64], test_rows: Rows, rng: Rng) -> Shards:
    """Test rows for each client with the label mix of its own training rows.

    A client with n of N training rows gets about n/N of the test rows, at least one. Labels are those of n/N of its
    training rows, drawn at random; rows are dealt in turn and used again where a label runs out.
    """
    sizes = train.sizes.numpy()
    wanted = np.maximum(np.floor(sizes * len(test_rows) / max(len(train.rows), 1) + 0.5), 1)
    order = rng.child("mirror").numpy().permutation(len(train.rows))
    owner, labels = owners(train)[order], y[train.rows.numpy()[order]]
    chosen = rank_within(owner) < wanted[owner]
    owner, labels = owner[chosen], labels[chosen]
    by_label = test_rows[np.argsort(y[test_rows], kind="stable")]
    stock = np.bincount(y[test_rows], minlength=int(y.max()) + 1)
    starts = np.r_[0, np.cumsum(stock)[:-1]]
    there = stock[labels] > 0
    owner, labels = owner[there], labels[there]
    rows = by_label[starts[labels] + rank_within(labels) % stock[labels]]
    return shards(rows, owner, len(train))


def shared(by_group: Mapping[int, Rows], groups: NDArray[np.int64]) -> Shards:
    """Every client gets the rows of its group."""
    parts = {group: torch.from_numpy(rows.astype(np.int64)) for group, rows in by_group.items()}
    return Shards.of([parts[int(group)] for group in groups])


def in_random_order(groups: Rows, rng: Rng) -> Rows:
    """The groups of clients whose numbers tell nothing of them."""
    return rng.child("order of clients").numpy().permutation(groups)


def unknown_groups(clients: int) -> torch.Tensor:
    return torch.full((clients,), -1)
