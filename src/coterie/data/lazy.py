"""Federations that are too large to lie in memory: a client's examples are made, or read, when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from coterie.data.federation import Examples, Federation, Shards, VerticalFederation
from coterie.errors import require

Read = Callable[[int], Examples]
"""A client's examples, by its number: the same ones whenever it is called."""


@dataclass(frozen=True)
class LazyFederation:
    """As many clients as a roster can list, of whom those who are asked in a round are in memory while they answer.

    Nobody could evaluate a million clients after every few rounds: results are those of the ``evaluated`` ones, which
    never leave memory. Where nothing is said they are a hundred, spread evenly over the roster.
    """

    sizes: Tensor  # (clients,): how many examples each trains on, as the public roster has it
    train: Read
    test: Read  # of those who are evaluated
    evaluated: Tensor | None = None  # clients

    def __post_init__(self) -> None:
        require(self.sizes.dim() == 1 and len(self.sizes) > 0, "sizes", tuple(self.sizes.shape), "must be one a client")
        require(int(self.sizes.min()) >= 0, "sizes", int(self.sizes.min()), "must not be negative")
        require(bool((self.sizes > 0).any()), "sizes", 0, "every client is empty; check the roster")
        chosen = self.evaluated
        inside = chosen is None or (len(chosen) > 0 and int(chosen.min()) >= 0 and int(chosen.max()) < self.clients)
        require(inside, "evaluated", chosen, f"must name some of the clients 0..{self.clients - 1}")

    @property
    def clients(self) -> int:
        return len(self.sizes)

    @cached_property
    def panel_ids(self) -> Tensor:
        if self.evaluated is not None:
            return self.evaluated
        return torch.linspace(0, self.clients - 1, min(100, self.clients)).long()

    def held(self, clients: Sequence[int]) -> tuple[Examples, Shards]:
        """The training examples of these clients, and which are whose."""
        parts = [self._of(client) for client in clients if int(self.sizes[client])]
        sizes = self.sizes[torch.as_tensor(clients, dtype=torch.int64)]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        whole = joined(parts) if parts else self.one.take(torch.arange(1))
        return whole, Shards(torch.arange(int(offsets[-1])), offsets)

    def _of(self, client: int) -> Examples:
        found, due = self.train(client), int(self.sizes[client])
        require(len(found) == due, f"examples of client {client}", len(found), f"must be {due}, as the roster says")
        return found

    @cached_property
    def one(self) -> Examples:
        """Some client's examples, to see of what kind they are."""
        return self._of(int(self.sizes.nonzero()[0]))

    @cached_property
    def panel(self) -> Federation:
        """Those who are evaluated, as a federation of their own."""
        ids = self.panel_ids.tolist()
        trained, train = self.held(ids)
        tests = [self.test(client) for client in ids]
        rows = torch.arange(sum(map(len, tests))) + len(trained)
        test = Shards.of(list(rows.split([len(one) for one in tests])))
        return Federation(joined([trained, *tests]), train, test, torch.full((len(ids),), -1))

    @property
    def groups(self) -> Tensor:
        """The true clusters of those who are evaluated: nobody knows of any."""
        return self.panel.groups

    def describe(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        return f"{self.one.name}: {self.clients:,} clients, {low} to {high} examples each, read when they are asked"


AnyFederation = Federation | LazyFederation | VerticalFederation


def shown_by(federation: AnyFederation) -> Examples:
    """Examples that show of what kind all of them are."""
    return federation.one if isinstance(federation, LazyFederation) else federation.examples


def revealed(federation: AnyFederation, answers: str, by_client: bool = False) -> str:
    """What answers reveal, and in what records show beside their own row, which noise for that row does not cover.

    ``by_client``: what is hidden is all that a client holds, however often it holds a record.
    """
    found = [answers, shown_by(federation).elsewhere]
    if isinstance(federation, Federation) and not by_client:
        again = _again(federation.train.rows)
        found.append(f"records that are dealt more than once ({again} rows come again)" if again else "")
    return "; ".join(filter(None, found))


def _again(rows: Tensor) -> int:
    """How many rows were there before. Of ten million that lie side by side one look tells."""
    rising = bool((rows.diff() > 0).all())
    return 0 if rising else int((torch.bincount(rows) - 1).clamp_min(0).sum())


def joined(parts: Sequence[Examples]) -> Examples:
    """One after the other; they must be of one kind."""
    first = parts[0]
    for part in parts:
        alike = (part.x.shape[1:], part.x.dtype, part.classes) == (first.x.shape[1:], first.x.dtype, first.classes)
        found = (tuple(part.x.shape[1:]), part.x.dtype, part.classes)
        require(alike, f"examples {part.name}", found, "must have the shape, type and classes of the other clients'")
    if len(parts) == 1:
        return first
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    tags = {tag: torch.cat([part.tags[tag] for part in parts]) for tag in first.tags}
    return replace(first, x=x, y=y, tags=tags)
