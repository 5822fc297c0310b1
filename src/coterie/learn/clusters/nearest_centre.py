"""Cluster centres as a model, so that a clustering has its place in a ring made for models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import InvalidInput
from coterie.learn.models.model import Batch, Model
from coterie.learn.params import Params


@dataclass(frozen=True)
class NearestCentre(Model):
    """Predicts the cluster whose centre is nearest. It is fitted by a clustering protocol, never by gradients."""

    clusters: int
    features: int

    def init(self, seed: int) -> dict[str, Tensor]:
        return {"centres": torch.zeros(self.clusters, self.features)}

    def logits(self, params: Params, x: Tensor) -> Tensor:
        distances: Tensor = torch.cdist(x.flatten(1), params["centres"]).square()
        return -distances

    def gradients(self, params: Params, batch: Batch, clip: float | None = None) -> dict[str, Tensor]:
        raise InvalidInput("centres are found by clustering protocols; train a model such as Dense with this one")

    def with_dropout(self, rate: float) -> NearestCentre:
        return self

    @property
    def vectorised(self) -> bool:
        return True

    @property
    def random(self) -> bool:
        return False
