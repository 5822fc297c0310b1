"""The own upload is taken out of an aggregate, with the share that it really had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.attacks.federations import LOCAL, Ran, passive, run
from tests.attacks.test_property_active import active, auxiliary

from coterie.attacks.others import Behind, Beliefs, Own, Rules, along, own_uploads, who_is_behind
from coterie.attacks.property import Known, PropertyWatch
from coterie.attacks.updates import Observed, aggregates, directions, magnitudes
from coterie.audit.families.property_inference import rules_of
from coterie.defences.robust import Krum, Median, NormClip
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.params import Params, flatten
from coterie.measure.judge import judge
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.protocols.server_steps import ServerStep
from coterie.rng import Rng
from coterie.wire.view import ThreatModel

FL = FedAvg(rounds=51, local=LOCAL, weighting="equal")
CFL = Ifca(rounds=51, local=LOCAL, weighting="equal", clusters=2)
SERVER = ThreatModel("server", server=True)
STEPS = [ServerStep(), ServerStep("adam", lr=0.05), ServerStep("yogi", lr=0.05)]


def observed(size: int | None = None, slot: int = 0, update: float = 1.0) -> Observed:
    return Observed(0, slot, {"w": torch.zeros(2, 2)}, {"w": torch.full((2, 2), update)}, size)


def own(update: float = 3.0, clients: int = 1) -> Own:
    return Own({"w": torch.full((2, 2), update)}, clients)


def nobody(_: Observed) -> Params:
    raise AssertionError("nothing needs to be imagined where the size is known")


def behind(seen: list[Observed], mine: dict[int, Own], rules: Rules, imagined: Any = nobody) -> dict[int, Behind]:
    return who_is_behind(seen, mine, rules, imagined, {})


def test_an_aggregate_without_its_own_part_by_hand() -> None:
    """Three clients: own 3, the others -1 and 1, mean 1. What is left of it is their mean, 0."""
    here = behind([observed()], {0: own()}, Rules.of(3, 1))[0]
    assert here.share == pytest.approx(1 / 3)
    assert here.others == (2, 2)
    assert torch.allclose(here.without_own(observed().update)["w"], torch.zeros(2, 2), atol=1e-6)


def test_sizes_follow_from_the_view_and_the_rules() -> None:
    told = behind([observed(4)], {0: own(clients=2)}, Rules((1, 9)))[0]
    assert (told.share, told.others) == (0.5, (2, 2))
    both = behind([observed(3), observed(slot=1)], {0: own()}, Rules.of(5, 2))
    assert (both[0].others, both[1].others, both[1].own) == ((2, 2), (2, 2), None)  # whoever is not here is there
    three = behind([observed(3), observed(slot=1), observed(slot=2)], {0: own()}, Rules.of(6, 3))
    assert three[1].others == three[2].others == (1, 2)  # three clients in two clusters
    assert behind([observed()], {}, Rules((1, 7)))[0].others == (1, 7)
    assert behind([observed(update=3.0)], {0: own(3.0)}, Rules.of(5, 2))[0].alone
    assert behind([observed(1)], {0: own()}, Rules.of(5, 2))[0].alone
    with pytest.raises(InvalidInput, match=r"sizes=\(0, 3\)"):
        Rules((0, 3))


@pytest.mark.parametrize(
    "protocol", [FL, CFL, replace(FL, weighting="samples"), FedEM(rounds=13, components=2, local=LOCAL)]
)
def test_what_is_left_is_the_mean_of_the_others(protocol: Any) -> None:
    """With the true share. The server's view of the same run has what everybody sent."""
    ran = run(replace(protocol, rounds=13))
    all_sent = run(replace(protocol, rounds=13), threat=SERVER).view
    for seen in aggregates(ran.view, 10):
        sent = all_sent.sent(seen.round)
        weights = sent.weights * sent.membership[:, seen.slot]
        mine = own_uploads(ran.view, [seen]).get(seen.slot)
        assert (mine is not None) == bool(weights[sent.ids == 0].any())
        if mine is None or bool((weights[sent.ids != 0] == 0).all()):
            continue
        others = torch.where(sent.ids == 0, 0, weights)
        place = seen.slot if next(iter(sent.values.values())).shape[1] > 1 else 0
        mean = torch.einsum("c,cl->l", others / others.sum(), flatten({n: v[:, place] for n, v in sent.values.items()}))
        share = float(weights[sent.ids == 0].sum() / weights.sum())
        left = flatten(Behind(mine, share, (2, 2)).without_own(seen.update), 0)
        torch.testing.assert_close(left, mean - flatten(seen.start, 0), atol=1e-5, rtol=1e-3)


def known() -> Known:
    return Known.of(auxiliary())


@pytest.mark.parametrize("protocol", [FL, CFL], ids=["FL", "CFL"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.kind)
def test_what_the_server_s_optimiser_does_is_undone(protocol: Any, step: ServerStep) -> None:
    """What everybody sent is what the server's view of the same run has."""
    protocol = replace(protocol, rounds=14, server_step=step)
    view, all_sent = run(protocol).view, run(protocol, threat=SERVER).view
    watch = PropertyWatch(passive(rules=Rules.of(3, protocol.slots, server=step)), known(), Rng.seeded(0), ())
    compared = 0
    for round, group in groupby(aggregates(view, 0), key=lambda seen: seen.round):
        for seen in watch.means(list(group)):
            sent = all_sent.sent(round)
            weights = sent.weights * sent.membership[:, seen.slot]
            sums = weights @ flatten({name: leaf[:, 0] for name, leaf in sent.values.items()})
            mean, found = sums / weights.sum() - flatten(seen.start, 0), flatten(seen.update, 0)
            compared += 1
            if step.kind == "momentum":
                torch.testing.assert_close(found, mean, atol=1e-5, rtol=1e-3)
            else:  # the first steps of these are nearly signs, of which little follows
                assert float(torch.cosine_similarity(found, mean, 0)) > 0.9
    assert compared >= 13


def test_what_was_not_followed_from_the_start_cannot_be_undone() -> None:
    rounds = Ifca(rounds=20, local=LOCAL, clusters=2, participation=0.6, server_step=STEPS[0])
    ran = run(rounds, clients=5)
    attack = passive(rules=Rules.of(5, 2, server=STEPS[0]))
    with pytest.raises(InvalidInput, match="were seen"):
        attack.infer(ran.view, auxiliary(), Rng.seeded(0))


def test_a_server_s_optimiser_hides_nothing() -> None:
    """Who knows it finds what who does not know it misses."""
    protocol = replace(FL, server_step=STEPS[0])
    ran = run(protocol, clients=4)
    truth, aside = ran.witness.property_truth(ran.federation), ran.split.auxiliary(ran.federation)
    naive, knowing = (
        judge(passive(rules=Rules.of(4, 1, server=rule)).infer(ran.view, aside, Rng.seeded(0)), truth).score
        for rule in (None, protocol.server_step)
    )
    assert knowing > 0.8 > naive + 0.1


def test_a_median_has_no_part_that_is_the_own_upload() -> None:
    attack = passive(rules=Rules.of(5, 1))
    ran = run(FL, 2, 5, defence=Median())
    truth, aside = ran.witness.property_truth(ran.federation), ran.split.auxiliary(ran.federation)
    wrong, right = (
        judge(replace(attack, rules=rules).infer(ran.view, aside, Rng.seeded(2)), truth).score
        for rules in (attack.rules, replace(attack.rules, averages=False))
    )
    assert right > 0.7 > wrong + 0.1


@pytest.mark.parametrize(
    ("defence", "mean"),
    [(Defence(), True), (NormClip(1.0), True), (Median(), False), (Stack(NormClip(1.0), Krum(1)), False)],
)
def test_the_audit_knows_what_the_server_does(defence: Defence, mean: bool) -> None:
    stepping: Any = replace(CFL, server_step=STEPS[0])
    assert rules_of(stepping, 4, defence) == replace(Rules.of(4, 2, server=STEPS[0]), averages=mean)
    assert rules_of(replace(stepping, participation=0.5), 4, defence).server is None  # who misses a round cannot undo


def pick_first(made: Params, _: Observed) -> Params:
    return made


def sizes_found(ran: Ran, attack: Any) -> float:
    """The share of rounds in which the size of the own cluster is read off the own upload."""
    known, true = Known.of(ran.split.auxiliary(ran.federation)), ran.witness.sizes()
    right = []
    for seen in aggregates(ran.view, 10):
        mine = own_uploads(ran.view, [seen])
        if mine:
            found = attack.behind([seen], mine, known, {}, Rng.seeded(1).child(seen.round), {})[seen.slot]
            right.append(found.others[0] + 1 == true[seen.round, seen.slot])
    return float(np.mean(right))


def sizes_guessed(sizes: Sequence[int], gamma: float, together: bool) -> NDArray[np.bool_]:
    """Whether each round's size is read right: of updates of 500 entries with a common part of a third."""
    draws, beliefs, right = torch.Generator().manual_seed(0), Beliefs(), []
    for round, size in enumerate(sizes):
        common = torch.randn(500, generator=draws) / 3**0.5
        sent = common + torch.randn(size, 500, generator=draws)
        sent[0] *= gamma
        seen = Observed(round, 0, {"w": torch.zeros(500)}, {"w": sent.mean(0)})
        imagined = {"w": common + torch.randn(9, 500, generator=draws)}
        mine = Own({"w": sent[0]}, 1)
        kept = beliefs if together else {}
        found = who_is_behind([seen], {0: mine}, Rules((1, 6)), partial(pick_first, imagined), kept)
        right.append(found[0].others == (size - 1, size - 1))
    return np.array(right)


@pytest.mark.parametrize(("gamma", "right"), [(1.0, 0.6), (5.0, 0.95)])
def test_a_scaled_upload_gives_the_size_away(gamma: float, right: float) -> None:
    """Of 40 rounds so many sizes from 2 to 6 are read, each for itself."""
    assert sizes_guessed([2 + round % 5 for round in range(40)], gamma, together=False).mean() >= right


def test_rounds_that_are_put_together_tell_a_size_that_stays() -> None:
    """Clients seldom move. One that did is missed for a while at most."""
    stays = [5] * 40 + [4] * 40
    alone, together = (sizes_guessed(stays, 1.0, together) for together in (False, True))
    assert alone.mean() < 0.85
    assert together.mean() > alone.mean() + 0.1
    assert together[20:40].all()
    assert together[60:].all()


def test_sizes_that_change_all_the_time_are_read_as_if_each_stood_alone() -> None:
    """How often they change is learnt along."""
    changes = [2, 5] * 30
    alone, together = (sizes_guessed(changes, 1.0, together) for together in (False, True))
    assert together.mean() >= alone.mean() - 0.1
    assert sizes_guessed(changes, 5.0, together=True).mean() >= 0.95


def test_an_own_update_that_the_imagined_explain_tells_nothing() -> None:
    rows = torch.eye(4)
    assert along({"w": rows}, rows.sum(0), rows[0]) is None


def test_sizes_are_read_in_a_federation() -> None:
    """Of a model of 242 numbers, whose clients move much alike: more often than by guessing one of four."""
    attack = active(gamma=5.0, rules=Rules((1, 5)))
    for protocol in (FL, CFL):
        assert sizes_found(run(replace(protocol, rounds=40), clients=5, adversaries=[attack]), attack) > 0.6


def test_unequal_weights_are_read_off_the_upload() -> None:
    """Under weights by samples the share is between what the ratios allow, and near the true one."""
    attack = active(gamma=5.0, rules=Rules.of(3, 1, weighted=True))
    ran = run(FedAvg(rounds=25, local=LOCAL, weighting="samples"), adversaries=[attack])
    known, sizes = Known.of(ran.split.auxiliary(ran.federation)), ran.federation.train.sizes.double()
    shares = []
    for seen in aggregates(ran.view, 10):
        found = attack.behind([seen], own_uploads(ran.view, [seen]), known, {}, Rng.seeded(seen.round), {})
        shares.append(found[seen.slot].share)
    assert np.median(shares) == pytest.approx(float(sizes[0] / sizes.sum()), rel=0.2)


# -- the law: no worse than leaving it in -----------------------------------------------------------------------------


def scores(protocol: Any, seed: int, clients: int, gamma: float | None) -> list[list[float]]:
    """Taken out, and left in, by magnitudes and by directions: on the same run."""
    settings: dict[str, Any] = {"rules": Rules.of(clients, protocol.slots)}
    attack = passive(**settings) if gamma is None else active(gamma=gamma, **settings)
    ran = run(protocol, seed, clients, adversaries=[] if gamma is None else [attack])
    truth, auxiliary = ran.witness.property_truth(ran.federation), ran.split.auxiliary(ran.federation)
    found = [
        replace(attack, keep_own=keep).infer_by(ran.view, auxiliary, Rng.seeded(seed), (magnitudes, directions))
        for keep in (False, True)
    ]
    return [[judge(guess, truth).score for guess in guesses] for guesses in found]


@pytest.mark.parametrize("gamma", [None, 1.0, 5.0])
@pytest.mark.parametrize("protocol", [FL, CFL], ids=["FL", "CFL"])
def test_taking_the_own_upload_out_is_no_worse_than_leaving_it_in(protocol: Any, gamma: float | None) -> None:
    # Not seed 1, whose victim leaves the adversary alone in its cluster whenever it has no property data.
    found = np.array([scores(protocol, seed, 4, gamma) for seed in (0, 2)])
    for out, kept in found.mean(0).T:  # by magnitudes, and by directions
        assert out >= kept - 0.03
        assert out > 0.75
    if gamma == 5.0:  # the scaled upload drowns what it is left in
        out, kept = found.mean(0)[:, 0]
        assert out > kept + 0.05


def test_tampering_changes_what_arrives() -> None:
    """The others' own updates, too: they start from a model that was trained to tell the property apart."""
    honest = run(replace(FL, rounds=14))
    tampered = run(replace(FL, rounds=14), adversaries=[active(gamma=5.0)])
    rules = Rules.of(3, 1)
    moved = []
    for ran in (honest, tampered):
        seen = next(iter(aggregates(ran.view, 12)))
        here = behind([seen], own_uploads(ran.view, [seen]), rules)[0]
        moved.append(flatten(here.without_own(seen.update), 0))
    assert float((moved[0] - moved[1]).norm()) > 0.1 * float(moved[0].norm())
