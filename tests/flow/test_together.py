"""Many federations at once are what they are one by one: for every trainer, and whatever guards their clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.members import EAGER, STEPS, TRAINERS, Member, every_trainer, uneven
from tests.ring import blobs

from coterie.data.federation import Federation, Schedule, Shards
from coterie.data.partition.arrivals import late
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.defences.dpsgd import DpSgd
from coterie.defences.mingling.defence import Mingling
from coterie.defences.regularise import Dropout
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow import together
from coterie.flow.guard import Defence
from coterie.flow.protocol import Protocol
from coterie.flow.retraced import products_bytes, retraces
from coterie.flow.ring import Ring
from coterie.flow.together import run_together
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Model
from coterie.learn.optimisers import Decay
from coterie.learn.params import Layout
from coterie.measure.witness import Witness
from coterie.privacy.ledger import Ledger
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.sattler import Sattler
from coterie.protocols.starts import Given
from coterie.rng import Rng
from coterie.seal.mock import MockCipher
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

SERVER = ThreatModel("server", server=True)


def rings(member: Member, defence: Defence | None = None) -> list[Ring[Any]]:
    """Three federations of the same examples, dealt otherwise, with other seeds."""
    first = member.federation()
    orders = [torch.arange(first.clients).roll(seed).tolist() for seed in range(3)]
    dealt = [replace(first, train=first.train.pick(order), test=first.test.pick(order)) for order in orders]
    return ringed(member.protocol, dealt, member.model, defence)


def ringed(
    protocol: Protocol[Any], dealt: Sequence[Federation], model: Model | None, defence: Defence | None = None
) -> list[Ring[Any]]:
    """A ring for each of these federations of the same examples."""
    return [
        Ring(
            protocol,
            federation,
            model,
            defence or Defence(),
            Roots.seeded(seed),
            Tape([SERVER]),
            witness=Witness(),
            processes=0,
        )
        for seed, federation in enumerate(dealt)
    ]


def check(member: Member, defence: Defence | None = None, together_bytes: int = 1 << 24) -> None:
    check_these(lambda: rings(member, defence), together_bytes)


def check_these(made: Callable[[], list[Ring[Any]]], together_bytes: int = 1 << 24) -> None:
    apart, joint = made(), made()
    states = [ring.run() for ring in apart]
    for state, other, one, many in zip(states, run_together(joint, together_bytes), apart, joint, strict=True):
        expected, found = one.models(state), many.models(other)
        assert expected.keys() == found.keys()
        for name, leaf in expected.items():
            assert torch.allclose(found[name], leaf, atol=1e-5), name
        assert many.witness == one.witness
        assert many.ledger.rows == one.ledger.rows
        assert many.memory.keys() == one.memory.keys()
        views = [ring.view(SERVER) for ring in (one, many)]
        assert views[0].kinds() == views[1].kinds()
        assert views[0].rounds() == views[1].rounds()


@every_trainer
def test_together_is_one_by_one(member: Member) -> None:
    check(member)


WIDE = {name: one for name, one in TRAINERS.items() if one.federation is uneven and isinstance(one.model, Dense)}


def widened(member: Member) -> Member:
    """Of examples with so many features that their products with each other are the shorter way."""
    assert isinstance(member.model, Dense)
    model = replace(member.model, sizes=(60, *member.model.sizes[1:]))
    return replace(member, federation=lambda: replace(uneven_wide(), joins=uneven().joins), model=model)


def uneven_wide() -> Federation:
    """Short rows: steps of long ones overshoot, and what is rounded grows."""
    found = blobs((6, 5, 0, 6, 3, 6, 4, 5), features=60)
    return replace(found, examples=replace(found.examples, x=found.examples.x / 8))


@pytest.mark.parametrize("name", WIDE)
def test_the_shorter_way_is_one_by_one(name: str) -> None:
    check(widened(WIDE[name]))


def test_which_way_is_the_shorter_one() -> None:
    def shorter(name: str, defence: Defence | None = None) -> bool:
        return retraces(rings(widened(WIDE[name]), defence)[0])

    assert shorter("fedavg")
    assert shorter("ifca")
    assert not shorter("fedavg, dropout")
    assert not shorter("fedavg, momentum, falling rate")
    assert not shorter("ifca", DpSgd(1.0, 2.0))
    assert not shorter("ifca", Dropout(0.2))
    assert not retraces(rings(TRAINERS["fedavg"])[0])  # four features: the products are more than the steps


def test_in_groups_as_in_one() -> None:
    check(TRAINERS["ifca"], together_bytes=2 * a_federation(TRAINERS["ifca"]))


def test_what_fills_the_cache_is_run_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together, two of them would be slower than one after the other."""
    member, joint = TRAINERS["ifca"], []
    monkeypatch.setattr(together, "_answer", lambda desks, kept: joint.append(len(desks)))
    states = run_together(rings(member), 2 * a_federation(member) - 1)
    assert not joint
    assert len(states) == 3


def a_federation(member: Member) -> int:
    """Bytes of the parameters that its clients train."""
    assert member.model is not None
    clients: int = member.federation().clients
    return 4 * clients * Layout.of(member.model.init(0)).length


@pytest.mark.parametrize(
    "defence", [DpSgd(1.0, 2.0), SecureSums(), Mingling(cipher=MockCipher(), exact=True)], ids=lambda one: str(one)[:8]
)
def test_guards_are_each_federations_own(defence: Defence) -> None:
    check(TRAINERS["ifca"], defence)


FALLING = replace(STEPS, schedule=Decay("exponential", factor=0.3))
LAGGING = [Sattler(rounds=6, local=FALLING, **EAGER), CosineKMeans(rounds=6, local=FALLING, clusters=2)]  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", LAGGING, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("wide", [False, True], ids=["plain", "shorter"])
def test_who_places_newcomers_in_between_trains_with_its_own_rounds_rate(protocol: Protocol[Any], wide: bool) -> None:
    """Rings whose clients join at other times exchange other numbers of messages."""
    first = uneven_wide() if wide else blobs((12, 9, 0, 12, 5, 12, 7, 10))
    dealt = [late(first, 0.4, 1 + seed, Rng.seeded(seed)) for seed in range(3)]
    check_these(lambda: ringed(protocol, dealt, Dense((60 if wide else 4, 6, 3))))


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_scheduled_clients_use_a_part_of_their_rows(name: str) -> None:
    first, member = uneven_wide(), widened(WIDE[name])
    rows = first.train[0]
    dealt = [replace(first, schedules={0: Schedule(rows[:2], rows[2:], every=2 + seed)}) for seed in range(3)]
    check_these(lambda: ringed(member.protocol, dealt, member.model))


def test_who_is_curious_is_each_rings_own() -> None:
    """What a curious client knows of its own answer before it is sealed is on the tape of its ring alone."""

    def curious() -> list[Ring[Any]]:
        found = rings(TRAINERS["ifca"], SecureSums())
        threats = [ThreatModel("me", clients=frozenset({client})) for client in (3, 4, 5)]
        return [
            replace(ring, tape=Tape([SERVER, threat]), witness=Witness(), ledger=Ledger())
            for ring, threat in zip(found, threats, strict=True)
        ]

    apart, joint = curious(), curious()
    for ring in apart:
        ring.run()
    run_together(joint)
    for client, one, many in zip((3, 4, 5), apart, joint, strict=True):
        threat = ThreatModel("me", clients=frozenset({client}))
        assert many.view(threat).kinds() == one.view(threat).kinds()


@pytest.mark.parametrize("wide", [False, True], ids=["plain", "shorter"])
def test_a_record_that_overflows_changes_nothing_in_other_federations(wide: bool) -> None:
    """Under a guard that also answers after NaN: elsewhere all of them stop."""
    first = uneven_wide() if wide else blobs((6, 5, 1, 6, 3, 1, 4, 5))
    x = first.examples.x.clone()
    x[0] = 3.4e38 * x[0].sign()
    first = replace(first, examples=replace(first.examples, x=x))
    without = Shards.of([first.train[0][1:], *(first.train[client] for client in range(1, first.clients))])
    dealt = [first, replace(first, train=without), replace(first, train=without)]
    guard = ClippedLdp(clip=0.5, noise_multiplier=0.1)
    check_these(lambda: ringed(FedAvg(rounds=3, local=STEPS), dealt, Dense((60 if wide else 4, 6, 3)), guard))


def test_products_that_overflow_are_not_the_shorter_way() -> None:
    """Steps that move nothing leave a network as it is, however large the record is that it is sure of."""
    first = uneven_wide()
    x = first.examples.x.clone()
    x[0] = 1e20
    first = replace(first, examples=replace(first.examples, x=x))
    model = Dense((60, 6, 3))
    start = {name: torch.zeros_like(leaf).unsqueeze(0) for name, leaf in model.init(0).items()}
    start["1.bias"][0, first.examples.y[0]] = 200.0  # sure of that record's class, and of no other
    alone = Shards.of([first.train[0][:1], *(first.train[client][:0] for client in range(1, first.clients))])
    protocol = FedAvg(rounds=2, local=STEPS, begins=Given(given=start))
    check_these(lambda: ringed(protocol, [replace(first, train=alone)] * 3, model))


def test_the_shorter_way_is_taken_by_so_many_as_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client has room for as many products as the largest has."""
    member, groups, answer = widened(WIDE["fedavg"]), [], together._answer

    def answered(desks: Sequence[Any], kept: Any = None) -> None:
        groups.append((len(desks), kept is not None))
        answer(desks, kept)

    monkeypatch.setattr(together, "_answer", answered)
    a_ring = products_bytes(rings(member)[0])
    for room, expected in ((2 * a_ring, {(2, True), (1, True)}), (2 * a_ring - 1, set())):
        groups.clear()
        run_together([replace(ring, chunk_bytes=room) for ring in rings(member)], together_bytes=1)
        assert set(groups) == expected


def test_what_cannot_be_run_together_is_refused() -> None:
    one, two = rings(TRAINERS["fedavg"])[0], rings(TRAINERS["fedprox"])[0]
    with pytest.raises(InvalidInput, match="protocol, model and defence of the others"):
        run_together([one, two])
    other = replace(rings(TRAINERS["fedavg"])[0], federation=blobs())
    with pytest.raises(InvalidInput, match="the others' very examples"):
        run_together([one, other])
    with pytest.raises(InvalidInput, match="at least one"):
        run_together([])
