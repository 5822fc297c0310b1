"""Poisoning: in its control there is nothing to lose."""

from __future__ import annotations

from tests.audit.toy import subject

from coterie.audit.families.poisoning import FAMILY, _reordered
from coterie.config.schema import Choice
from coterie.measure.stopping import Patience
from coterie.rng import Rng

ASKED = subject(trainer={"kind": "fedavg", "rounds": 30, "local": {"steps": 5, "batch_size": 16, "lr": 0.3}})


def test_the_control_trains_everybody_on_the_same_rows() -> None:
    before = ASKED.federation()
    after = _reordered(before, 3, Rng.seeded(0))
    for client in range(before.clients):
        own, other = before.train[client].tolist(), after.train[client].tolist()
        assert sorted(own) == sorted(other)
        assert (own == other) == (client != 3)


def test_patience_ends_the_attacked_run_as_it_ends_the_honest_one() -> None:
    """Else the one would be trained longer, and what was taken from it would be lost in what it had learnt since."""
    asked = ASKED.model_copy(update={"stop": Patience(measurements=1, least=0.9), "evaluate_every": 1})
    again = FAMILY.measure(asked, Choice(kind="none"), 0).findings[1]
    assert abs(again.score) < 0.1


def test_a_bad_client_takes_more_than_an_honest_one_by_other_draws() -> None:
    found = FAMILY.measure(ASKED, Choice(kind="none"), 0).findings
    assert [(one.attack, one.control) for one in found] == [
        ("reversed updates", False),
        ("other draws", True),
    ]
    assert all(one.units == 9 for one in found)
    assert found[0].score > found[1].score
