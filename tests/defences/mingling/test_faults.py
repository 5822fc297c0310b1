"""Drop-outs and bad messages in each request: the round ends right or is left out, and no lie becomes a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.defences.mingling.federation import FEDERATION, IFCA, MODEL, models
from tests.ring import Play, play

from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import AGREE, MASKED, OPEN, SHARES, TALLY, PairwiseMasks, RoundLeftOut, Smallest
from coterie.flow.guard import Defence
from coterie.learn.params import flatten
from coterie.rng import Rng
from coterie.seal.masked import MaskedBatch
from coterie.seal.pairwise import Party
from coterie.wire.codec import encode
from coterie.wire.messages import Down, Message, Up
from coterie.wire.sealed import SEALED
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

ONCE = replace(IFCA, rounds=1, candidates=0)
SIGNED = PairwiseMasks(signed=True)
LIAR = ThreatModel("liar", taps=frozenset({1}))
quiet = pytest.mark.filterwarnings(
    "ignore::coterie.defences.secure_sums.ClientsDropped",
    "ignore::coterie.defences.secure_sums.ClusterLeftOut",
    "ignore::coterie.defences.secure_sums.RoundLeftOut",
)


def defence(masks: PairwiseMasks | None = None) -> Mingling:
    """Everybody is in every cluster, and one may drop out."""
    return Mingling(threshold=3, smallest=Smallest(1, spare=1), cipher=masks or PairwiseMasks())


def run(defence: Defence, **options: Any) -> Play:
    return play(options.pop("protocol", ONCE), FEDERATION, MODEL, defence=defence, **options)


def right_or_left_out(done: Play, gone: Collection[int] = (1,)) -> None:
    """Cluster by cluster, what IFCA gives with everybody, without those who are gone, or what was there before."""
    allowed = [run(Defence()), run(Defence(), lost=lambda asked: gone)]
    expected = [flatten(done.asks[0].published.values), *(flatten(one.state.published.values) for one in allowed)]
    apart = torch.stack([(flatten(models(done)) - one).abs().amax(1) for one in expected])  # (runs, clusters)
    assert float(apart.amin(0).max()) < 2e-5


@dataclass(frozen=True)
class Lying:
    """On client 1's link: changes what it says in one of the exchanges."""

    part: str
    note: bytes
    threat: ThreatModel = LIAR

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if isinstance(message, Up) and message.kind.part == self.part:
            batch = message.sent.sealed.get(SEALED)
            if isinstance(batch, MaskedBatch):
                rows = tuple(tuple(None if w is None else w[: len(self.note)] for w in row) for row in batch.words)
                return replace(message, sent=replace(message.sent, sealed={SEALED: replace(batch, words=rows)}))
            return replace(message, sent=replace(message.sent, notes=(self.note,)))
        return message


NUMBERS = np.zeros(3, dtype=np.int64)
OTHERS = [client for client in range(12) if client != 1]
LIES = [
    Lying("", bytes(96)),
    Lying("", Party(1).advert.to_bytes()),
    Lying("", b"short"),
    Lying(SHARES, b"rubbish"),
    Lying(SHARES, encode({})),
    Lying(SHARES, encode(dict.fromkeys(OTHERS, b"junk"))),
    Lying(TALLY, encode(NUMBERS)),
    Lying(TALLY, encode("words")),
    Lying(TALLY, encode(np.zeros(4, dtype=np.int64))),
    Lying(MASKED, bytes(7)),
    Lying(OPEN, encode(dict.fromkeys(range(12), np.zeros(9, dtype=np.int64)))),
    Lying(OPEN, encode({})),
    Lying(OPEN, b""),
]


@quiet
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie.part or 'adverts'}, {len(lie.note)} bytes")
def test_a_lie_costs_at_most_the_round(lie: Lying) -> None:
    right_or_left_out(run(defence(), tape=Tape([lie.threat]), adversaries=[lie]))


@quiet
@pytest.mark.parametrize("part", ["", SHARES, TALLY, MASKED, AGREE, OPEN])
@pytest.mark.parametrize("gone", [[1], range(6)], ids=["one", "half"])
def test_drop_outs_in_every_request(part: str, gone: Collection[int]) -> None:
    done = run(defence(SIGNED), lost=lambda asked: gone if asked.kind.part == part else ())
    right_or_left_out(done, gone)


# -- signatures ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClusterLeftOut")
def test_signed_rounds_give_the_same_and_take_one_request_more() -> None:
    tape, server = Tape([ThreatModel("server", server=True)]), ThreatModel("server", server=True)
    protocol = replace(ONCE, rounds=2)
    done = run(Mingling(threshold=3, smallest=Smallest(1), cipher=SIGNED), protocol=protocol, tape=tape)
    plain = run(Defence(), protocol=protocol)
    torch.testing.assert_close(flatten(models(done)), flatten(plain.state.published.values), rtol=0, atol=2e-5)
    parts = {kind.part for kind in done.ring.view(server).kinds()}
    assert parts == {"", SHARES, TALLY, MASKED, AGREE, OPEN}


@dataclass(frozen=True)
class Impostor:
    """Puts keys of its own in the place of client 1's, signed by a key of its own, in the second round."""

    threat: ThreatModel = LIAR

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if isinstance(message, Up) and message.round == 1 and not message.kind.part:
            mine = Party(1, request="1 train", identity=bytes(range(32)))
            return replace(message, sent=replace(message.sent, notes=(mine.advert.to_bytes(),)))
        return message


@quiet
def test_keys_that_others_do_not_know_are_not_taken() -> None:
    protocol, impostor = replace(ONCE, rounds=2), Impostor()
    done = run(defence(SIGNED), protocol=protocol, tape=Tape([impostor.threat]), adversaries=[impostor])
    first = run(defence(SIGNED))
    torch.testing.assert_close(flatten(models(done)), flatten(models(first)), rtol=0, atol=1e-7)  # left out


@dataclass(frozen=True)
class TwoStories:
    """Tells these clients that client 11 is gone, and everybody else that all are there."""

    told: frozenset[int]

    @property
    def threat(self) -> ThreatModel:
        return ThreatModel("two stories", taps=self.told)

    def intercept(self, message: Message, so_far: View, rng: Rng) -> Message:
        if isinstance(message, Down) and message.kind.part in (AGREE, OPEN):
            return replace(message, common=encode(tuple(range(11))))
        return message


@pytest.mark.parametrize(("told", "opens"), [(frozenset({3}), True), (frozenset(range(6)), False)])
@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClientsDropped")
@pytest.mark.filterwarnings("ignore::coterie.defences.secure_sums.ClusterLeftOut")
def test_nobody_helps_to_open_what_too_few_were_told(told: frozenset[int], opens: bool) -> None:
    """With half of them told another story nobody answers; without signatures each half would."""
    liar = TwoStories(told)
    if opens:
        right_or_left_out(run(defence(SIGNED), tape=Tape([liar.threat]), adversaries=[liar]))
        return
    with pytest.warns(RoundLeftOut, match="0 of 12 helped to open"):
        run(defence(SIGNED), tape=Tape([liar.threat]), adversaries=[liar])
