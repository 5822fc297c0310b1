"""FedEM (Marfoq et al. 2021): each client's data is a mixture of a few common components.

(MingledPie's baseline of that name cites another paper; this is the usual FedEM.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.errors import require_count
from coterie.flow.cohort import Cohort, segment_mean
from coterie.flow.guard import ClientGuard
from coterie.learn.params import Params, map_leaves, stack
from coterie.protocols.base import MOST_MODELS, ModelTrainer
from coterie.wire.messages import Contributions, Kind


@dataclass(frozen=True)
class FedEM(ModelTrainer):
    """Algorithm 1 of Marfoq et al. The mixture weights never leave the client."""

    reveals: ClassVar[str] = "mixture weights, found on its raw data, scale its clipped gradients"

    components: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("components", self.components, 1, MOST_MODELS)

    @property
    def slots(self) -> int:
        return self.components

    @property
    def models_a_round(self) -> int:
        return self.components

    def answer(self, kind: Kind, models: Params, cohort: Cohort, guard: ClientGuard) -> Contributions:
        shares = self.responsibilities(models, cohort)  # (rows, components), the E step
        cohort.keep("mixture", segment_mean(shares, cohort.round_shards))
        trained = [  # the M step: each component on all data, weighted by its share in each example
            cohort.train(
                cohort.copies(models, torch.full((len(cohort),), slot)),
                self.local,
                guard,
                example_weights=shares[:, slot],
                label=f"component {slot}",
            )
            for slot in range(self.components)
        ]
        values = map_leaves(lambda leaf: leaf.transpose(0, 1), stack(trained))  # (clients, components, ...)
        return Contributions(cohort.ids, values, self.weights(cohort), torch.ones(len(cohort), self.components))

    def mixture(self, cohort: Cohort) -> Tensor:
        """(clients, components): what each client last found, or even shares for one that has not trained yet."""
        return cohort.recall("mixture", torch.full((len(cohort), self.components), 1 / self.components))

    def responsibilities(self, models: Params, cohort: Cohort) -> Tensor:
        """(rows, components): how likely each component is to have made each example."""
        owners = torch.repeat_interleave(torch.arange(len(cohort)), cohort.round_shards.sizes)
        prior = self.mixture(cohort).clamp_min(1e-30).log()[owners]
        return (prior - cohort.example_losses(models)).softmax(1)

    def choose(self, models: Params, cohort: Cohort) -> Tensor:
        """A newcomer predicts with the mixture that one E step on its data gives."""
        fresh = segment_mean(self.responsibilities(models, cohort), cohort.round_shards)
        chosen = cohort.recall("mixture", fresh)
        empty = cohort.sizes.eq(0).unsqueeze(1)
        return torch.where(empty, torch.full_like(chosen, 1 / self.components), chosen)
