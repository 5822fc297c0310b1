"""Records in the span of what a first layer moved by: exact while they are fewer than features, and chance beyond."""

from __future__ import annotations

import pytest
import torch
from tests.ring import play

from coterie.attacks.shadows import Asked, Seat
from coterie.attacks.span_membership import SpanMembership, Spanned
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.defences.dpsgd import DpSgd
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.bundled import Cnn
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.judge import YesNo, judge
from coterie.protocols.fedavg import FedAvg
from coterie.rng import Rng
from coterie.wire.tape import Tape

NETWORK = Dense((100, 8, 2))
TRAINER = FedAvg(rounds=12, local=Local(steps=3, batch_size=8, lr=0.2, poisson=True))


def federation(each: int, clients: int = 3) -> Federation:
    """Records of nothing but noise; as many again were trained on by nobody."""
    draws, count = torch.Generator().manual_seed(0), 2 * each * clients
    x, y = torch.randn(count, 100, generator=draws), torch.randint(2, (count,), generator=draws)
    rows = torch.arange(each * clients).reshape(clients, each)
    parts, held = Shards.of(list(rows)), Shards.of(list(rows + each * clients))
    return Federation(Examples(x, y, 2, "noise"), parts, held, torch.zeros(clients, dtype=torch.int64))


def score(seat: Seat, each: int, defence: Defence | None = None, clients: int = 3) -> float:
    here = federation(each, clients)
    count = len(here.examples)
    number = torch.arange(count)
    asked = Asked(number, 0 * number, number // each % clients, (number >= count // 2) & (number % 4 == 0))
    attack = SpanMembership(seat, NETWORK, asked)
    done = play(TRAINER, here, NETWORK, defence=defence or Defence(), tape=Tape([attack.threat]))
    guess = attack.infer(done.ring.view(attack.threat), Auxiliary(here.examples), Rng.seeded(0))
    truth = YesNo({int(one): bool(one < count // 2) for one in number[~asked.known]}) if guess.scores else None
    return judge(guess, truth).score if truth else float("nan")


@pytest.mark.parametrize("seat", [Seat.UPLOADS, Seat.PUBLISHED])
def test_every_member_of_few_is_found(seat: Seat) -> None:
    assert score(seat, each=20) == 1.0


def test_the_fewer_stand_behind_a_model_the_better_they_are_told_apart() -> None:
    """Of 100 features: 60 records of a client are in its own update; in their sum 180 are, and 900 say little."""
    assert score(Seat.UPLOADS, each=60) > 0.99
    assert 0.7 < score(Seat.PUBLISHED, each=60) < 0.95
    assert score(Seat.PUBLISHED, each=300) < 0.7


def test_noise_hides_the_span_and_masks_hide_who_sent_what() -> None:
    assert 0.35 < score(Seat.UPLOADS, each=20, defence=DpSgd(1.0, 1.0)) < 0.65
    assert torch.tensor(score(Seat.UPLOADS, each=20, defence=SecureSums())).isnan()
    assert score(Seat.PUBLISHED, each=20, defence=SecureSums()) > 0.99  # what they add up to is published


def test_what_lies_outside_by_hand() -> None:
    span = Spanned()
    span.enter(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]]).double(), torch.zeros(2, 3).double())
    records = torch.tensor([[1.0, 5.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 1.0]]).double()
    assert span.outside(records).tolist() == pytest.approx([0.0, 1.0, 0.5], abs=0.1)


def test_what_cannot_be_is_refused() -> None:
    asked = Asked(*(torch.arange(3),) * 3, torch.zeros(3, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="sees no updates"):
        SpanMembership(Seat.FINAL, NETWORK, asked)
    with pytest.raises(InvalidInput, match="dense from its input on"):
        SpanMembership(Seat.UPLOADS, Cnn(), asked)
