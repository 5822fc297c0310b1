"""The property split between an attacker and a victim (paper 000, Section 4.1), with its two controls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Schedule
from coterie.data.partition.dealing import (
    Partition,
    Rows,
    apportion,
    pool,
    rank_within,
    require_share,
    shards,
    shared,
    tag_of,
    unknown_groups,
    value_of,
)
from coterie.data.partition.labels import skew
from coterie.errors import require
from coterie.rng import Rng

PROPERTY = "property"  # the tag of the federation's examples that says which have what the attacker looks for


class Control(Enum):
    """What the victim's property rounds are made of. The last two should give an AUC of 0.5."""

    NONE = "none"  # the property itself
    PLACEBO = "placebo"  # a random tag with the property's size and label distribution
    ABSENT = "absent"  # the victim never uses property data


@dataclass(frozen=True)
class PropertySplit(Partition):
    """Half of the property's training data goes to the attacker, half to the victim, the rest to all (paper 000).

    The property is ``tag == value``. In every ``every``-th round after ``warmup`` the victim's batch comes from
    its property data (a share of ``purity``), else from its other data.

    Where we differ: as published, the victim's two kinds of data have different label mixes, and an attack that
    recognises labels scores as if it recognised the property. With ``matched`` (the default) the other data of the
    attacker and of the victim is drawn with the label mix of the property data, and what remains goes to the other
    clients by Dirichlet draws; without it, all other data goes to all clients by Dirichlet draws, as in the paper.

    All clients are tested on the same rows, the paper's global test set.
    """

    clients: int
    tag: str
    value: int | str = 1  # a tag's number, or what that stands for
    alpha: float = 0.5
    every: int = 5
    warmup: int = 100
    purity: float = 1.0
    matched: bool = True
    control: Control = Control.NONE
    test_share: float = 0.2

    attacker: ClassVar[int] = 0
    victim: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require(self.clients >= 3, "clients", self.clients, "must be at least 3: attacker, victim and somebody else")
        require(self.every >= 2, "every", self.every, "must be at least 2, or there are no rounds to compare with")
        require(self.warmup >= 0, "warmup", self.warmup, "must not be negative")
        require(0 < self.purity <= 1, "purity", self.purity, "must lie in 0..1, above 0")
        require_share("test_share", self.test_share, 0.9)

    def split(self, examples: Examples, rng: Rng) -> Federation:
        has = self.marked(examples, rng)
        tagged = replace(examples, tags={**examples.tags, PROPERTY: torch.from_numpy(has.astype(np.int64))})
        y = examples.classes_for("partition 'property'").numpy()
        train, test = pool(examples, self.test_share, rng)
        marked, other = train[has[train]], train[~has[train]]
        require(len(marked) >= 2, f"training examples with {self.tag}={self.value}", len(marked), "must be at least 2")
        halves = rank_within(y[marked]) % 2  # each label in halves, so that both have the same label mix
        if self.matched:
            rows, owner = self.matched_rest(other, marked, y, rng)
        else:
            rows, owner = other, skew(y[other], self.clients, self.alpha, 1, rng)
        holder = np.where(halves == 0, self.attacker, self.victim)
        schedule = self.schedule(marked[holder == self.victim], rows[owner == self.victim], y)
        if self.control is Control.ABSENT:
            marked, holder = marked[holder == self.attacker], holder[holder == self.attacker]
        return Federation(
            tagged,
            shards(np.concatenate([marked, rows]), np.concatenate([holder, owner]), self.clients),
            shared({-1: test}, np.full(self.clients, -1)),
            groups=unknown_groups(self.clients),
            schedules={self.victim: schedule},
        )

    def marked(self, examples: Examples, rng: Rng) -> NDArray[np.bool_]:
        """Which examples count as having the property."""
        values = tag_of(examples, self.tag)
        has: NDArray[np.bool_] = values == value_of(examples, self.tag, self.value)
        require(not has.all(), f"{self.tag}={self.value}", "all examples", "must leave some without the property")
        if self.control is not Control.PLACEBO:
            return has
        y = examples.y.numpy()
        order = rng.child("placebo").numpy().permutation(len(examples))
        counts = np.bincount(y[has], minlength=examples.classes)
        placebo = np.zeros(len(examples), bool)
        placebo[order[rank_within(y[order]) < counts[y[order]]]] = True
        return placebo

    def matched_rest(self, other: Rows, marked: Rows, y: NDArray[np.int64], rng: Rng) -> tuple[Rows, Rows]:
        """The rows without the property, and who gets each of them."""
        mix = np.bincount(y[marked], minlength=int(y.max()) + 1)
        stock = np.bincount(y[other], minlength=len(mix))
        lacking = np.flatnonzero((mix > 0) & (stock < 2))
        require(
            len(lacking) == 0,
            f"labels of {self.tag}={self.value}",
            lacking.tolist(),
            "hardly occur without the property, so the label mixes cannot be matched; pass matched=False",
        )
        present = mix > 0
        # As much as a client gets on average, or as much as the scarcest label allows for two.
        each = min(len(other) // self.clients, int((stock[present] / 2 * mix.sum() / mix[present]).min()))
        counts = apportion(max(each, int(present.sum())), mix.astype(float))
        counts[present] = np.clip(counts[present], 1, stock[present] // 2)
        labels = y[other]
        rank = rank_within(labels)
        owner = np.where(rank < counts[labels], self.attacker, self.victim)
        taken = rank < 2 * counts[labels]
        rest = labels[~taken]
        owner[~taken] = 2 + skew(rest, self.clients - 2, self.alpha, 1, rng)
        return other, owner

    def schedule(self, mine: Rows, plain: Rows, y: NDArray[np.int64]) -> Schedule:
        marked = plain if self.control is Control.ABSENT else self.mixed(mine, plain, y)
        return Schedule(torch.from_numpy(marked), torch.from_numpy(plain), every=self.every, warmup=self.warmup)

    def mixed(self, mine: Rows, plain: Rows, y: NDArray[np.int64]) -> Rows:
        """Property rows of which ``purity`` is the share; the others keep the label mix of the property rows."""
        if self.purity == 1:
            return mine
        keep = min(len(mine), int(len(plain) * self.purity / (1 - self.purity)))
        require(keep >= 1, "purity", self.purity, f"leaves no property row beside {len(plain)} others; raise it")
        counts = np.bincount(y[mine], minlength=int(y.max()) + 1)
        extra = apportion(round(keep * (1 - self.purity) / self.purity), counts.astype(float))
        return np.concatenate([mine[:keep], plain[rank_within(y[plain]) < extra[y[plain]]]])

    def auxiliary(self, federation: Federation) -> Auxiliary:
        """What the attacker holds: its own training data, with and without the property."""
        own = federation.examples.take(federation.train[self.attacker])
        return Auxiliary.by_property(own, own.tags[PROPERTY] == 1)
