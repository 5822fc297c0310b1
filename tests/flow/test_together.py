"""Many federations at once are what they are one by one: for every trainer, and whatever guards their clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.members import TRAINERS, Member, every_trainer, uneven
from tests.ring import blobs

from coterie.data.federation import Federation
from coterie.defences.dpsgd import DpSgd
from coterie.defences.mingling.defence import Mingling
from coterie.defences.regularise import Dropout
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow import together
from coterie.flow.guard import Defence
from coterie.flow.retraced import retraces
from coterie.flow.ring import Ring
from coterie.flow.together import run_together
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.params import Layout
from coterie.measure.witness import Witness
from coterie.seal.mock import MockCipher
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel

SERVER = ThreatModel("server", server=True)


def rings(member: Member, defence: Defence | None = None) -> list[Ring[Any]]:
    """Three federations of the same examples, dealt otherwise, with other seeds."""
    first = member.federation()
    found = []
    for seed in range(3):
        order = torch.arange(first.clients).roll(seed).tolist()
        dealt: Federation = replace(first, train=first.train.pick(order), test=first.test.pick(order))
        found.append(
            Ring(
                member.protocol,
                dealt,
                member.model,
                defence or Defence(),
                Roots.seeded(seed),
                Tape([SERVER]),
                witness=Witness(),
                processes=0,
            )
        )
    return found


def check(member: Member, defence: Defence | None = None, together_bytes: int = 1 << 24) -> None:
    apart, joint = rings(member, defence), rings(member, defence)
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


def test_what_cannot_be_run_together_is_refused() -> None:
    one, two = rings(TRAINERS["fedavg"])[0], rings(TRAINERS["fedprox"])[0]
    with pytest.raises(InvalidInput, match="protocol, model and defence of the others"):
        run_together([one, two])
    other = replace(rings(TRAINERS["fedavg"])[0], federation=blobs())
    with pytest.raises(InvalidInput, match="the others' very examples"):
        run_together([one, other])
    with pytest.raises(InvalidInput, match="at least one"):
        run_together([])
