"""What an adversary holds besides its view. Attacks may import this; it has no room for what victims hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.data.federation import Examples
from coterie.errors import InvalidInput, nearest, require
from coterie.rng import Rng

WITH_PROPERTY, WITHOUT_PROPERTY = "with_property", "without_property"


@dataclass(frozen=True)
class Auxiliary:
    """Data of the adversary's own, whole and in named parts. None at all is ``Auxiliary()``."""

    examples: Examples | None = None
    parts: Mapping[str, Examples] = field(default_factory=dict)

    @staticmethod
    def by_property(examples: Examples, has: Tensor) -> Auxiliary:
        """Examples of which the adversary knows whether each has the property: ``has`` is (examples,) bool."""
        require(len(has) == len(examples), "len(has)", len(has), f"must be one an example ({len(examples)})")
        require(
            bool(has.any()) and not bool(has.all()),
            "examples with the property",
            int(has.sum()),
            f"must be some but not all of the {len(examples)}; the attack needs both kinds",
        )
        parts = {WITH_PROPERTY: examples.take(has), WITHOUT_PROPERTY: examples.take(~has)}
        return Auxiliary(examples, parts)

    def part(self, name: str) -> Examples:
        require(name in self.parts, "part of the auxiliary data", name, nearest(name, self.parts))
        return self.parts[name]

    @property
    def with_property(self) -> Examples:
        return self.part(WITH_PROPERTY)

    @property
    def without_property(self) -> Examples:
        return self.part(WITHOUT_PROPERTY)

    def whole(self) -> Examples:
        if self.examples is None:
            raise InvalidInput("auxiliary data=None: this attack needs examples; pass Auxiliary(examples=...)")
        return self.examples

    def of_class(self, label: int) -> Examples:
        """The examples of one class (preference profiling retrains on each class in turn)."""
        examples = self.whole()
        rows = (examples.y == label).nonzero().flatten()
        present = examples.y.unique().tolist()
        require(len(rows) > 0, "label", label, f"has no auxiliary examples; there are {present}")
        return examples.take(rows)


def reserve(examples: Examples, per_class: int, rng: Rng) -> tuple[Auxiliary, Examples]:
    """Takes ``per_class`` examples of each class aside for the adversary; the federation is made of the others."""
    require(per_class >= 1, "per_class", per_class, "must be at least 1")
    order = torch.randperm(len(examples), generator=rng.child("auxiliary").torch())
    labels = examples.y[order]
    taken = torch.zeros(len(examples), dtype=torch.bool)
    for label in labels.unique():
        rows = order[labels == label]
        require(
            len(rows) > per_class,
            "per_class",
            per_class,
            f"takes all {len(rows)} examples of class {int(label)}; take fewer",
        )
        taken[rows[:per_class]] = True
    return Auxiliary(examples.take(taken, f"{examples.name} (auxiliary)")), examples.take(~taken)
