"""FedAvg, FedProx and IFCA, round by round, against plain references and numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.references import client_loop as slow
from tests.ring import blobs, cohort, play
from torch import Tensor

from coterie.data.federation import Federation
from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput
from coterie.flow.ask import Sums
from coterie.flow.guard import ClientGuard, Defence
from coterie.learn.models.dense import Dense
from coterie.learn.params import Params, pick
from coterie.learn.sgd import Local
from coterie.measure.utility import evaluate
from coterie.protocols.base import Models
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedprox import FedProx
from coterie.protocols.ifca import Ifca, candidate_sets, most_even
from coterie.seal.mock import MockCipher
from coterie.wire.codec import encode
from coterie.wire.messages import TRAIN, Kind, Published

MODEL = Dense((4, 5, 3))
LOCAL = Local(steps=3, batch_size=4, lr=0.2)
UNEVEN = blobs([12, 5, 9, 7])


def data(federation: Federation) -> list[tuple[Tensor, Tensor]]:
    x, y = federation.examples.x, federation.examples.y
    return [(x[federation.train[client]], y[federation.train[client]]) for client in range(federation.clients)]


def drawn(federation: Federation, local: Local, label: str = "batches") -> list[slow.Steps]:
    """Every client's batches of round 0, without the padding."""
    steps: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(federation.clients)]
    for batch in cohort(federation, MODEL).batches(local, label=label):
        for client, mine in enumerate(steps):
            kept = batch.weights[client] > 0
            if kept.any():
                mine.append((batch.x[client][kept], batch.y[client][kept]))
    return list(steps)


def same(found: Params, expected: Params) -> None:
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name], leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_a_round_of_fedavg_and_fedprox(mu: float, weighting: str) -> None:
    done = play(FedProx(rounds=1, local=LOCAL, mu=mu, weighting=weighting), UNEVEN, MODEL)
    start = pick(done.asks[0].published.values, 0)
    module = slow.module_of(MODEL.sizes)
    trained = [slow.sgd(module, start, steps, 0.2, mu) for steps in drawn(UNEVEN, LOCAL)]
    weights = [12.0, 5.0, 9.0, 7.0] if weighting == "samples" else [1.0] * 4
    same(pick(done.state.published.values, 0), slow.average(trained, weights))


def test_fedprox_without_its_term_is_fedavg() -> None:
    one = play(FedAvg(rounds=2, local=LOCAL), UNEVEN, MODEL)
    assert play(FedProx(rounds=2, local=LOCAL, mu=0.0), UNEVEN, MODEL).bytes == one.bytes
    assert play(FedProx(rounds=2, local=LOCAL, mu=0.1), UNEVEN, MODEL).bytes != one.bytes


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_round_of_ifca(gradients: bool, seed: int) -> None:
    local = Local(steps=1, batch_size=50, lr=0.2) if gradients else LOCAL
    protocol = Ifca(rounds=1, local=local, clusters=3, candidates=0, average_gradients=gradients)
    start = protocol.start(play(replace(protocol, rounds=0), UNEVEN, MODEL, seed=seed).ring.server)
    done = play(protocol, UNEVEN, MODEL, state=encode(start))
    models = [pick(start.published.values, slot) for slot in range(3)]
    expected, choice = slow.ifca_round(
        slow.module_of(MODEL.sizes), models, data(UNEVEN), drawn(UNEVEN, local), 0.2, gradients=gradients
    )
    for slot in range(3):
        same(pick(done.state.published.values, slot), expected[slot])
    assert done.state.published.sizes.tolist() == [choice.count(slot) for slot in range(3)]


def test_gradient_averaging_is_the_paper_s_formula() -> None:
    """By hand: clusters of weight 3 and 1 that moved by -1 and -8 move by -0.75 and -2."""
    sums = Sums(
        {"w": torch.tensor([[3.0 * 9], [1.0 * 2]], dtype=torch.float64)},
        torch.tensor([3.0, 1.0], dtype=torch.float64),
        torch.tensor([3, 1]),
    )
    ifca = Ifca(clusters=2, local=Local(steps=1), average_gradients=True)
    averaged = ifca.averaged(sums, Published({"w": torch.tensor([[10.0], [10.0]])}))
    assert averaged.values["w"].tolist() == [[9.25], [8.0]]


@pytest.mark.parametrize("gradients", [False, True])
def test_shared_leaves_are_averaged_over_all(gradients: bool) -> None:
    """By hand: weights 3 and 1; the shared leaf was 10 everywhere and the clusters' means are 9 and 2."""
    means = torch.tensor([[3.0 * 9], [1.0 * 2]], dtype=torch.float64)
    sums = Sums({"body": means, "head": means}, torch.tensor([3.0, 1.0], dtype=torch.float64), torch.tensor([3, 1]))
    before = Published({"body": torch.tensor([[10.0], [10.0]]), "head": torch.tensor([[10.0], [10.0]])})
    ifca = Ifca(clusters=2, local=Local(steps=1), average_gradients=gradients, shared=("body",))
    values = ifca.averaged(sums, before).values
    assert values["body"].tolist() == [[7.25], [7.25]]  # (3 * 9 + 1 * 2) / 4
    assert values["head"].tolist() == ([[9.25], [8.0]] if gradients else [[9.0], [2.0]])


@pytest.mark.parametrize("candidates", [0, 4])
def test_shared_leaves_are_equal_from_the_start(candidates: int) -> None:
    protocol = Ifca(rounds=3, local=LOCAL, clusters=2, candidates=candidates, shared=("0.",))
    done = play(protocol, UNEVEN, MODEL)
    for ask in done.asks:
        if ask.kind == TRAIN:
            assert torch.equal(ask.published.values["0.weight"][0], ask.published.values["0.weight"][1])
            assert not torch.equal(ask.published.values["1.weight"][0], ask.published.values["1.weight"][1])


def test_a_shared_prefix_that_matches_nothing() -> None:
    protocol = Ifca(rounds=1, local=LOCAL, clusters=2, candidates=0, shared=("encoder",))
    with pytest.raises(InvalidInput, match="shared='encoder' matches no leaf of the model; it has"):
        play(protocol, UNEVEN, MODEL)


def test_an_empty_cluster_keeps_its_model() -> None:
    """The second model is far worse for everybody, so nobody trains it."""
    good, bad = MODEL.init(0), {name: 100 * leaf for name, leaf in MODEL.init(1).items()}
    start = Models(0, Published({name: torch.stack([good[name], bad[name]]) for name in good}))
    done = play(Ifca(rounds=2, local=LOCAL, clusters=2), UNEVEN, MODEL, state=encode(start))
    assert done.state.published.sizes.tolist() == [4, 0]
    for name, leaf in bad.items():
        assert torch.equal(done.state.published.values[name][1], leaf)
        assert not torch.equal(done.state.published.values[name][0], good[name])


class TestStart:
    def test_the_most_even_set_wins(self) -> None:
        votes = torch.tensor([[4.0, 0.0, 0.0], [2.0, 1.0, 1.0], [2.0, 2.0, 0.0], [0.0, 1.0, 3.0]])
        assert most_even(votes) == 1

    def test_sets_follow_from_the_seeds(self) -> None:
        seeds = torch.arange(8) + 5
        sets = candidate_sets(seeds, 3)
        assert torch.equal(sets, candidate_sets(seeds, 3))
        assert all(len(set(row)) == 3 and max(row) < 8 for row in sets.tolist())

    def test_votes_are_for_the_smallest_loss(self) -> None:
        group = cohort(UNEVEN, MODEL)
        seeds = torch.tensor([3, 14, 15, 92])
        sent = Ifca(clusters=2, candidates=4).answer(
            Kind("choose"), {"seeds": seeds.unsqueeze(0)}, group, ClientGuard()
        )
        losses = torch.stack(
            [
                torch.tensor(
                    [slow.mean_loss(slow.module_of(MODEL.sizes), MODEL.init(int(seed)), x, y) for x, y in data(UNEVEN)]
                )
                for seed in seeds
            ],
            1,
        )
        sets = candidate_sets(seeds, 2)
        expected = losses[:, sets].argmin(2)  # (clients, sets)
        assert torch.equal(sent.values["votes"][:, 0].argmax(2), expected)

    @pytest.mark.parametrize("seed", range(3))
    def test_no_collapse_on_label_split_digits(self, label_split: Federation, seed: int) -> None:
        """Five groups of four clients; a plain random start leaves some clusters to nobody."""
        local = Local(steps=5, batch_size=20, lr=0.1)
        sizes = {}
        for candidates in (0, 30):
            protocol = Ifca(rounds=8, local=local, clusters=5, candidates=candidates)
            done = play(protocol, label_split, Dense((64, 30, 10)), seed=seed)
            scores = evaluate(done.ring, done.state)
            sizes[candidates] = sorted(scores.sizes)
            if candidates:
                assert scores.mean > 0.9
        assert sizes[30] == [4, 4, 4, 4, 4]
        assert sizes[0] != [4, 4, 4, 4, 4]

    def test_no_result_before_the_start_is_chosen(self) -> None:
        protocol = Ifca(rounds=0, clusters=2, candidates=4)
        start = protocol.start(play(protocol, UNEVEN, MODEL).ring.server)
        with pytest.raises(InvalidInput, match="has no models before the clients have chosen a start"):
            protocol.result(start)


def test_fedavg_cannot_serve_two_groups_and_ifca_can(two_groups: Federation) -> None:
    local = Local(steps=5, batch_size=6, lr=0.3)
    scores: dict[str, float] = {}
    protocols: list[Any] = [FedAvg(rounds=15, local=local), Ifca(rounds=15, local=local, clusters=2)]
    for protocol in protocols:
        done = play(protocol, two_groups, MODEL)
        scores[type(protocol).__name__] = evaluate(done.ring, done.state).mean
    assert scores["FedAvg"] < 0.7
    assert scores["Ifca"] > 0.95


@pytest.mark.parametrize(
    "defence", [SecureSums(), Mingling(rate=0.5, cipher=MockCipher())], ids=lambda given: type(given).__name__
)
def test_sealed_sums_are_refused_where_they_cannot_be_used(defence: Defence) -> None:
    protocol = Ifca(rounds=1, clusters=2, local=Local(steps=1), average_gradients=True)
    with pytest.raises(InvalidInput, match="does not fit this protocol: the server needs the sums of all clusters in"):
        play(protocol, UNEVEN, MODEL, defence=defence)


def test_nobody_answers() -> None:
    """A round without answers leaves the models as they were; without votes, the start is the first set."""
    protocol = Ifca(rounds=2, local=LOCAL, clusters=2, candidates=4)
    done = play(protocol, UNEVEN, MODEL, lost=lambda asked: asked.clients.tolist())
    seeds = done.asks[0].published.values["seeds"][0]
    first = candidate_sets(seeds, 2)[0].tolist()
    for slot in range(2):
        same(pick(done.state.published.values, slot), MODEL.init(int(seeds[first[slot]])))
    assert done.state.round == 2
