"""Property inference finds what is there, and nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.attacks.federations import LOCAL, MODEL, marked_examples, passive, run

from coterie.attacks.contrast import Contrast
from coterie.attacks.others import Rules
from coterie.attacks.property import Known, PropertyWatch
from coterie.attacks.updates import Imitation, aggregates, directions, magnitudes
from coterie.data.auxiliary import Auxiliary
from coterie.data.partition.property import Control
from coterie.defences.adaptive_ldp import PlainLdp
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.defences.dpsgd import DpSgd, NoisyGradients
from coterie.defences.regularise import L2
from coterie.defences.secure_sums import SecureSums
from coterie.errors import InvalidInput, NotPermitted
from coterie.flow.batches import plan_batches
from coterie.flow.guard import ClientGuard, Defence
from coterie.flow.imitated import imitated
from coterie.flow.stack import Stack
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.models.model import Batch
from coterie.learn.optimisers import Decay
from coterie.learn.params import flatten, map_leaves
from coterie.learn.sgd import Local
from coterie.measure.findings import Finding, over_seeds
from coterie.measure.judge import judge
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.wire.codec import decode, encode
from coterie.wire.view import ThreatModel

FL = FedAvg(rounds=51, local=LOCAL, weighting="equal")
WAYS = (magnitudes, directions, Contrast())
CFL = Ifca(rounds=51, local=LOCAL, weighting="equal", clusters=2)


def aucs(protocol: Any, control: Control, seed: int) -> list[Finding]:
    """By the published features, by signed ones and by contrast."""
    ran = run(protocol, seed, control=control)
    auxiliary, truth = ran.split.auxiliary(ran.federation), ran.witness.property_truth(ran.federation)
    attack = passive(rules=Rules.of(3, protocol.slots))
    guesses = attack.infer_by(ran.view, auxiliary, Rng.seeded(seed), WAYS)
    return [judge(guess, truth, "passive") for guess in guesses]


@pytest.mark.parametrize("protocol", [FL, CFL], ids=["FL", "CFL"])
def test_a_plain_property_is_found_and_the_controls_are_not(protocol: Any) -> None:
    scores = {control: [aucs(protocol, control, seed) for seed in range(2)] for control in Control}
    for way in range(len(WAYS)):
        found = {control: over_seeds([auc[way] for auc in scores[control]]) for control in Control}
        assert found[Control.NONE].score > 0.75
        # 40 observations and 2 seeds: the deviation of a mean AUC under chance is about 0.065; this is over 3 of them.
        assert abs(found[Control.PLACEBO].score - 0.5) < 0.22
        assert abs(found[Control.ABSENT].score - 0.5) < 0.22


def test_the_same_seed_gives_the_same_scores() -> None:
    ran = run(FedAvg(rounds=15, local=LOCAL))
    auxiliary = ran.split.auxiliary(ran.federation)
    first, second = (passive().infer(ran.view, auxiliary, Rng.seeded(3)) for _ in range(2))
    assert first == second
    assert first != passive().infer(ran.view, auxiliary, Rng.seeded(4))


def test_aggregates_are_differences_of_published_models_and_skip_warm_up_and_empty_clusters() -> None:
    ran = run(Ifca(rounds=15, local=LOCAL, clusters=3, candidates=0))
    seen = list(aggregates(ran.view, 10))
    assert {observed.round for observed in seen} == {10, 11, 12, 13}  # the last one published has no successor
    assert {(observed.round, observed.slot) for observed in seen} == {
        key for key in ran.witness.sizes() if 10 <= key[0] < 14
    }
    for observed in seen:
        before, after = (flatten(ran.view.received(observed.round + later).values)[observed.slot] for later in (0, 1))
        torch.testing.assert_close(flatten(observed.update, 0), after - before)


def test_features_by_hand() -> None:
    updates = {
        "conv": torch.tensor([[[[[1.0, -4.0], [2.0, 3.0]]]]]),  # (1, 1, 1, 2, 2): the maximum of absolute values is 4
        "conv.bias": torch.tensor([[9.0]]),
        "dense": torch.tensor([[[1.0, -2.0, 3.0, 1.0], [0.0, 5.0, 1.0, 1.0]]]),  # (1, 2, 4): 2 outputs of 4 inputs
    }
    maxima = torch.tensor([[4.0, 1.0, 5.0, 3.0, 1.0]])  # over outputs
    assert torch.allclose(magnitudes(updates, most=4), maxima / maxima.norm())
    whole = torch.tensor([[4.0, 1.0, 2.0, 3.0, 1.0, 0.0, 5.0, 1.0, 1.0]])
    assert torch.allclose(magnitudes(updates, most=8), whole / whole.norm())
    means = torch.tensor([[0.5, -0.5, 2.0, 2.5, 1.0]])  # in blocks of two
    assert torch.allclose(directions(updates, most=4), means / means.norm())
    embedding = {"words": torch.tensor([[[1.0, -2.0], [0.0, 1.0], [3.0, 1.0]]])}  # three words: each keeps its maximum
    assert torch.allclose(magnitudes(embedding, most=5), torch.tensor([[2.0, 1.0, 3.0]]) / 14**0.5)
    for way in (magnitudes, directions):
        with pytest.raises(InvalidInput, match="are all biases"):
            way({"bias": torch.ones(2, 3)})


def test_imagined_aggregates_are_means_that_differ_in_one_client() -> None:
    attack = passive(others=4, each=2, pairs=20)
    means = attack.averages(np.random.default_rng(0), (1, 4))
    assert np.allclose(means.sum(1), 1)
    sizes = (means > 0).sum(1)
    assert set(sizes) == {1, 2, 3, 4}
    like_the_victim = means[:, 4:] > 0
    assert (like_the_victim[:20, 2:].sum(1) == 1).all()  # the first half has one client with the property,
    assert not like_the_victim[:20, :2].any()
    assert (like_the_victim[20:, :2].sum(1) == 1).all()  # the second half one without in its place
    assert not like_the_victim[20:, 2:].any()
    with_own = attack.averages(np.random.default_rng(0), (1, 4), own=2)
    assert np.allclose(with_own[:, -1], 2 / ((with_own[:, :-1] > 0).sum(1) + 2))
    many = attack.averages(np.random.default_rng(0), (9, 9))  # eight strangers of four that were imagined
    assert np.allclose(many[:, :4].sum(1), 8 / 9)


def test_imagined_batches_mix_the_property_in_the_stated_range() -> None:
    examples = marked_examples(400)
    known = Known.of(Auxiliary.by_property(examples, examples.tags["mark"] == 1))
    attack = passive(others=5, each=30, mix=(0.25, 0.75))
    rows = attack.rows(known, np.random.default_rng(0)).numpy()
    assert rows.shape == (65, 1, 16)
    shares = (rows < known.marked).mean((1, 2))
    assert (shares[:35] == 0).all()
    assert (shares[35:] >= 0.25 - 1 / 16).all()
    assert (shares[35:] <= 0.75 + 1 / 16).all()
    assert np.ptp(shares[35:]) > 0.3


def test_an_imagined_client_trains_as_a_real_one() -> None:
    examples = marked_examples(100)
    start = MODEL.init(0)
    rows = torch.arange(32).view(1, 2, 16)
    update = Imitation(MODEL, Local(steps=2, batch_size=16, lr=0.2)).train(start, examples, rows, Rng.seeded(0))
    params = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
    for step in range(2):
        loss = torch.nn.functional.cross_entropy(
            MODEL.logits(params, examples.x[rows[0, step]]), examples.y[rows[0, step]]
        )
        grads = torch.autograd.grad(loss, list(params.values()))
        params = {
            name: (leaf - 0.2 * grad).detach().requires_grad_()
            for (name, leaf), grad in zip(params.items(), grads, strict=True)
        }
    for name, leaf in update.items():
        torch.testing.assert_close(leaf[0], (params[name] - start[name]).detach(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "local",
    [
        Local(steps=3, batch_size=8),
        Local(epochs=2, batch_size=8),
        Local(steps=2, batch_size=64),
        Local(steps=2, whole=True),
        Local(epochs=3, whole=True),
    ],
)
def test_an_imagined_client_takes_as_many_steps_as_a_real_one(local: Local) -> None:
    examples = marked_examples(40)
    known = Known.of(Auxiliary.by_property(examples, examples.tags["mark"] == 1))
    real, _ = plan_batches(len(known.examples), local, np.random.default_rng(0))
    rows = replace(passive(), imitation=Imitation(MODEL, local)).rows(known, np.random.default_rng(0))
    assert rows.shape[1:] == (len(real), max(map(len, real)))


def test_an_imagined_client_s_records_enter_a_batch_by_their_coins_where_a_real_one_s_do() -> None:
    examples, local = marked_examples(400), replace(LOCAL, poisson=True)
    known = Known.of(Auxiliary.by_property(examples, examples.tags["mark"] == 1))
    attack = replace(passive(others=300, each=50), imitation=Imitation(MODEL, local))
    rows = attack.rows(known, np.random.default_rng(0))
    sizes = (rows >= 0).sum(2).double()  # 400 of 400 records with a chance of 0.04: 16, of a deviation of 3.92
    assert float(sizes.mean()) == pytest.approx(16, abs=3.92 / 20 * 4)
    assert float(sizes.std()) == pytest.approx(3.92, rel=0.15)  # four deviations of an estimate by 400
    marked = ((rows >= 0) & (rows < known.marked)).sum(2) / sizes
    assert float(marked[:350].max()) == 0
    assert 0.15 < float(marked[350:].min()) < 0.5 < float(marked[350:].max()) <= 1

    start, alone = MODEL.init(0), torch.tensor([[[3]]])
    padded = torch.tensor([[[3, -1, -1]], [[-1, -1, -1]]])  # one was drawn, and none
    whole = flatten(Imitation(MODEL, local).train(start, examples, alone, Rng.seeded(0)))[0]
    some, none = flatten(Imitation(MODEL, local).train(start, examples, padded, Rng.seeded(0), divisor=16))
    torch.testing.assert_close(some, whole / 16, atol=1e-7, rtol=1e-3)
    assert not none.any()


def test_an_imagined_client_trains_at_the_round_s_rate() -> None:
    examples, start, rows = marked_examples(20), MODEL.init(0), torch.arange(16).view(1, 1, 16)
    imitation = Imitation(MODEL, replace(LOCAL, steps=1, schedule=Decay("step", factor=0.5, every=10)))
    early, late = (flatten(imitation.train(start, examples, rows, Rng.seeded(0), round)) for round in (0, 10))
    torch.testing.assert_close(late, early / 2, atol=1e-7, rtol=1e-3)


def test_an_imagined_client_is_under_the_client_s_own_guard() -> None:
    """DP-SGD's noise has its deviation, and L2's penalty is there to the last bit."""
    examples = marked_examples(100)
    noisy = NoisyGradients(1.0, 4.0)
    imitation = Imitation(MODEL, LOCAL, imitated(noisy))
    rows = torch.zeros(200, 1, 16, dtype=torch.int64)
    update = imitation.train(MODEL.init(0), examples, rows, Rng.seeded(0))
    # All have the same gradient. lr * clip * sigma / batch = 0.2 * 4 / 16; of 200 x 242 draws 1% is 3.1 deviations.
    assert float(flatten(update).var(0).mean().sqrt()) == pytest.approx(0.05, rel=0.01)

    quiet = NoisyGradients(0.1, 1e-4)  # clips all, and hardly noises: as a client's own, exact gradients do
    params = map_leaves(lambda leaf: leaf.expand(3, *leaf.shape), MODEL.init(0))
    batch = Batch(
        examples.x[:24].view(3, 8, 12), examples.y[:24].view(3, 8), torch.full((3, 8), 1 / 16), torch.full((3,), 16.0),
        torch.ones(3, dtype=torch.bool),
    )  # fmt: skip
    step = Step(torch.arange(3), 0, batch.divisors, torch.ones(3), batch.active, True, Turn(0, Roots.seeded(0)))
    exact, rng = quiet.gradients(MODEL, params, batch, step), Rng.seeded(0)
    alone, stacked = (imitated(guard) for guard in (quiet, Stack(DpSgd(0.1, 1e-4), SecureSums()).client))
    assert alone is not None
    assert stacked is not None
    made, alike = (one.gradients(MODEL, rng) for one in (alone, stacked))
    assert made is not None
    assert alike is not None
    imagined = flatten(made(params, 0, batch))
    torch.testing.assert_close(imagined, flatten(exact), atol=2e-4, rtol=0)  # a coarse grid has the exact ones
    assert torch.equal(flatten(alike(params, 0, batch)), imagined)

    start = MODEL.init(0)
    plain = Imitation(MODEL, LOCAL).train(start, examples, rows[:1], Rng.seeded(0))
    assert imitated(ClientGuard()) is None
    decayed = Imitation(MODEL, LOCAL, guard=imitated(L2(0.3).client)).train(start, examples, rows[:1], Rng.seeded(0))
    for name, leaf in start.items():
        torch.testing.assert_close(decayed[name] - plain[name], -LOCAL.lr * 0.3 * leaf.unsqueeze(0))


def test_an_imagined_client_s_upload_is_noised_as_a_real_one_s() -> None:
    """Of all of a stack, too; what seals leaves it as it is."""
    examples, start = marked_examples(100), MODEL.init(0)
    rows = torch.zeros(200, 1, 16, dtype=torch.int64)

    def sent(defence: Defence) -> torch.Tensor:
        imitation = Imitation(MODEL, LOCAL, imitated(defence.client))
        return flatten(imitation.train(start, examples, rows, Rng.seeded(0)))

    noised = sent(PlainLdp(epsilon=1.0, sensitivity=0.3))
    assert float(noised.var(0).mean().sqrt()) == pytest.approx(0.3, rel=0.01)  # of 200 x 242 draws, 3.1 deviations
    assert float(sent(Stack(ClippedLdp(0.01, 0.0), SecureSums())).norm(dim=1).max()) == pytest.approx(0.01, rel=1e-3)
    assert imitated(SecureSums().client) is None


def test_imagined_clients_have_chances_of_their_own() -> None:
    """Dropout and a guard's noise are drawn for each client, step and round: nothing of them is common to all."""
    examples, start = marked_examples(100), MODEL.init(0)
    alike = torch.zeros(2, 1, 16, dtype=torch.int64)  # two clients with the same rows
    one, two = flatten(Imitation(MODEL.with_dropout(0.5), LOCAL).train(start, examples, alike, Rng.seeded(0)))
    assert not torch.equal(one, two)
    for seed in range(3):
        other = flatten(Imitation(MODEL.with_dropout(0.5), LOCAL).train(start, examples, alike, Rng.seeded(seed + 1)))
        assert not torch.equal(other[0], one)  # and in every round

    imitation = Imitation(MODEL, replace(LOCAL, steps=4, lr=1e-3), imitated(NoisyGradients(1.0, 400.0)))
    update = imitation.train(start, examples, torch.zeros(200, 4, 16, dtype=torch.int64), Rng.seeded(0))
    # Four draws of lr * clip * sigma / batch = 0.025 add up to twice that; one draw four times would be four times it.
    assert float(flatten(update).var(0).mean().sqrt()) == pytest.approx(0.05, rel=0.02)


def test_looking_round_by_round_gives_what_looking_once_does() -> None:
    """Also from notes that went through a file, and where only a sample of what was imagined is kept."""
    ran = run(Ifca(rounds=20, local=LOCAL, clusters=2, weighting="equal"))
    auxiliary = ran.split.auxiliary(ran.federation)
    attack = passive(most_made=64, rules=Rules.of(3, 2))
    once = attack.infer_by(ran.view, auxiliary, Rng.seeded(3), WAYS)
    watch = PropertyWatch(attack, Known.of(auxiliary), Rng.seeded(3), WAYS)
    for round in range(1, 20):
        passed = {key: load for key, load in ran.view._index.items() if round - 1 <= key[0] <= round}
        watch.look(replace(ran.view, _index=passed))
        watch = replace(watch, notes=decode(encode(watch.notes)))
    assert watch.guesses() == once
    assert len(watch.notes.has) == 64 < watch.notes.count


def test_a_contrast_is_a_ridge_regression_on_differences_from_the_round_s_own() -> None:
    draws = torch.Generator().manual_seed(0)
    made, seen = torch.randn(30, 7, generator=draws), torch.randn(4, 7, generator=draws)
    has = torch.arange(30) % 3 == 0
    scaled = (made - made.mean(0)) / made.std(0)
    slope = torch.linalg.solve(scaled.T @ scaled / 30 + 2 * torch.eye(7), scaled.T @ (2.0 * has - 1) / 30)
    read = Contrast(penalty=2.0).reader(made, has)
    torch.testing.assert_close(read(seen), (seen - made.mean(0)) / made.std(0) @ slope, rtol=1e-4, atol=1e-5)

    ran = run(FedAvg(rounds=14, local=LOCAL))
    watch = PropertyWatch(passive(), Known.of(ran.split.auxiliary(ran.federation)), Rng.seeded(0), WAYS)
    watch.look(ran.view)
    rounds = watch.notes.made[2][: watch.notes.count].view(-1, 2 * watch.attack.pairs, watch.notes.made[2].shape[1])
    assert float(rounds.mean(1).abs().max()) < 1e-5  # of each round nothing is left but differences
    with pytest.raises(InvalidInput, match="imagine_every=2 must be 1"):
        replace(watch, attack=passive(imagine_every=2))


@pytest.mark.parametrize("rows", [30, 5])
def test_a_contrast_is_the_same_by_rows_as_by_features(rows: int) -> None:
    draws = torch.Generator().manual_seed(1)
    made, has = torch.randn(rows, 7, generator=draws).double(), torch.arange(rows) % 2 == 0
    scaled = (made - made.mean(0)) / (made.std(0) + 1e-6)
    stacked = torch.cat([scaled, (3.0 * rows) ** 0.5 * torch.eye(7).double()])
    wanted = torch.cat([2.0 * has - 1, torch.zeros(7)]).double()
    slope = torch.linalg.lstsq(stacked, wanted.unsqueeze(1)).solution[:, 0]
    torch.testing.assert_close(Contrast().reader(made, has)(made), scaled @ slope)


def test_it_sees_published_models_only() -> None:
    ran = run(FedAvg(rounds=12, local=LOCAL))
    assert ran.view.sent(3).ids.tolist() == [0]  # its own client's upload, nobody else's
    outsider = run(FedAvg(rounds=12, local=LOCAL), threat=ThreatModel("outsider", clients=frozenset({99}))).view
    with pytest.raises((InvalidInput, NotPermitted)):
        passive().infer(outsider, ran.split.auxiliary(ran.federation), Rng.seeded(0))
    with pytest.raises(InvalidInput, match="with_property"):
        passive().infer(ran.view, Auxiliary(), Rng.seeded(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"others": 0}, "others=0"),
        ({"most_made": 4}, "most_made=4"),
        ({"mix": (0.0, 1.0)}, "mix="),
        ({"each": 0}, "each=0"),
        ({"pairs": 0}, "pairs=0"),
        ({"skew": 0.0}, "skew=0.0"),
    ],
)
def test_bad_settings_name_themselves(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        passive(**settings)


def test_too_few_rounds_say_so() -> None:
    ran = run(FedAvg(rounds=5, local=LOCAL))
    with pytest.raises(InvalidInput, match="run more rounds"):
        passive().infer(ran.view, ran.split.auxiliary(ran.federation), Rng.seeded(0))
