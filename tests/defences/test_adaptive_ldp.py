"""Paper 004's defence: the decay, the layers, Algorithm 3's switches, and the variant with a proof."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.ring import blobs, cohort, play

from coterie.defences.adaptive_ldp import KEPT, AdaptiveLdp, AdaptiveNoise, Budget, Layers, PlainLdp, strengths
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.errors import Diverged, InvalidInput
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.learn.generative.duel import Bout
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.dense import Dense
from coterie.learn.params import flatten
from coterie.learn.sgd import Local
from coterie.privacy.accounting import epsilon_of
from coterie.privacy.guarantee import Level, Neighbours
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.wire.messages import Contributions

MODEL = Dense((4, 6, 3))
PROTOCOL = FedAvg(rounds=3, local=Local(steps=2, batch_size=4, lr=0.1))
QUICK = Bout(steps=1, batch=4)


def test_the_budget_decays_from_start_to_end_and_ever_faster() -> None:
    budget = Budget(2.0, 0.5, 10)
    values = [budget.at(round) for round in range(10)]
    assert (values[0], values[-1]) == pytest.approx((2.0, 0.5))
    falls = [one - other for one, other in pairwise(values)]
    assert all(0 < one < other for one, other in pairwise(falls))
    assert budget.at(50) == pytest.approx(0.5)


def test_as_printed_it_is_equation_7() -> None:
    """With pace 1: epsilon = (-e^round / phi_1 + phi_2) / phi_3 for constants that fit both ends."""
    budget = Budget(2.0, 0.5, 6, pace=1.0)
    phi_1 = (math.e**5 - 1) / (2.0 - 0.5)
    phi_2 = 2.0 + 1 / phi_1
    for round in range(6):
        assert budget.at(round) == pytest.approx(-math.exp(round) / phi_1 + phi_2)
    assert math.isfinite(Budget(2.0, 0.5, 5000, pace=1.0).at(4000))


def test_which_layers_get_the_stronger_noise() -> None:
    leaves = StridedCnn(10, (1, 8, 8), width=4).init(0)
    deep, early = (strengths(leaves, layers, 0.1) for layers in (Layers.DEEP, Layers.EARLY))
    for name, leaf in leaves.items():
        convolution = leaf.dim() == 4 or leaves[name.replace("bias", "weight")].dim() == 4
        assert deep[name] == (0.1 if convolution else 1.0)
        assert early[name] == (1.0 if convolution else 0.1)
    assert strengths(MODEL.init(0), Layers.DEEP, 0.0) == {"0.weight": 0, "0.bias": 0, "1.weight": 1, "1.bias": 1}


@pytest.mark.parametrize(
    ("accurate", "similar", "probability", "sensitivity"),
    [(-1.0, -2.0, 0.9, 0.12), (2.0, -2.0, 0.4, 0.09), (-1.0, 2.0, 0.5, 0.1), (2.0, 2.0, 0.5, 0.1)],
)
def test_algorithm_3_s_switches(accurate: float, similar: float, probability: float, sensitivity: float) -> None:
    how = AdaptiveLdp(
        sensitivity=0.1, probability=0.5, high=0.9, medium=0.4, accurate=accurate, similar=similar,
        rise=0.02, fall=0.01, bout=QUICK,
    )  # fmt: skip
    here = cohort(blobs(), MODEL)
    kept = AdaptiveNoise(how).adapted({"probability": 0.5, "sensitivity": 0.1}, MODEL.init(0), here, 0)
    assert (kept["probability"], kept["sensitivity"]) == pytest.approx((probability, sensitivity))
    assert -1 <= kept["similarity"] <= 1


def test_noise_of_the_stated_deviation() -> None:
    """Of 20,000 draws the deviation is right to 4 of its own deviations (0.5 %): false alarms 1 in 15,000."""
    how = AdaptiveLdp(Budget(2.0, 2.0), 0.1, 1.0, 1.0, 1.0, similar=2.0, layers=Layers.DEEP, lighter=0.0, bout=QUICK)
    wide = Dense((4, 5000, 3))
    here = cohort(blobs(), wide, clients=[0])
    params = wide.init(0)
    here.given = {name: leaf[None] for name, leaf in params.items()}
    sent = Contributions(
        here.ids, {name: leaf[None, None] for name, leaf in params.items()}, torch.ones(1), torch.ones(1, 1)
    )
    left = how.client.contribute(sent, here)
    assert torch.equal(left.values["0.weight"], sent.values["0.weight"])  # the early layer, with nothing
    noise = (left.values["1.weight"] - sent.values["1.weight"]).flatten().double()
    assert float(noise.std()) == pytest.approx(0.05, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 4 * 0.05 / math.sqrt(len(noise))


def test_what_it_learns_is_kept_with_the_client_and_resumed() -> None:
    defence = AdaptiveLdp(Budget(2.0, 1.0, 3), bout=QUICK)
    whole = play(PROTOCOL, blobs(), MODEL, defence=defence)
    assert all(KEPT in whole.ring.memory[client] for client in range(6))
    resumed = play(PROTOCOL, blobs(), MODEL, defence=defence, state=whole.states[1], memory=whole.memories[1])
    assert resumed.bytes == whole.bytes


@pytest.mark.parametrize("defence", [AdaptiveLdp(), PlainLdp()], ids=lambda one: type(one).__name__)
def test_as_published_nothing_is_guaranteed(defence: AdaptiveLdp | PlainLdp) -> None:
    said = defence.guarantee(PROTOCOL.facts(blobs(), 1e-5))
    assert not said.proven
    assert "not clipped" in str(said)
    assert "stated: epsilon=" in str(said)
    assert defence.fits(replace(Ifca(), local=Local(steps=1), average_gradients=True)) != ""


def test_the_clipped_variant_says_what_it_spends() -> None:
    defence = ClippedLdp(0.5, 4.0, Budget(2.0, 1.0, 3))
    assert [defence.multiplier_at(round) for round in (0, 2)] == pytest.approx([4.0, 8.0])
    facts = PROTOCOL.facts(blobs(), 1e-5)
    said = defence.guarantee(facts)
    assert (said.proven, said.level, said.neighbours) == (True, Level.CLIENT, Neighbours.REPLACE)
    assert "how many records a client has is public" in str(said)  # by the trainers' roster
    done = play(PROTOCOL, blobs(), MODEL, defence=defence)
    assert done.ring.ledger.epsilon(1e-5, Neighbours.REPLACE) == pytest.approx(said.epsilon, rel=1e-6)
    assert epsilon_of(defence.events(facts), 1e-5, Neighbours.REPLACE) == pytest.approx(said.epsilon)
    assert defence.fits(Ifca()).startswith("beside its update a client reveals")


def test_no_update_is_longer_than_the_clip_whatever_was_trained() -> None:
    """Without noise the update itself can be seen; with it, every client's differs from it by noise alone."""
    here = cohort(blobs(), MODEL, clients=[0, 1])
    params = MODEL.init(0)
    here.given = {name: leaf[None] for name, leaf in params.items()}
    moved = {
        name: (leaf + torch.tensor([100.0, 1e-3]).view(2, *[1] * leaf.dim())).unsqueeze(1)
        for name, leaf in params.items()
    }
    sent = Contributions(here.ids, moved, torch.tensor([7.0, 9.0]), torch.ones(2, 1))
    left = ClippedLdp(0.5, 0.0).client.contribute(sent, here)
    norms = flatten({name: leaf[:, 0] - params[name] for name, leaf in left.values.items()}).norm(dim=1)
    length = sum(leaf.numel() for leaf in params.values())
    assert norms.tolist() == pytest.approx([0.5, 1e-3 * math.sqrt(length)], rel=1e-3)
    assert left.weights.tolist() == [1, 1]
    noisy = ClippedLdp(0.5, 1.0).client.contribute(sent, here)
    assert (
        float(flatten({name: leaf[:, 0] - params[name] for name, leaf in noisy.values.items()}).norm(dim=1).min()) > 1
    )


def test_what_is_clipped_to_the_same_leaves_the_same() -> None:
    """Of public values and whole numbers with noise alone: a model's last bits, or that it diverged, tell nothing."""
    here, params = cohort(blobs(), MODEL, clients=[0]), MODEL.init(0)
    here.given = {name: leaf[None] for name, leaf in params.items()}

    def left(length: float) -> torch.Tensor:
        moved = {name: leaf[None, None].clone() for name, leaf in params.items()}
        moved["0.weight"][..., 0, 0] += length
        sent = Contributions(here.ids, moved, torch.ones(1), torch.ones(1, 1))
        return flatten(ClippedLdp(0.5, 1.0).client.contribute(sent, here).values)

    assert torch.equal(left(3.0), left(1e10))  # from so far away the way back would not lead to where it set out
    assert torch.equal(left(0.0), left(math.nan))
    assert torch.equal(left(0.0), left(math.inf))
    assert not torch.equal(left(0.0), left(3.0))


def test_who_diverges_answers_as_the_others_do() -> None:
    """Silence, or an error, would tell of its data, and no noise is on that."""
    wild = replace(PROTOCOL, local=replace(PROTOCOL.local, lr=1e38))
    with pytest.raises(Diverged):
        play(wild, blobs(), MODEL)
    for defence in (ClippedLdp(0.5, 1.0), Stack(ClippedLdp(0.5, 1.0), Defence())):
        done = play(wild, blobs(), MODEL, defence=defence)
        said = defence.guarantee(wild.facts(blobs(), 1e-5))
        assert said is not None
        assert done.ring.ledger.epsilon(1e-5, Neighbours.REPLACE) == pytest.approx(said.epsilon, rel=1e-6)
        assert all(bool(leaf.isfinite().all()) for leaf in done.ring.models(done.state).values())


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="end=3"):
        Budget(2.0, 3.0)
    with pytest.raises(InvalidInput, match="epsilon=0"):
        PlainLdp(0.0)
    with pytest.raises(InvalidInput, match="clip=inf"):
        ClippedLdp(math.inf, 1.0)
    with pytest.raises(InvalidInput, match="probability=2"):
        AdaptiveLdp(probability=2.0)
