"""Every client alone: the baseline that clustering must beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.flow.ask import Ask
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.flow.protocol import Running, Server
from coterie.learn.params import Params, pick
from coterie.protocols.base import Models, Trainer
from coterie.wire.messages import TRAIN, Contributions, Kind, Published


@dataclass(frozen=True)
class LocalOnly(Trainer[Models]):
    """A slot a client, and nothing is averaged. All begin with the same model, unless ``begins`` gives one for each.

    With ``begins=Given(...)`` of a trained federation's models, one a client, this is fine-tuning. Models pass through
    the server between rounds, so that they are evaluated as any others are; a client that were really alone would
    send nothing.
    """

    def start(self, server: Server) -> Models:
        clients = len(server.clients.sizes)
        if not self.begins.drawn:
            return Models(0, Published(self.begins.models(server, clients)))
        one = self.begins.models(server, 1)
        return Models(0, Published(pick(one, torch.zeros(clients, dtype=torch.int64))))

    @property
    def looks(self) -> str:
        return "each client's own model, which it hands back"

    def run(self, state: Models, server: Server) -> Running[Models]:
        for round in range(state.round, self.rounds):
            chosen = server.sample(round, self.participation)
            sent = (yield Ask(TRAIN, round, chosen, state.published, state, self.sees(state, chosen))).whole()
            state = replace(state, round=round + 1)
            if sent is not None:
                values = {name: leaf.clone() for name, leaf in state.published.values.items()}
                for name, leaf in sent.values.items():
                    values[name][sent.ids] = leaf[:, 0]
                state = replace(state, published=Published(values))
        return state

    def sees(self, state: Models, clients: Tensor) -> Tensor:
        return clients.unsqueeze(1) == torch.arange(state.published.slots)

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        seen = cohort.seen(models)
        trained = cohort.train(cohort.copies(models, seen.int().argmax(1)), self.local, guard)
        return self.contribution(cohort, trained, seen.float())

    def result(self, state: Models) -> Published:
        return state.published
