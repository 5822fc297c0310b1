"""Newcomers that answer against their own data are led into every cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.ring import play

from coterie.attacks.acquisition import ModelAcquisition, Walk, acquisition_threat, exhausted, wanted_side
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.judge import ClusterCounts, judge
from coterie.measure.witness import Witness
from coterie.protocols.sattler import Sattler
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.tape import Tape

GROUPS, EACH = 3, 4
FIRST = GROUPS * EACH  # the first newcomer
MODEL = Dense((6, 12, 3))


def federation(newcomers: int) -> Federation:
    """Groups that disagree about labels, and newcomers that have the first group's data and come one by one."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(40 * (FIRST + newcomers), 6, generator=draws)
    region = x[:, :3].argmax(1)
    rows = list(torch.arange(len(x)).split(40))
    shift = torch.tensor([client // EACH if client < FIRST else 0 for client in range(len(rows))])
    y = (region + shift.repeat_interleave(40)) % 3
    joins = torch.tensor([0] * FIRST + [30 + 2 * number for number in range(newcomers)])
    return Federation(Examples(x, y, 3, "groups"), Shards.of(rows), Shards.of(rows), shift, joins)


def sattler(newcomers: int) -> Sattler:
    local = Local(steps=5, batch_size=20, lr=0.3)
    return Sattler(rounds=30 + 2 * newcomers + 2, local=local, progress=0.0, most=GROUPS)


def run(newcomers: int, honest: bool = False) -> tuple[Any, Witness]:
    data = federation(newcomers)
    attack = ModelAcquisition(acquisition_threat(frozenset(range(FIRST, FIRST + newcomers))))
    rng = Rng.seeded(1)
    tape, witness = Tape([attack.threat]), Witness()
    acting = [] if honest else [attack]
    ring = Ring(sattler(newcomers), data, MODEL, roots=Roots.same(rng), tape=tape, adversaries=acting, witness=witness)
    with ring:
        ring.run()
    return attack.infer(tape.view(attack.threat), Auxiliary(), rng), witness


def test_as_many_newcomers_as_clusters_obtain_every_model() -> None:
    guess, witness = run(newcomers=GROUPS)
    last = max(guess.slots)
    assert witness.slots[last] == GROUPS
    assert guess.slots[last] == frozenset(range(GROUPS))
    finding = judge(guess, ClusterCounts(witness.slots), "acquisition")
    assert finding.score == 1.0
    assert f"{GROUPS} of {GROUPS} clusters obtained with {GROUPS} newcomers" in finding.knew


def test_honest_newcomers_with_the_same_data_are_all_given_the_same_model() -> None:
    guess, witness = run(newcomers=GROUPS, honest=True)
    assert len(guess.slots[max(guess.slots)]) == 1
    assert judge(guess, ClusterCounts(witness.slots)).score == pytest.approx(1 / GROUPS)


def test_other_messages_pass_untouched() -> None:
    guess, _ = run(newcomers=1)
    assert len(guess.slots[max(guess.slots)]) == 1


def walk(finished: bool = True, **sides: bool) -> Walk:
    return Walk({name.replace("_", " "): side for name, side in sides.items()}, finished)


def test_the_search_goes_where_nobody_has_ended() -> None:
    assert wanted_side("place 1", []) is True
    assert wanted_side("place 1", [walk(place_1=True)]) is False  # the first ended there
    deep = [walk(place_1=True, place_2=True)]
    assert not exhausted("place 1", True, deep)  # the other side of split 2 is still to be seen
    assert wanted_side("place 2", deep) is False
    both = [*deep, walk(place_1=True, place_2=False)]
    assert exhausted("place 1", True, both)
    assert wanted_side("place 1", both) is False
    under_way = [walk(place_1=True, finished=False)]
    assert not exhausted("place 1", True, under_way)
    assert wanted_side("place 1", under_way) is False  # but one is on its way there already
    assert replace(under_way[0], finished=True).below("place 1") is None


def test_a_killed_run_goes_on_with_what_the_newcomers_had_learnt() -> None:
    """Stopped between a newcomer's placement and the next one's, which is steered by what the first was asked."""
    attack = ModelAcquisition(acquisition_threat(frozenset(range(FIRST, FIRST + GROUPS))))
    whole = play(sattler(GROUPS), federation(GROUPS), MODEL, adversaries=[attack], seed=1)
    placings = [at for at, ask in enumerate(whole.asks) if ask.kind.name == "place"]
    assert len({whole.asks[at].round for at in placings}) == GROUPS
    for at in (placings[1], placings[-1]):
        resumed = play(
            sattler(GROUPS),
            federation(GROUPS),
            MODEL,
            adversaries=[attack],
            seed=1,
            state=whole.states[at],
            memory=whole.memories[at],
        )
        assert resumed.bytes == whole.bytes
        assert encode(resumed.ring.memory) == encode(whole.ring.memory)
    assert sorted(whole.ring.memory[-1]["ways"]) == list(range(FIRST, FIRST + GROUPS))
