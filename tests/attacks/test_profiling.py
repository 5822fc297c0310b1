"""Preference profiling: it works on IFCA, and against mingling it gains what the closed form says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.ring import digits, play
from torch import Tensor

from coterie.attacks.base import Attributions
from coterie.attacks.profiling import CURIOUS_SERVER, IdentityProfiling, colluding_server, published_sizes
from coterie.attacks.profiling_by_model import Rankings, SensitivityProfiling
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import Counting, SampledSets, TagRule
from coterie.defences.secure_sums import PairwiseMasks
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.measure.judge import Labels, judge
from coterie.measure.preferences import Preferences, judge_top_k
from coterie.measure.verdicts import Verdict
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.seal.mock import MockCipher
from coterie.wire.messages import TRAIN, Contributions, Down, Published, Up
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

RNG = Rng.seeded(0)
SAME = {cluster: cluster for cluster in range(12)}  # every cluster stands for itself
MODEL = Dense((64, 24, 10))
COLLUDING = colluding_server(3)


def taped(sets: Sequence[Tensor]) -> View:
    """What a server sees of clients that join these clusters, (clients, clusters) a round, and send nothing else."""
    tape = Tape([CURIOUS_SERVER])
    for round, joined in enumerate(sets):
        everyone = torch.arange(len(joined))
        tape.record(Down(TRAIN, round, everyone, Published({"w": torch.zeros(joined.shape[1], 1)})))
        tape.record(Up(TRAIN, round, Contributions(everyone, {}, torch.ones(len(joined)), joined.float())))
    return tape.view(CURIOUS_SERVER)


def success(attack: IdentityProfiling, view: View, true: Tensor) -> float:
    truth = Labels({client: int(cluster) for client, cluster in enumerate(true)}, choices=5)
    return judge(attack.infer(view, Auxiliary(), RNG.child("attack")), truth).score


def bound(chance: float, tries: int) -> float:
    """Five standard deviations: a false alarm in two million."""
    return 5 * math.sqrt(chance * (1 - chance) / tries)


# -- A1, identities alone --------------------------------------------------------------------------------------------

CLIENTS = 3000


@pytest.mark.parametrize(
    "rule",
    [
        TagRule(5, 0.5, 2),
        TagRule(5, 0.5, 2, Counting.DECOYS),
        TagRule(5, 0.125, 1),
        TagRule(12, 0.25, 4),
        TagRule(3, 0.9, 3),
    ],
    ids=str,
)
def test_a_blind_guess_is_right_as_often_as_the_closed_form_says(rule: TagRule) -> None:
    true = torch.arange(CLIENTS) % rule.clusters
    view = taped([SampledSets(rule).membership(torch.arange(CLIENTS), true, RNG)] * 2)
    for attack in (IdentityProfiling(SAME), IdentityProfiling(SAME, intersect=True)):
        assert abs(success(attack, view, true) - rule.blind_guess()) < bound(rule.blind_guess(), CLIENTS)


def test_sizes_help_as_much_as_counting_all_sets_says() -> None:
    """The best guess is the largest cluster in the set; the expectation over all sets is enumerated."""
    rule, sizes = TagRule(4, 0.5, 2), {0: 0.55, 1: 0.25, 2: 0.15, 3: 0.05}
    expected = 0.0
    for code in range(1, 16):
        members = [cluster for cluster in range(4) if code >> cluster & 1]
        if len(members) >= 2:
            drawn = 0.5**3 / (1 - 0.5**3)  # each other cluster in or out, given that one is in
            expected += drawn * max(sizes[cluster] for cluster in members)
    counts = torch.tensor([1650, 750, 450, 150])
    true = torch.repeat_interleave(torch.arange(4), counts)
    view = taped([SampledSets(rule).membership(torch.arange(CLIENTS), true, RNG)])
    found = success(IdentityProfiling(SAME, sizes=sizes), view, true)
    assert abs(found - expected) < bound(expected, CLIENTS)
    assert found > rule.blind_guess() + 0.1


def test_sets_that_are_redrawn_fall_to_intersection_and_ours_do_not() -> None:
    """Fresh sets each round, and the paper's rule for a client that comes back to its cluster again and again."""
    rule, ids = TagRule(5, 0.5, 2), torch.arange(1000)
    home, drawn = ids % 5, SampledSets(rule)
    redrawn = [drawn.membership(ids, home, RNG.child("visit", visit)) for visit in range(8)]
    kept = [drawn.membership(ids, home, RNG)] * 8
    attack, blind = IdentityProfiling(SAME, intersect=True), rule.blind_guess()
    # A decoy stays in all eight sets with probability 0.533^8; four of them share the loss.
    assert success(attack, taped(redrawn), home) > 0.97
    assert abs(success(attack, taped(kept), home) - blind) < bound(blind, 1000)


def test_rounds_after_the_last_that_it_may_use_do_not_matter() -> None:
    one_hot = torch.nn.functional.one_hot(torch.arange(6) % 3, 3)
    view = taped([one_hot, one_hot.roll(1, 1)])
    assert IdentityProfiling(SAME, upto=0).infer(view, Auxiliary(), RNG).labels == {c: c % 3 for c in range(6)}
    assert IdentityProfiling(SAME).infer(view, Auxiliary(), RNG).labels == {c: (c + 1) % 3 for c in range(6)}
    with pytest.raises(InvalidInput, match="up to round -1"):
        IdentityProfiling(SAME, upto=-1).infer(view, Auxiliary(), RNG)


# -- on trained federations ------------------------------------------------------------------------------------------

FEDERATION = digits(40)
IFCA = Ifca(rounds=4, local=Local(steps=5, batch_size=16, lr=0.2), clusters=5)
A2 = SensitivityProfiling(Imitation(MODEL, Local(steps=5, batch_size=10, lr=0.2)), 10)
PREFERENCES = Preferences.of(FEDERATION)
SEEDS = (0, 1)
MOST = 0.9  # of the clients; IFCA may put two groups in one cluster, and a model may have learnt a class late


@pytest.fixture(scope="module")
def auxiliary() -> Auxiliary:
    return Auxiliary(FEDERATION.examples.take(FEDERATION.test.rows.unique()))


@cache
def plain(seed: int) -> View:
    return next(iter(views(Defence(), seed)))


def views(defence: Defence, seed: int) -> Iterator[View]:
    tape = Tape([CURIOUS_SERVER, COLLUDING])
    done = play(IFCA, FEDERATION, MODEL, defence=defence, tape=tape, seed=seed)
    for threat in (CURIOUS_SERVER, COLLUDING):
        yield done.ring.view(threat)


def truth_of(seed: int) -> Labels:
    """Every client's cluster, by the number under which the undefended run of this seed knows it."""
    chosen = plain(seed).sent(3).membership.argmax(1)
    return Labels({client: int(cluster) for client, cluster in enumerate(chosen)}, 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_both_attacks_read_ifca(seed: int, auxiliary: Auxiliary) -> None:
    guess = A2.infer(plain(seed), auxiliary, RNG)
    assert judge(IdentityProfiling(SAME).infer(plain(seed), auxiliary, RNG), truth_of(seed)).score == 1.0
    assert judge(guess, PREFERENCES).score > MOST
    assert judge_top_k(guess, PREFERENCES).score > 0.8


@pytest.mark.parametrize(
    "make",
    [lambda: Mingling(cipher=MockCipher()), lambda: Mingling(cipher=PairwiseMasks(4))],
    ids=["shared key", "masks"],
)
def test_the_server_alone_gets_the_closed_form_and_with_a_client_what_its_key_opens(
    make: Callable[[], Mingling], auxiliary: Auxiliary
) -> None:
    """Exact variants: their clients choose what IFCA's choose. Five standard deviations over all clients and seeds."""
    named, ranked, units = 0.0, 0.0, len(SEEDS) * 40
    for seed in SEEDS:
        alone, colluding = views(make(), seed)
        named += judge(IdentityProfiling(SAME).infer(alone, auxiliary, RNG.child(seed)), truth_of(seed)).score * 40
        guess = A2.infer(alone, Auxiliary(), RNG.child(seed))  # no example and no model go into it
        ranked += judge(guess, PREFERENCES).score * 40
        with_key = IdentityProfiling(SAME, threat=COLLUDING).infer(colluding, auxiliary, RNG.child(seed))
        opened = judge(with_key, truth_of(seed)).score
        models = SensitivityProfiling(A2.imitation, 10, COLLUDING).models(colluding, colluding.sent(3))
        if isinstance(make().cipher, PairwiseMasks):  # its key opens sums, and nobody's answer
            assert models is None
            assert opened < 0.8
        else:  # one client hands over the key: as on IFCA
            assert models is not None
            assert opened == 1.0
    blind = TagRule(5, 0.5, 2, partition=True).blind_guess()
    assert abs(named / units - blind) < bound(blind, units)
    assert abs(ranked / units - 0.2) < bound(0.2, units)  # with nothing known of the clusters, by chance


def test_sealed_models_are_ranked_by_the_clusters_that_a_client_may_be_in(auxiliary: Auxiliary) -> None:
    """A server that knows what clusters serve does better than chance: a random draw would be no attack."""
    alone, _ = views(Mingling(cipher=MockCipher()), 0)
    chosen = plain(0).sent(3).membership.argmax(1)
    serves = {int(chosen[client]): sorted(PREFERENCES.labels[client]) for client in range(40)}
    guess = SensitivityProfiling(A2.imitation, 10, serves=serves).infer(alone, auxiliary, RNG)
    assert judge(guess, PREFERENCES).interval.low > 0.2


def test_with_a_client_the_server_reads_the_sizes_and_alone_it_does_not() -> None:
    sealed, view = views(Mingling(cipher=PairwiseMasks(4)), 0)
    sizes = published_sizes(view, 2)
    assert sizes is not None
    assert list(sizes.values()) == plain(0).sent(2).membership.sum(0).tolist()
    assert published_sizes(sealed, 2) is None


# -- judging ---------------------------------------------------------------------------------------------------------


def test_preferences_are_the_classes_held_above_average() -> None:
    assert PREFERENCES.labels[0] == {0, 1}
    assert PREFERENCES.labels[9] == {8, 9}
    assert PREFERENCES.classes == 10


def test_rankings_are_judged_by_hand() -> None:
    truth = Preferences({0: frozenset({1, 2}), 1: frozenset({3}), 2: frozenset()}, 4)
    guess = Rankings({0: (1, 0, 2, 3), 1: (0, 3, 1, 2), 2: (0, 1, 2, 3)})
    first, most = judge(guess, truth), judge_top_k(guess, truth)
    assert (first.score, first.chance, first.units) == (0.5, 0.5, 2)  # client 2 prefers nothing
    assert most.score == pytest.approx(1 / 3)
    assert most.chance == pytest.approx(2 / 3)  # class 1 and then 2, of everybody


def test_who_names_the_commonest_class_of_all_has_learnt_nothing() -> None:
    """Eight of ten clients prefer class 0: to say so of everybody is chance, and not 0.45 above it."""
    held = {client: frozenset({0, 1} if client < 4 else {0}) for client in range(8)} | {8: frozenset({2})}
    truth = Preferences({**held, 9: frozenset({3})}, 4)
    guess = Rankings(dict.fromkeys(range(10), (0, 1, 2, 3)))
    for found in (judge(guess, truth), judge_top_k(guess, truth)):
        assert found.chance == pytest.approx(found.score)
        assert found.verdict is Verdict.UNDECIDED
    assert judge(guess, truth).chance == 0.8
    assert judge_top_k(guess, truth).chance == pytest.approx(12 / 14)


def test_who_names_the_largest_group_for_all_has_learnt_nothing() -> None:
    groups = Labels({client: int(client >= 9) for client in range(12)}, 4)
    assert judge(Attributions(dict.fromkeys(range(12), 0)), groups).chance == 0.75
    even = Labels({client: client % 4 for client in range(12)}, 6)
    assert judge(Attributions(dict.fromkeys(range(12), 0)), even).chance == 0.25


def test_a_missing_class_is_named(auxiliary: Auxiliary) -> None:
    with pytest.raises(InvalidInput, match="label=0 has no auxiliary examples"):
        A2.infer(plain(0), Auxiliary(auxiliary.of_class(3)), RNG)


def test_a_client_alone_sees_no_other_s_upload() -> None:
    client = ThreatModel("client", clients=frozenset({0}))
    tape = Tape([client])
    play(replace(IFCA, rounds=1, candidates=0), FEDERATION, MODEL, tape=tape)
    guess = IdentityProfiling(SAME, threat=client).infer(tape.view(client), Auxiliary(), RNG)
    assert guess.labels.keys() == {0}
