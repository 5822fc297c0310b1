"""Small federations on which property inference has something to find, and the run of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.updates import Imitation
from coterie.data.federation import Examples, Federation
from coterie.data.partition.property import Control, PropertySplit
from coterie.flow.adversary import Adversary
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten
from coterie.learn.sgd import Local
from coterie.measure.witness import Witness
from coterie.protocols.base import Trainer
from coterie.rng import Rng
from coterie.wire.codec import Memory
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

MODEL = Dense((12, 16, 2))
LOCAL = Local(steps=1, batch_size=16, lr=0.2)


def marked_examples(count: int = 1500, strength: float = 4.0, seed: int = 0) -> Examples:
    """Two classes along the first six axes; the property lights up the last six, whatever the class."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count,), generator=draws)
    has = torch.rand(count, generator=draws) < 0.2
    x = torch.randn(count, 12, generator=draws)
    x[:, :6] += (2.0 * y - 1).unsqueeze(1)
    x[:, 6:] += strength * has.unsqueeze(1)
    return Examples(x, y, 2, "marked", {"mark": has.long()})


@dataclass(frozen=True)
class Ran:
    federation: Federation
    split: PropertySplit
    view: View
    witness: Witness
    final: torch.Tensor  # (slots, length)
    memory: dict[int, Memory]


def run(
    protocol: Trainer[Any],
    seed: int = 0,
    clients: int = 3,
    control: Control = Control.NONE,
    warmup: int = 10,
    adversaries: Sequence[Adversary] = (),
    threat: ThreatModel | None = None,
    defence: Defence | None = None,
) -> Ran:
    rng = Rng.seeded(seed)
    split = PropertySplit(clients, "mark", every=2, warmup=warmup, control=control)
    federation = split.split(marked_examples(seed=seed), rng.child("partition"))
    threat = threat or property_threat()
    tape, witness = Tape([threat]), Witness()
    guard, roots = defence or Defence(), Roots.same(rng)
    ring = Ring(protocol, federation, MODEL, guard, roots, tape, adversaries, witness)
    with ring:
        state = ring.run()
    return Ran(federation, split, tape.view(threat), witness, flatten(protocol.result(state).values), ring.memory)


def passive(**settings: Any) -> PassiveProperty:
    return PassiveProperty(Imitation(MODEL, LOCAL), property_threat(), **{"warmup": 10, "trees": 40, **settings})
