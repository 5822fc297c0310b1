"""What the tests beside this share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.ring import Play, blobs, play

from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import Smallest
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.params import Params
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.seal.ckks import Ckks
from coterie.seal.mock import MockCipher
from coterie.wire.messages import Contributions, Kind
from coterie.wire.sealed import SHARED_KEY
from coterie.wire.view import ThreatModel

MODEL = Dense((4, 6, 3))
IFCA = Ifca(rounds=4, local=Local(steps=3, batch_size=4, lr=0.3), clusters=3, candidates=6)
FEDERATION = blobs((12, 9, 10, 12, 5, 12, 7, 10, 8, 8, 11, 12), groups=3)
SERVER = ThreatModel("curious server", server=True)
COLLUDING = ThreatModel("server and a client", server=True, clients=frozenset({0}), keys=frozenset({SHARED_KEY}))
VARIANTS = {
    "mock": lambda: Mingling(exact=False, cipher=MockCipher(), partition=False),
    "mock, exact": lambda: Mingling(cipher=MockCipher(), partition=False),
    "ckks": lambda: Mingling(exact=False, cipher=Ckks(), partition=False),
    "masks": lambda: Mingling(smallest=Smallest(1), partition=False),
}
every_variant = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS.keys())


def run(defence: Defence, protocol: Protocol[Any] = IFCA, model: Model = MODEL, **options: Any) -> Play:
    return play(protocol, FEDERATION, model, defence=defence, **options)


def models(done: Play) -> Params:
    return done.ring.models(done.state)


def close(one: Params, other: Params, atol: float) -> None:
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=atol)


class Stubborn(Ifca):
    """Everybody trains cluster 0, except that in round 0 client 1 trains cluster 1."""

    def answer(self, kind: Kind, models: Params, cohort: Any, guard: Any) -> Contributions:
        sent = super().answer(kind, models, cohort, guard)
        choice = torch.zeros(len(cohort), dtype=torch.int64)
        if cohort.turn.round == 0:
            choice[cohort.ids == 1] = 1
        return replace(sent, membership=torch.nn.functional.one_hot(choice, self.clusters).float())
