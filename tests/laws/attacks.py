"""Every attack, on a run in which it has something to find: one line a member."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.attacks.federations import LOCAL, MODEL, marked_examples
from tests.laws.members import CENTRES, MEMBERS, by_columns
from tests.ring import Play, blobs, play

from coterie.attacks.acquisition import ModelAcquisition, acquisition_threat
from coterie.attacks.all_but_one import AllButOne
from coterie.attacks.base import Attack
from coterie.attacks.canaries import CanaryTest
from coterie.attacks.cgan import CganReconstruction, eavesdropper
from coterie.attacks.distance_geometry import RECORD, DistanceGeometry, Seen, assignments
from coterie.attacks.inversion import GradientInversion
from coterie.attacks.membership import CostTest, ShadowTest, SumsTest
from coterie.attacks.party_inference import OWN, PartyInference, curious_party
from coterie.attacks.placing import Placing
from coterie.attacks.profiling import IdentityProfiling
from coterie.attacks.profiling_by_model import SensitivityProfiling
from coterie.attacks.property import PassiveProperty, property_threat
from coterie.attacks.property_active import ActiveProperty
from coterie.attacks.property_shares import PropertyShares
from coterie.attacks.reconstruction import (
    OTHERS,
    REST,
    ClientReconstruction,
    MeansReconstruction,
    RecordReconstruction,
)
from coterie.attacks.shadows import Asked, Rehearsed, Seat, ShadowMembership
from coterie.attacks.span_membership import SpanMembership
from coterie.attacks.successive_centres import SHOWN, MovedRecords, ShownCentres
from coterie.attacks.update_membership import UpdateMembership
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.lazy import AnyFederation
from coterie.data.partition.property import PropertySplit
from coterie.data.sources.embedded import Digits
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol
from coterie.learn.clusters.points import Points
from coterie.learn.generative.duel import Bout
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.sgd import Local
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.kfed import KFed
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

NOBODY = ThreatModel("nobody", clients=frozenset({99}))
SERVER = ThreatModel("curious server", server=True)
SMALL, STEPS = Dense((4, 6, 3)), Local(steps=3, batch_size=4, lr=0.3)
DIGITS = Dense((64, 10))


@dataclass(frozen=True)
class Raid:
    """An attack, the run that it is on, and what the adversary has beside its view."""

    attack: Attack[Any]
    protocol: Protocol[Any]
    federation: AnyFederation
    model: Model | None = None
    defence: Defence = field(default_factory=Defence)
    auxiliary: Auxiliary = field(default_factory=Auxiliary)
    poorer: tuple[ThreatModel, ...] = ()  # seats that see less, beside nobody's

    def run(self) -> Play:
        """Insiders take their seats; those who only look have none."""
        seated = [self.attack] if hasattr(self.attack, "answer") else []
        tape = Tape([self.attack.threat, NOBODY, *self.poorer])
        return play(self.protocol, self.federation, self.model, defence=self.defence, tape=tape, adversaries=seated)


POINTS = torch.cat([CENTRES, CENTRES - 1, CENTRES + 1])
LLOYD = FederatedLloyd(3, Level.RECORD, centres=CENTRES, steps=1, bound=3.0)
NOISE = dict.fromkeys(LLOYD.releases(), 0.5)
ONE_CLIENT = ThreatModel("client 1", clients=frozenset({1}))


def drawn_digits() -> Federation:
    """Three clients with pictures of digits."""
    rows, groups = torch.arange(90).reshape(3, 30), torch.zeros(3, dtype=torch.int64)
    return Federation(Digits().load(), Shards.of(list(rows)), Shards.of([torch.arange(100, 110)] * 3), groups)


def _examples(federation: Federation, client: int) -> Examples:
    return federation.examples.take(federation.train[client])


@cache
def raids() -> Mapping[str, Raid]:
    rows, ours = blobs(), property_threat()
    split = PropertySplit(3, "mark", every=2, warmup=4)
    marked = split.split(marked_examples(400), Rng.seeded(0))
    known = split.auxiliary(marked)
    imitation = Imitation(MODEL, LOCAL)
    profiled = Ifca(rounds=2, local=STEPS, clusters=2, candidates=0)
    each = Auxiliary(rows.examples)
    siege, besieged = MEMBERS["sattler"], blobs((12, 9, 8, 12, 5, 12, 7, 10), joins=[0] * 6 + [2, 2])
    first = _examples(rows, 0)
    known_records = {REST: first.take(torch.arange(1, len(first))), OTHERS: rows.examples.take(rows.train.rows[12:])}
    shadows = POINTS[:6].reshape(2, 3, 4)
    every = torch.arange(6)  # one record of each client is asked about
    questions = Asked(rows.train.rows[rows.train.offsets[:-1]], every * 0, every, every < 0)
    looks = torch.randn(2, 4, 2, 6, generator=torch.Generator().manual_seed(0))
    averaging = FedAvg(rounds=9, local=LOCAL)
    apart = by_columns()
    twenty = apart.examples.take(torch.arange(20))
    aligned = Auxiliary(replace(twenty, tags={RECORD: torch.arange(20)}))
    beside = Auxiliary(
        replace(twenty, x=apart.part(0)[:20], tags={RECORD: torch.arange(20)}),
        {OWN: replace(apart.examples, x=apart.part(1))},
    )
    many, among = blobs((80, 80, 80), features=3), VerticalKMeans(12, 12)
    moving = FederatedLloyd(4, centres=many.examples.x[:4] + 0.01, steps=12)
    asked = len(assignments(play(among, apart, None, tape=Tape([SERVER])).ring.view(SERVER)))
    shown = apart.examples.take(torch.arange(12 * asked) % len(apart.examples))
    pictures, one = drawn_digits(), Local(steps=1, batch_size=1, lr=0.1)
    spy = Auxiliary(_examples(pictures, 0))
    drawing = CganReconstruction(
        eavesdropper(0, 1, 0.5), 1, DIGITS, STEPS, spy, Bout(steps=2, batch=8), width=4, each=2
    )
    return {
        "passive property": Raid(
            PassiveProperty(imitation, ours, warmup=4, trees=10), averaging, marked, MODEL, auxiliary=known
        ),
        "active property": Raid(
            ActiveProperty(imitation, ours, warmup=4, trees=10, data=known), averaging, marked, MODEL, auxiliary=known
        ),
        "model acquisition": Raid(
            ModelAcquisition(acquisition_threat(frozenset({6, 7}))), siege.protocol, besieged, siege.model
        ),
        "profiling by identity": Raid(IdentityProfiling({0: 0, 1: 1}), profiled, rows, SMALL, poorer=(ONE_CLIENT,)),
        "placing": Raid(Placing({0: 0, 1: 1}), profiled, rows, SMALL, poorer=(ONE_CLIENT,)),
        "profiling by model": Raid(
            SensitivityProfiling(Imitation(SMALL, STEPS), 3),
            profiled,
            rows,
            SMALL,
            auxiliary=each,
            poorer=(ONE_CLIENT,),
        ),
        "property shares": Raid(
            PropertyShares(Imitation(MODEL, LOCAL), ("mark",), rows=20, imagined=8),
            averaging,
            marked,
            MODEL,
            auxiliary=Auxiliary(marked.examples),
            poorer=(ONE_CLIENT,),
        ),
        "record reconstruction": Raid(
            RecordReconstruction(0), LLOYD, rows, auxiliary=Auxiliary(parts=known_records), poorer=(ONE_CLIENT,)
        ),
        "means reconstruction": Raid(MeansReconstruction(0), KFed(3), rows, auxiliary=Auxiliary(parts=known_records)),
        "client reconstruction": Raid(ClientReconstruction(0), LLOYD, rows, poorer=(ONE_CLIENT,)),
        "distance geometry, totals": Raid(DistanceGeometry(), VerticalKMeans(3), apart, auxiliary=aligned),
        "distance geometry, a party": Raid(
            DistanceGeometry(Seen.PARTY, 0), VerticalKMeans(3), apart, auxiliary=aligned, poorer=(ONE_CLIENT,)
        ),
        "all but one": Raid(
            AllButOne(apart.examples.x[:2], (1, 2, 4), -6.0, 6.0),
            WeightedGrid(3, local=2, steps=2, sketches=64, low=-6.0, high=6.0),
            apart,
            auxiliary=Auxiliary(apart.examples.take(torch.arange(1, len(apart.examples)))),
            poorer=(ONE_CLIENT,),
        ),
        "moved records": Raid(MovedRecords(), moving, many),
        "shown centres": Raid(ShownCentres(), among, apart, auxiliary=Auxiliary(parts={SHOWN: shown})),
        "party inference": Raid(PartyInference(curious_party(1)), VerticalKMeans(3), apart, auxiliary=beside),
        "shadow membership": Raid(
            ShadowMembership(Seat.UPLOADS, SMALL, questions, Rehearsed(*looks), (0, 1)),
            profiled,
            rows,
            SMALL,
            auxiliary=each,
            poorer=(ONE_CLIENT,),
        ),
        "update membership": Raid(
            UpdateMembership(Seat.UPLOADS, SMALL, questions),
            profiled,
            rows,
            SMALL,
            auxiliary=each,
            poorer=(ONE_CLIENT,),
        ),
        "span membership": Raid(
            SpanMembership(Seat.UPLOADS, SMALL, questions),
            profiled,
            rows,
            SMALL,
            auxiliary=each,
            poorer=(ONE_CLIENT,),
        ),
        "canary test": Raid(
            CanaryTest(Seat.UPLOADS, SMALL, every), profiled, rows, SMALL, auxiliary=Auxiliary(first.take(every))
        ),
        "gradient inversion": Raid(
            GradientInversion(DIGITS, one, (1, 8, 8), iterations=5),
            FedAvg(rounds=1, local=one),
            pictures,
            DIGITS,
            poorer=(ONE_CLIENT,),
        ),
        "conditional GAN": Raid(drawing, FedAvg(rounds=4, local=STEPS), pictures, DIGITS),
        "cost test": Raid(CostTest(POINTS[0]), LLOYD, rows),
        "shadow test": Raid(ShadowTest(POINTS[0], shadows, shadows + 1), LLOYD, rows),
        "sums test": Raid(
            SumsTest(first.x[:1], Points.of([rows.examples.x[rows.train.rows[1:]]]), NOISE),
            LLOYD,
            rows,
            defence=CentralNoise(NOISE),
        ),
    }


every_attack = pytest.mark.parametrize("raid", raids().values(), ids=raids().keys())
