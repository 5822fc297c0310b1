"""Law 7. Bad input raises an error that names the thing, the value and the remedy, or is handled by a stated rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.laws.members import EMPTY, LATE, VERTICAL, Member, every_member_by_rows, every_trainer
from tests.ring import blobs, play

from coterie.data.federation import Shards
from coterie.errors import Diverged, InvalidInput
from coterie.flow.ask import AnyAsk
from coterie.learn.models.bundled import Cnn, Gru
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.utility import evaluate
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.fedprox import FedProx
from coterie.protocols.ifca import Ifca
from coterie.protocols.sattler import Sattler
from coterie.wire.messages import TRAIN


@every_member_by_rows
def test_a_client_without_data_is_asked_where_nothing_may_show_that_it_has_none(member: Member) -> None:
    """Trainers never ask it; whoever wants sums of records asks all who are enrolled, and it answers with zeros."""
    done = play(member.protocol, member.federation(), member.model)
    asked = {EMPTY in ask.clients for ask in done.asks}
    assert not member.protocol.trains or asked == {False}
    assert not member.protocol.releases() or asked == {True}
    scores = evaluate(done.ring, done.state)
    torch.testing.assert_close(scores.choices.sum(1), torch.ones(len(scores.choices)))  # yet it can predict
    assert not scores.accuracy.isnan().any()


@every_member_by_rows
def test_a_client_is_not_asked_before_it_joins(member: Member) -> None:
    done = play(member.protocol, member.federation(), member.model)
    assert all(LATE not in ask.clients for ask in done.asks if ask.round < 2)
    assert done.state.round < 2 or any(LATE in ask.clients for ask in done.asks)


@every_member_by_rows
def test_one_client_is_a_federation(member: Member) -> None:
    if isinstance(member.protocol, CosineKMeans):
        with pytest.raises(InvalidInput, match="clusters=2 is more than the 1 clients; use fewer clusters"):
            play(member.protocol, blobs([9]), member.model)
        return
    done = play(member.protocol, blobs([9]), member.model)
    assert all(torch.isfinite(leaf).all() for leaf in member.protocol.result(done.state).values.values())


@every_member_by_rows
def test_a_client_that_never_answers_is_left_out(member: Member) -> None:
    done = play(member.protocol, member.federation(), member.model, lost=lambda asked: [1])
    assert all(torch.isfinite(leaf).all() for leaf in member.protocol.result(done.state).values.values())
    assert done.state.round == play(member.protocol, member.federation(), member.model).state.round


@every_member_by_rows
def test_a_round_that_nobody_answers(member: Member) -> None:
    """A trainer stays as it was and goes on; a clustering has nothing to go on with, and says so."""
    protocol, silent = member.protocol, range(8)
    if not protocol.trains:
        with pytest.raises(InvalidInput, match=r"answers.*leave nothing to"):
            play(protocol, member.federation(), member.model, lost=lambda asked: silent)
        return
    done = play(protocol, member.federation(), member.model, lost=lambda asked: silent)
    assert done.state.round == protocol.rounds  # type: ignore[attr-defined]
    asked = [ask for ask in done.asks if ask.kind == TRAIN]
    first = {_trial(ask): ask.published.values for ask in reversed(asked)}  # each trial has a start of its own
    for ask in asked:
        assert all(torch.equal(leaf, first[_trial(ask)][name]) for name, leaf in ask.published.values.items())


def _trial(ask: AnyAsk) -> int:
    return int(getattr(ask.state, "trial", 0))


every_vertical = pytest.mark.parametrize("member", VERTICAL.values(), ids=VERTICAL.keys())


@every_vertical
def test_a_party_that_stops_answering_stops_the_run_and_loses_nothing(member: Member) -> None:
    """Its columns are missing from every distance; when it is back the run goes on from the request that failed."""
    whole = play(member.protocol, member.federation(), member.model)
    last = whole.asks[-2].round  # the one before the result
    with pytest.raises(InvalidInput, match=rf"in round {last}=2 leave nothing to add up: all 3 parties must answer"):
        play(member.protocol, member.federation(), None, lost=lambda asked: [1] if asked.round == last else [])
    resumed = play(member.protocol, member.federation(), None, state=whole.states[-2], memory=whole.memories[-2])
    assert resumed.bytes == whole.bytes


@every_vertical
def test_nobody_answers_a_vertical_clustering(member: Member) -> None:
    with pytest.raises(InvalidInput, match=r"answers to '(seed|distances|widths)' in round 0=0 leave nothing to"):
        play(member.protocol, member.federation(), None, lost=lambda asked: range(3))


@every_vertical
def test_rows_have_no_columns_to_add_up(member: Member) -> None:
    with pytest.raises(InvalidInput, match="needs parties with columns; split it by columns"):
        play(member.protocol, blobs([9, 9]), None)


@every_member_by_rows
def test_nobody_in_the_first_round(member: Member) -> None:
    with pytest.raises(InvalidInput, match="clients in round 0=0 must be at least 1; let someone"):
        play(member.protocol, blobs([9, 9], joins=[1, 1]), member.model)


@every_trainer
def test_divergence_is_told(member: Member) -> None:
    """An absurd learning rate, with features that are large enough to overflow."""
    federation = member.federation()
    federation = replace(federation, examples=replace(federation.examples, x=federation.examples.x * 1e12))
    protocol: Any = member.protocol
    with pytest.raises(Diverged, match=r"NaN or infinite.*lower lr=1e\+20"):
        play(replace(protocol, local=replace(protocol.local, lr=1e20)), federation, member.model)


@every_trainer
def test_no_rounds_is_the_start(member: Member) -> None:
    tried = {"starts": 1} if getattr(member.protocol, "starts", 1) > 1 else {}  # trials are rounds
    protocol: Any = replace(member.protocol, rounds=0, **tried)  # type: ignore[type-var]
    done = play(protocol, member.federation(), member.model)
    assert done.state.round == 0
    evaluate(done.ring, done.state)


BAD = [
    (lambda: FedAvg(rounds=-1), "rounds=-1 must be at least 0"),
    (lambda: FedAvg(participation=0.0), r"participation=0.0 must lie in \(0, 1\]"),
    (lambda: FedAvg(weighting="size"), "weighting='size' must be 'samples' or 'equal'"),
    (lambda: FedProx(mu=-1.0), "mu=-1.0 must be at least 0"),
    (lambda: FedEM(components=0), "components=0 must be at least 1"),
    (lambda: Ifca(clusters=0), "clusters=0 must be at least 1"),
    (lambda: Ifca(clusters=5, candidates=3), "clusters=5 must be at most candidates=3,"),
    (lambda: Ifca(choose_on=0), "choose_on=0 must be at least 1"),
    (lambda: Ifca(average_gradients=True), r"local=.* must be Local\(steps=1\)"),
    (lambda: Sattler(agreement=2.0), r"agreement=2.0 must lie in \[0, 1\]"),
    (lambda: Sattler(progress=-1.0), "progress=-1.0 must be at least 0"),
    (lambda: Sattler(least=0), "least=0 must be at least 1"),
    (lambda: Sattler(most=0), "most=0 must be at least 1"),
    (lambda: CosineKMeans(clusters=0), "clusters=0 must be at least 1"),
    (lambda: CosineKMeans(warmup=-1), "warmup=-1 must be at least 0"),
    (lambda: VerticalKMeans(0), "clusters=0 must be at least 1"),
    (lambda: VerticalKMeans(3, steps=0), "steps=0 must be at least 1"),
    (lambda: Local(steps=0), "steps=0 must be at least 1"),
    (lambda: Local(epochs=0), "epochs=0 must be at least 1, or None for steps"),
    (lambda: Local(batch_size=0), "batch_size=0 must be at least 1"),
    (lambda: Local(lr=0.0), "lr=0.0 must be positive"),
    (lambda: Local(lr=float("nan")), "lr=nan must be positive"),
    (lambda: Local(epochs=1, poisson=True), "epochs=1 have no meaning with poisson; set steps"),
    (lambda: Dense((4,)), r"sizes=\(4,\) must name the input and the output"),
    (lambda: Dense((4, 2), dropout=1.0), r"dropout=1.0 must lie in \[0, 1\)"),
    (lambda: Cnn(shape=(1, 8, 8)), r"shape=\(1, 8, 8\) must be .* with 16 pixels a side at least"),
    (lambda: Cnn(classes=0), "classes=0 must be at least 1"),
    (lambda: Gru(vocabulary=1), "vocabulary=1 must be at least 2"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_settings_are_checked_where_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_federation_of_empty_clients() -> None:
    federation = blobs([3, 3])
    nothing = torch.empty(0, dtype=torch.int64)
    with pytest.raises(InvalidInput, match="every client is empty"):
        replace(federation, train=Shards.of([nothing, nothing]))


def test_data_of_another_shape_than_the_model_s() -> None:
    with pytest.raises(InvalidInput, match=r"features of an example=4 must be 5, .*sizes=\(5, 3\)"):
        play(FedAvg(rounds=1), blobs([9, 9]), Dense((5, 3)))
