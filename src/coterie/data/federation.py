"""Examples, and how they are spread over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from coterie.errors import InvalidInput, require


@dataclass(frozen=True)
class Examples:
    """A data set in memory. Tags are further facts about each example: attributes, author, writer."""

    x: Tensor  # (examples, ...): float32 pictures or features, or int64 tokens
    y: Tensor  # (examples,) int64 classes; (examples, classes) bool labels, or float32 numbers that are predicted
    classes: int  # how many there are; or how many labels or numbers an example has
    name: str
    tags: Mapping[str, Tensor] = field(default_factory=dict)  # each (examples,)
    label_names: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()  # the word of each token, for texts
    tag_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of a tag, what its numbers stand for
    elsewhere: str = ""  # in what of other rows a record shows: noise that hides its own row does not cover that
    known: str = ""  # what of it everybody is taken to know, whichever records there are

    @staticmethod
    def of(x: object, y: object, name: str = "data", **tags: object) -> Examples:
        """Of arrays or tables: labels of any kind are numbered in sorted order, and so are tags of texts."""
        labels, label_names = _numbered(y)
        known = {tag: _numbered(values) for tag, values in tags.items()}
        return Examples(
            x=as_tensor(x),
            y=labels,
            classes=len(label_names),
            name=name,
            tags={tag: codes for tag, (codes, _) in known.items()},
            label_names=label_names,
            tag_names={tag: names for tag, (_, names) in known.items()},
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", as_tensor(self.x))
        object.__setattr__(self, "y", as_tensor(self.y))
        object.__setattr__(self, "tags", {tag: as_tensor(values) for tag, values in self.tags.items()})
        require(
            len(self.x) > 0,
            f"{self.name}.x",
            tuple(self.x.shape),
            "has no examples; check the file or the filter",
        )
        require(
            len(self.y) == len(self.x),
            f"{self.name}: len(y)",
            len(self.y),
            f"must equal len(x)={len(self.x)}",
        )
        self._require_finite()
        self._require_targets()
        for tag, values in self.tags.items():
            require(
                len(values) == len(self.x),
                f"{self.name}.tags[{tag!r}]",
                len(values),
                f"must have {len(self.x)} entries",
            )

    def _require_finite(self) -> None:
        # NaN and infinity survive a sum, so a finite sum clears all examples without a mask of their size.
        if self.x.is_floating_point() and not math.isfinite(self.x.sum().item()):
            bad = (~torch.isfinite(self.x.reshape(len(self.x), -1)).all(1)).nonzero()
            if len(bad):
                raise InvalidInput(f"{self.name}.x[{int(bad[0])}] has NaN or infinity; clean or drop that example")

    def _require_targets(self) -> None:
        if not self.classified:
            shape, due = tuple(self.y.shape), (len(self.x), self.classes)
            require(shape == due, f"{self.name}: shape of y", shape, f"must be {due}, a column a label or number")
            finite = bool(torch.isfinite(self.y).all())
            require(finite, f"{self.name}.y", "NaN or infinity", "cannot be learned; clean or drop those examples")
            return
        low, high = int(self.y.min()), int(self.y.max())
        require(
            low >= 0 and high < self.classes,
            f"{self.name}.y",
            (low, high),
            f"must lie in 0..{self.classes - 1}; renumber the labels or set classes",
        )

    @property
    def classified(self) -> bool:
        """Whether every example is of one class, rather than having labels (truth values) or numbers to predict."""
        return not (self.y.is_floating_point() or self.y.dtype == torch.bool)

    def classes_for(self, what: str) -> Tensor:
        """y, for what goes by classes."""
        if not self.classified:
            kind = "several labels" if self.y.dtype == torch.bool else "numbers to predict"
            raise InvalidInput(
                f"{what} goes by classes, and {self.name} has {kind}; take one that needs none, as iid does"
            )
        return self.y

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.x.shape[1:]))
        tags = f", tags {', '.join(self.tags)}" if self.tags else ""
        return f"Examples({self.name!r}: {len(self):,} of {shape}, {self.classes} classes{tags})"

    def __len__(self) -> int:
        return len(self.x)

    def alike(self) -> Tensor:
        """(rows,): equal numbers for rows that say the same, label and all."""
        x, y, known = self.x.flatten(1).contiguous().numpy(), self.y.numpy(), dict[bytes, int]()
        return torch.tensor([known.setdefault(x[row].tobytes() + y[row].tobytes(), row) for row in range(len(x))])

    def take(self, rows: Tensor, name: str | None = None) -> Examples:
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            tags={tag: values[rows] for tag, values in self.tags.items()},
            name=name or self.name,
        )


def as_tensor(values: object) -> Tensor:
    """Of an array or a table's columns, in the types that are used here; tensors stay as they are."""
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    require(array.dtype.kind in "fiub", "values of type", array.dtype, "must be numbers or truth values")
    if array.dtype.kind == "f" or (array.dtype == np.uint8 and array.ndim > 1):
        return torch.from_numpy(array.astype(np.float32))
    return torch.from_numpy(array.copy() if array.dtype.kind == "b" else array.astype(np.int64))


def _numbered(values: object) -> tuple[Tensor, tuple[str, ...]]:
    known, codes = np.unique(np.asarray(values), return_inverse=True)
    return torch.from_numpy(codes.reshape(-1).astype(np.int64)), tuple(map(str, known))


@dataclass(frozen=True)
class Shards:
    """Which rows of the examples each client holds: client i has ``rows[offsets[i]:offsets[i + 1]]``."""

    rows: Tensor
    offsets: Tensor  # (clients + 1,)

    @staticmethod
    def of(parts: Sequence[Tensor]) -> Shards:
        sizes = torch.tensor([0] + [len(part) for part in parts])
        rows = torch.cat(list(parts)) if parts else torch.empty(0)
        return Shards(rows.to(torch.int64), sizes.cumsum(0))

    @staticmethod
    def none() -> Shards:
        """Of no clients."""
        return Shards(torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Tensor:
        return self.rows[int(self.offsets[client]) : int(self.offsets[client + 1])]

    @property
    def sizes(self) -> Tensor:
        return self.offsets.diff()

    def between(self, first: int, end: int) -> Shards:
        """Of the clients from the first on, before the end."""
        offsets = self.offsets[first : end + 1]
        return Shards(self.rows[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def pick(self, clients: Sequence[int]) -> Shards:
        chosen = torch.as_tensor(clients, dtype=torch.int64)
        if torch.equal(chosen, torch.arange(len(self))):
            return self
        sizes = self.sizes[chosen]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        places = torch.repeat_interleave(self.offsets[chosen] - offsets[:-1], sizes)
        return Shards(self.rows[places.add_(torch.arange(len(places)))], offsets)


@dataclass(frozen=True)
class Schedule:
    """Which of its rows one client draws its batches from, round by round (paper 000).

    Every ``every``-th round is a property round: the batch comes from ``marked`` alone; in all others it
    comes from ``plain``. Rounds before ``warmup`` are plain.
    """

    marked: Tensor  # rows
    plain: Tensor  # rows
    every: int = 5
    warmup: int = 0

    def is_marked(self, round: int) -> bool:
        return round >= self.warmup and round % self.every == 0

    def rows(self, round: int) -> Tensor:
        return self.marked if self.is_marked(round) else self.plain


@dataclass(frozen=True)
class Federation:
    """Examples, spread over clients. ``groups`` is the truth about clusters; only ``measure`` reads it."""

    examples: Examples
    train: Shards
    test: Shards
    groups: Tensor  # (clients,) the true cluster, -1 where there is none
    joins: Tensor | None = None  # (clients,) the round in which each client joins; None: all from the start
    schedules: Mapping[int, Schedule] = field(default_factory=dict)  # by client; the others use all their rows

    def __post_init__(self) -> None:
        clients = len(self.train)
        require(clients > 0, "clients", clients, "must be at least 1")
        require(len(self.test) == clients, "test shards", len(self.test), f"must be one a client ({clients})")
        require(len(self.groups) == clients, "groups", len(self.groups), f"must be one a client ({clients})")
        require(
            bool((self.train.sizes > 0).any()),
            "train",
            "no rows",
            "every client is empty; check the partition",
        )

    @property
    def clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> Tensor:
        """(clients,): how much each has to train on."""
        return self.train.sizes

    def held(self, clients: Sequence[int]) -> tuple[Examples, Shards]:
        """Examples among which the training data of these clients are, and which are whose."""
        return self.examples, self.train.pick(clients)

    def __repr__(self) -> str:
        return f"Federation({self.describe()})"

    def describe(self) -> str:
        least, most = int(self.train.sizes.min()), int(self.train.sizes.max())
        each = f"{least} to {most}" if least < most else str(least)
        groups = int(self.groups.max()) + 1
        known = f"{groups} true clusters" if groups else "true clusters unknown"
        return f"{self.examples.name}: {self.clients} clients, {each} examples each to train on, {known}"


@dataclass(frozen=True)
class VerticalFederation:
    """The same examples at every party, each holding some of the columns (paper 003)."""

    examples: Examples
    columns: tuple[Tensor, ...]  # a party's columns of the flattened examples

    def __post_init__(self) -> None:
        require(len(self.columns) > 0, "parties", 0, "must be at least 1")
        features = self.examples.x[0].numel()
        for party, own in enumerate(self.columns):
            require(len(own) > 0, f"columns of party {party}", [], "must be at least one; leave that party out")
            inside = int(own.min()) >= 0 and int(own.max()) < features
            require(inside, f"columns of party {party}", own.tolist()[:5], f"must lie in 0..{features - 1}")
        named = torch.cat(self.columns)
        twice = named.unique(return_counts=True)[1].max()
        require(int(twice) == 1, "columns", named.tolist()[:10], "must not give one column to two parties")

    @property
    def clients(self) -> int:
        return len(self.columns)

    @property
    def sizes(self) -> Tensor:
        """(parties,): how many records each has: all of them."""
        return torch.full((self.clients,), len(self.examples))

    @property
    def groups(self) -> Tensor:
        """(parties,): which distribution each one's records are of; -1: they are all the same records."""
        return torch.full((self.clients,), -1)

    @cached_property
    def parts(self) -> tuple[Tensor, ...]:
        """Each (examples, columns of the party), laid out as the party itself would have them: read in every round."""
        x = self.examples.x.reshape(len(self.examples), -1)
        return tuple(x.index_select(1, own) for own in self.columns)

    def part(self, party: int) -> Tensor:
        """(examples, columns of the party)"""
        require(0 <= party < self.clients, "party", party, f"must be 0 to {self.clients - 1}")
        return self.parts[party]

    def describe(self) -> str:
        widths = ", ".join(str(len(own)) for own in self.columns)
        return f"{self.examples.name}: {self.clients} parties with {widths} columns of {len(self.examples)} records"
