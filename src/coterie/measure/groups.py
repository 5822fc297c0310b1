"""What became of the clusters: who is where, how well each serves, and how far that agrees with known groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.measure.clustering import adjusted_rand, mutual_information
from coterie.measure.utility import Scores

LISTED = 8  # models that are named one by one
STARVED = 0.5
"""A component of a mixture is starved if its mean weight is under this part of an even share."""


@dataclass(frozen=True)
class Clusters:
    """One entry a slot. A client belongs to the slot that it uses most."""

    members: Tensor  # (clients,)
    sizes: tuple[int, ...]
    weights: tuple[float, ...]  # the mean weight that clients give each slot
    values: tuple[float, ...]  # its members' mean score; NaN without members
    mixed: bool  # whether clients mix several slots
    ari: float  # agreement with the known groups; NaN where they are not known
    nmi: float

    @staticmethod
    def of(scores: Scores, groups: Tensor) -> Clusters:
        """``groups`` (clients,) is the truth, -1 where there is none."""
        choices, members = scores.choices, scores.choices.argmax(1)
        slots, known = choices.shape[1], groups >= 0
        values = [float(scores.values[members == slot].nanmean()) for slot in range(slots)]
        some = bool(known.any())
        return Clusters(
            members,
            tuple(torch.bincount(members, minlength=slots).tolist()),
            tuple(choices.double().mean(0).tolist()),
            tuple(values),
            bool(((choices > 0) & (choices < 1)).any()),
            adjusted_rand(members[known], groups[known]) if some else math.nan,
            mutual_information(members[known], groups[known]) if some else math.nan,
        )

    @property
    def recovered(self) -> bool:
        """Whether the clusters with members are the known groups exactly."""
        return self.ari == 1.0

    @property
    def empty(self) -> tuple[int, ...]:
        """Slots that nobody uses most."""
        return tuple(slot for slot, size in enumerate(self.sizes) if size == 0)

    @property
    def starved(self) -> tuple[int, ...]:
        """Slots with less than half of an even share of the mixtures; of hard clusters, the empty ones alone."""
        if not self.mixed:
            return self.empty
        return tuple(slot for slot, weight in enumerate(self.weights) if weight < STARVED / len(self.weights))

    @property
    def warning(self) -> str:
        """What a user should be told, if anything."""
        if not self.starved:
            return ""
        if not self.mixed:
            s = "" if len(self.empty) == 1 else "s"
            return f"nobody uses model{s} {_listed(self.empty)} of the {len(self.sizes)} (counted from 0)"
        least = ", ".join(f"{self.weights[slot]:.2f}" for slot in self.starved)
        even = 1 / len(self.weights)
        return f"components {_listed(self.starved)} starve: mean weight {least}, where {even:.2f} would be even"

    @property
    def words(self) -> str:
        """How many clients use each model, and their mean score; agreement with known groups; what is amiss."""
        used = [(size, value) for size, value in zip(self.sizes, self.values, strict=True) if size]
        if len(used) <= LISTED:
            models = ", ".join(f"{size} ({value:.3g})" for size, value in used)
        else:
            ends = [(min(column), max(column)) for column in zip(*used, strict=True)]
            models = f"{len(used)} models of {ends[0][0]} to {ends[0][1]} ({ends[1][0]:.3g} to {ends[1][1]:.3g})"
        known = "" if math.isnan(self.ari) else f"ARI {self.ari:.2f}"
        return "; ".join(filter(None, [f"clients a model: {models}", known, self.warning]))

    def row(self) -> dict[str, object]:
        """As it is written beside other measurements; what is not known is left out."""
        rest = {"ari": self.ari, "nmi": self.nmi}
        known = {name: value for name, value in rest.items() if not math.isnan(value)}
        values = [None if math.isnan(value) else value for value in self.values]
        return {"clusters": values, "weights": list(self.weights), "starved": list(self.starved), **known}


def _listed(slots: tuple[int, ...]) -> str:
    return ", ".join(map(str, slots))
