"""The clients of several federations as one cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from coterie.data.federation import Shards
from coterie.flow.cohort import Cohort
from coterie.flow.turn import Roots, Turn
from coterie.learn.params import Copies, Params, map_leaves
from coterie.privacy.ledger import EVERYBODY
from coterie.rng import Rng, Secrets


@dataclass(frozen=True)
class JointTurn(Turn):
    """Of clients of several federations: a client's number is its place, and its streams are its own federation's."""

    places: tuple[tuple[Turn, int], ...] = field(default=(), compare=False)  # the federation's turn, the number there

    def draws(self, party: str | int, *purpose: str | int) -> Rng:
        turn, client = self._own(party)
        return turn.draws(client, *purpose)

    def secrets(self, party: str | int, *purpose: str | int) -> Secrets:
        turn, client = self._own(party)
        return turn.secrets(client, *purpose)

    def _own(self, party: str | int) -> tuple[Turn, int]:
        turn, client = self.places[int(party)]
        return turn if turn.kind == self.kind else replace(turn, kind=self.kind), client


@dataclass
class JointCohort(Cohort):
    """The clients of several federations. Models have leaves (federations x slots, ...); slots are each one's own."""

    parts: tuple[Cohort, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Cohort]) -> Self:
        places = tuple((part.turn, client) for part in parts for client in part.ids.tolist())
        first = parts[0]
        turn = JointTurn(first.turn.round, NOBODYS, first.turn.kind, places=places)
        offsets = torch.cat([part.shards.sizes for part in parts]).cumsum(0)
        shards = Shards(torch.cat([part.shards.rows for part in parts]), torch.cat([offsets.new_zeros(1), offsets]))
        schedules = {
            place: part.schedules[client]
            for place, (part, client) in enumerate((part, client) for part in parts for client in part.ids.tolist())
            if client in part.schedules
        }
        sees = None if first.sees is None else torch.cat([part.sees for part in parts if part.sees is not None])
        memory = [kept for part in parts for kept in part.memory]
        ids = torch.arange(len(places))
        known = (first.examples, shards, first.model, sees, schedules)
        return cls(ids, turn, *known, memory=memory, parts=tuple(parts))

    @property
    def whose(self) -> Tensor:
        """(clients,): the federation of each."""
        return torch.repeat_interleave(torch.arange(len(self.parts)), torch.tensor([len(part) for part in self.parts]))

    def hand_back_spent(self) -> None:
        """Each federation's own ledger has what its clients spent."""
        for client, spent, times in self.turn.ledger.rows:
            assert isinstance(self.turn, JointTurn)
            assert client != EVERYBODY
            turn, own = self.turn.places[client]
            turn.ledger.spend(spent, (own,), times)

    def seen(self, models: Params) -> Tensor:
        slots = self._slots(models)
        return torch.ones(len(self), slots, dtype=torch.bool) if self.sees is None else self.sees

    def copies(self, models: Params, choice: Tensor) -> Copies:
        return super().copies(models, choice + self._slots(models) * self.whose)

    def example_losses(self, models: Params, shards: Shards | None = None) -> Tensor:
        """Each federation's rows under its own models."""
        given, found, client = shards or self.round_shards, [], 0
        for part, own in zip(self.parts, self.own_models(models), strict=True):
            found.append(part.example_losses(own, given.pick(range(client, client + len(part)))))
            client += len(part)
        return torch.cat(found)

    def own_models(self, models: Params) -> list[dict[str, Tensor]]:
        """Each federation's, (slots, ...)."""
        slots = self._slots(models)
        return [
            map_leaves(lambda leaf, at=number * slots: leaf[at : at + slots], models)
            for number in range(len(self.parts))
        ]

    def _slots(self, models: Params) -> int:
        return next(iter(models.values())).shape[0] // len(self.parts)


NOBODYS = Roots.seeded(0)
"""A joint turn has no streams of its own."""
