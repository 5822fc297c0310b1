"""Placing clients: by distinct representatives, and by counting over rounds where sums can be opened."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.ring import digits, play
from torch import Tensor

from coterie.attacks import placing
from coterie.attacks.placing import Placing, after_moves, by_frequency, of_sizes, representatives
from coterie.attacks.profiling import CURIOUS_SERVER, colluding_server
from coterie.data.auxiliary import Auxiliary
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import SampledSets, TagRule
from coterie.defences.secure_sums import ClusterLeftOut, PairwiseMasks
from coterie.flow.client import Answer
from coterie.flow.ring import Ring
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.wire.messages import TRAIN, Contributions, Down, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.view import View

SAME = {cluster: cluster for cluster in range(12)}  # every cluster stands for itself
SETS, PARTS = TagRule(5, 0.5, 2), TagRule(5, 0.5, 2, partition=True)
TOGETHER = colluding_server(0)


def taped(true: Sequence[Tensor], present: Sequence[Tensor], rule: TagRule, rng: Rng, opened: bool) -> View:
    """What a server sees of clients that are truly in these clusters, one tensor a round, where these are present.

    ``opened``: it has read each round's sizes, as whoever holds the key of hidden sums does.
    """
    tape, sizes = Tape([CURIOUS_SERVER]), None
    for round, (clusters, ids) in enumerate(zip(true, present, strict=True)):
        joined = SampledSets(rule).membership(ids, clusters[ids], rng)
        tape.record(Down(TRAIN, round, ids, Published({"w": torch.zeros(rule.clusters, 1)}, sizes)))
        tape.record(Up(TRAIN, round, Contributions(ids, {}, torch.ones(len(ids)), joined.float())))
        sizes = torch.bincount(clusters[ids], minlength=rule.clusters) if opened else None
    everyone = torch.arange(len(true[0]))
    tape.record(Down(TRAIN, len(true), everyone, Published({"w": torch.zeros(rule.clusters, 1)}, sizes)))
    return tape.view(CURIOUS_SERVER)


def sampled(clients: int, rounds: int, share: float, rng: Rng) -> list[Tensor]:
    draws = [rng.child("present", round).numpy().permutation(clients) for round in range(rounds)]
    return [torch.from_numpy(order[: round_half_up(share * clients)]).sort().values for order in draws]


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def placed(view: View, true: Tensor, rng: Rng) -> float:
    """The share of clients that are named right."""
    guess = Placing(SAME, draws=3).infer(view, Auxiliary(), rng).labels
    right = sum(guess.get(client) == cluster for client, cluster in enumerate(true.tolist()))
    return float(right / len(guess))


# -- what is openly counted is solved for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "share", "rounds", "rule"),
    [(20, 0.5, 12, PARTS), (40, 0.5, 12, PARTS), (40, 0.5, 12, SETS), (20, 0.5, 15, TagRule(5, 0.5, 5))],
    ids=["20", "40", "40, one set a cluster", "20, everybody everywhere"],
)
def test_opened_counts_place_nearly_everybody(clients: int, share: float, rounds: int, rule: TagRule) -> None:
    """Why sums are hidden: whoever opens them needs a dozen rounds, whatever the decoys."""
    rng, true = Rng.seeded(0), torch.arange(clients) % 5
    present = sampled(clients, rounds, share, rng)
    opened = taped([true] * rounds, present, rule, rng, opened=True)
    hidden = taped([true] * rounds, present, rule, rng, opened=False)
    assert placed(opened, true, rng) > 0.85
    assert placed(hidden, true, rng) < 0.65


def test_a_client_that_joins_is_placed_at_once() -> None:
    """Thirty clients in every round, one more in the last: the count that grew is its cluster's."""
    rng, true = Rng.seeded(1), torch.arange(31) % 5
    present = [torch.arange(30)] * 2 + [torch.arange(31)]
    for cluster in range(5):
        true[30] = cluster
        guess = Placing(SAME, draws=1).infer(taped([true] * 3, present, PARTS, rng, opened=True), Auxiliary(), rng)
        assert guess.labels[30] == cluster


def test_counts_that_are_wrong_do_not_end_it() -> None:
    """Two of forty move half-way: some equations contradict the others, and most clients are placed all the same."""
    rng, first = Rng.seeded(2), torch.arange(40) % 5
    later = first.clone()
    later[:2] = (later[:2] + 1) % 5
    view = taped([first] * 3 + [later] * 12, sampled(40, 15, 0.5, rng), PARTS, rng, opened=True)
    assert placed(view, later, rng) > 0.7


@pytest.mark.parametrize("hard", ["too many", "not found"])
def test_where_whole_numbers_are_too_hard_shares_place_clients_as_well(
    hard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120 clients over 40 rounds: with whole numbers the solver was at it for as long as a clock let it."""
    monkeypatch.setattr(placing, *(("WHOLE", 0) if hard == "too many" else ("NODES", 0)))
    clients, rounds = (120, 40) if hard == "too many" else (40, 12)
    rng, true = Rng.seeded(5), torch.arange(clients) % 5
    opened = taped([true] * rounds, sampled(clients, rounds, 0.5, rng), PARTS, rng, opened=True)
    assert placed(opened, true, rng) > 0.95


# -- movers ----------------------------------------------------------------------------------------------------------


def test_representatives_by_hand() -> None:
    """{0, 1} and then {1, 2}: of (0, 1), (0, 2), (1, 2) two end in 2."""
    assert representatives([frozenset({0, 1}), frozenset({1, 2})]) == pytest.approx({1: 1 / 3, 2: 2 / 3})
    assert representatives([frozenset({3, 4})] * 3) == pytest.approx({3: 0.5, 4: 0.5})
    assert representatives([frozenset({0, 1}), frozenset({2, 3, 4})]) == pytest.approx(dict.fromkeys((2, 3, 4), 1 / 3))
    assert representatives([frozenset({0}), frozenset({0})]) == {0: 1.0}


def test_representatives_are_what_enumeration_says() -> None:
    shown = [frozenset({0, 1, 4}), frozenset({1, 2}), frozenset({0, 2, 3})]
    systems = [system for system in itertools.product(*shown) if len(set(system)) == 3]
    expected = {cluster: sum(system[2] == cluster for system in systems) / len(systems) for cluster in shown[2]}
    assert representatives(shown) == pytest.approx(expected)


def test_one_set_for_each_true_cluster_gives_movers_away_and_a_partition_does_not() -> None:
    """1500 clients, each in four clusters one after the other; five standard errors."""
    rng, ids = Rng.seeded(3), torch.arange(1500)
    visited = [(ids + step * (1 + ids // 5 % 4)) % 5 for step in range(4)]
    error = 5 * math.sqrt(0.25 / len(ids))
    moving = taped(visited, [ids] * 4, SETS, rng, opened=False)
    assert placed(moving, visited[-1], rng) > SETS.blind_guess() + error
    found = placed(taped(visited, [ids] * 4, PARTS, rng, opened=False), visited[-1], rng)
    assert abs(found - PARTS.blind_guess()) < error


def test_clients_that_move_together_place_each_other() -> None:
    """Twenty of sixty go from cluster 0 to cluster 3; of those whose sets show it, nearly all are named."""
    rng, first = Rng.seeded(4), torch.arange(60) % 3
    later = torch.where((first == 0), 3, first)
    view = taped([first, later], [torch.arange(60)] * 2, PARTS, rng, opened=False)
    before, after = (view.sent(round).membership for round in range(2))
    movers = (before != after).any(1)
    guess = Placing(SAME).infer(view, Auxiliary(), rng).labels
    right = [guess[client] == 3 for client in movers.nonzero().flatten().tolist()]
    assert len(right) >= 8
    assert sum(right) >= 0.9 * len(right)
    alone = after_moves({7: {2: 0.5, 3: 0.5}}, {7: [frozenset({0, 1}), frozenset({2, 3})]})
    assert alone[7] == pytest.approx({2: 0.5, 3: 0.5})  # one says nothing of itself


def test_sizes_say_who_is_too_many() -> None:
    """By hand: two clients in one cluster each, of which one can only be in the first."""
    sure = of_sizes({0: {0: 1.0}, 1: {0: 0.5, 1: 0.5}}, {0: 1, 1: 1})
    assert sure[1][1] > 0.98
    assert of_sizes({0: {0: 1.0}}, {1: 3.0}) == {0: {0: 1.0}}  # sizes that cannot be leave it as it was


def test_known_sizes_lift_the_closed_form_of_small_federations() -> None:
    """Why votes are hidden: 38.2 % become 46 % of 20 clients, and where two groups share a cluster 61 %."""
    right = {"blind": 0.0, "equal": 0.0, "merged": 0.0}
    for seed in range(60):
        rng = Rng.seeded(seed)
        for name, true in (("equal", torch.arange(20) % 5), ("merged", (torch.arange(20) % 5).clamp_max(3))):
            view = taped([true], [torch.arange(20)], PARTS, rng.child(name), opened=False)
            sizes = dict(enumerate(torch.bincount(true, minlength=5).tolist()))
            guess = Placing(SAME, sizes=sizes).infer(view, Auxiliary(), rng).labels
            right[name] += sum(guess[client] == cluster for client, cluster in enumerate(true.tolist())) / 1200
        right["blind"] += placed(view, true, rng) / 60
    assert right["blind"] == pytest.approx(PARTS.blind_guess(), abs=0.06)  # more than four standard errors
    assert right["equal"] == pytest.approx(0.463, abs=0.06)
    assert right["merged"] == pytest.approx(0.61, abs=0.06)


def test_sets_say_how_large_clusters_are_and_sets_of_everything_do_not() -> None:
    """Why everybody joins everything unless told otherwise: nobody needs to know sizes that differ; five standard
    errors."""
    rng, true = Rng.seeded(5), torch.arange(5).repeat_interleave(torch.tensor([120, 60, 30, 20, 10]))
    everyone, error = torch.arange(len(true)), 5 * math.sqrt(0.25 / len(true))
    for rule in (PARTS, SETS):
        assert placed(taped([true], [everyone], rule, rng, opened=False), true, rng) > rule.blind_guess() + error
    everything = TagRule(5, threshold=5)
    assert placed(taped([true], [everyone], everything, rng, opened=False), true, rng) < 0.2 + error


def test_sizes_that_are_alike_are_not_made_up() -> None:
    """By hand: three clients whose sets say nothing, and twelve that are nearly all in cluster 1."""
    alike = {client: dict.fromkeys({client, (client + 1) % 3}, 0.5) for client in range(3)}
    assert by_frequency(alike) == alike
    uneven = {client: dict.fromkeys({1, client % 4 + (client % 4 > 0)}, 0.5) for client in range(12)}
    assert all(chances[1] > 0.9 for chances in by_frequency(uneven).values())


# -- on a federation that runs ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(f"ignore::{ClusterLeftOut.__module__}.{ClusterLeftOut.__name__}")
def test_against_the_default_the_server_alone_gets_the_closed_form_and_with_a_client_more() -> None:
    """Thirty clients, half of them a round, one of whom drops out in each; pooled over three seeds."""
    alone = together = 0
    for seed in range(3):
        chosen: dict[int, int] = {}
        ring = trained(seed, chosen)
        for threat in (CURIOUS_SERVER, TOGETHER):
            guess = Placing(SAME, threat, draws=3).infer(ring.view(threat), Auxiliary(), Rng.seeded(seed)).labels
            right = sum(guess[client] == cluster for client, cluster in chosen.items())
            alone, together = (alone + right, together) if threat is CURIOUS_SERVER else (alone, together + right)
    blind, units = 0.2, 90  # everybody joins all five
    assert alone / units < blind + 5 * math.sqrt(blind * (1 - blind) / units)
    assert together > alone


def trained(seed: int, chosen: dict[int, int]) -> Ring[Any]:
    """A ring that has run; ``chosen`` is each client's last cluster."""
    protocol = Ifca(rounds=8, local=Local(steps=2, batch_size=8, lr=0.2), clusters=5, participation=0.5, candidates=10)

    def note(asked: Down, answer: Answer) -> None:
        if answer.chosen is not None and asked.kind == TRAIN:
            chosen.update(zip(answer.ids, answer.chosen.argmax(1).tolist(), strict=True))

    return play(
        protocol,
        digits(30),
        Dense((64, 10)),
        defence=Mingling(cipher=PairwiseMasks(neighbours=8)),
        tape=Tape([CURIOUS_SERVER, TOGETHER]),
        seed=seed,
        lost=lambda asked: asked.clients.tolist()[:1] if asked.kind.part == "shares" else (),
        witness=note,
    ).ring
