"""FedAvg (McMahan et al. 2017): one model, the weighted mean of the clients' models."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard
from coterie.learn.params import Params
from coterie.protocols.base import ModelTrainer
from coterie.wire.messages import Contributions, Kind


@dataclass(frozen=True)
class FedAvg(ModelTrainer):
    @property
    def slots(self) -> int:
        return 1

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        start = cohort.copies(models, torch.zeros(len(cohort), dtype=torch.int64))
        trained = cohort.train(start, self.local, guard, proximal=self._proximal)
        return self.contribution(cohort, trained, torch.ones(len(cohort), 1))

    @property
    def _proximal(self) -> float:
        return 0.0
