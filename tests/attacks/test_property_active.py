"""The active attack trains what it says, uploads the shared part, and scales it as told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.attacks.federations import LOCAL, MODEL, marked_examples, passive, run
from tests.ring import play
from torch.nn.functional import cross_entropy

from coterie.attacks.base import Attack, Suspicions
from coterie.attacks.property import Known, property_threat
from coterie.attacks.property_active import ActiveProperty, drawn, fitted_head, head_names, hidden_values
from coterie.attacks.updates import Imitation
from coterie.data.auxiliary import Auxiliary
from coterie.data.partition.property import PropertySplit
from coterie.defences.dpsgd import DpSgd
from coterie.defences.regularise import L2, Dropout
from coterie.errors import InvalidInput
from coterie.flow.adversary import Insider
from coterie.flow.guard import Defence
from coterie.flow.imitated import imitated
from coterie.learn.models.bundled import FaceCnn, Gru
from coterie.learn.models.model import built
from coterie.learn.params import flatten
from coterie.measure.judge import judge
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng
from coterie.wire.codec import encode
from coterie.wire.tape import Tape


def auxiliary() -> Auxiliary:
    examples = marked_examples(400, seed=9)
    return Auxiliary.by_property(examples, examples.tags["mark"] == 1)


def active(**settings: Any) -> ActiveProperty:
    return ActiveProperty(Imitation(MODEL, LOCAL), property_threat(), warmup=10, trees=40, data=auxiliary(), **settings)


def test_the_step_is_equation_1_by_hand() -> None:
    attack = active(alpha=0.7)
    start = MODEL.init(0)
    wide = dict(start)
    wide["1.weight"] = torch.cat([start["1.weight"], torch.randn(2, 16, generator=torch.Generator().manual_seed(0))])
    wide["1.bias"] = torch.cat([start["1.bias"], torch.zeros(2)])
    examples = marked_examples(8)
    has = examples.tags["mark"]
    found = attack.gradient(wide, examples.x, examples.y, has, seed=0)
    tracked = {name: leaf.clone().requires_grad_() for name, leaf in wide.items()}
    hidden = (examples.x @ tracked["0.weight"].T + tracked["0.bias"]).relu()
    logits = hidden @ tracked["1.weight"].T + tracked["1.bias"]
    chances = logits[:, :2].log_softmax(1), logits[:, 2:].log_softmax(1)
    rows = torch.arange(8)
    loss = -(0.7 * chances[0][rows, examples.y] + 0.3 * chances[1][rows, has]).mean()
    for (name, leaf), grad in zip(found.items(), torch.autograd.grad(loss, list(tracked.values())), strict=True):
        torch.testing.assert_close(leaf, grad, msg=name)


def test_only_the_main_task_is_ordinary_training() -> None:
    """With alpha = 1 the property's head gets no say, so the shared part moves down the main loss alone."""
    attack = active(alpha=1.0)
    start = MODEL.init(0)
    trained, _ = attack.train(start, None, Rng.seeded(0))
    assert {name: leaf.shape for name, leaf in trained.items()} == {name: leaf.shape for name, leaf in start.items()}
    known = Known.of(attack.data)
    losses = [float(MODEL.losses(params, known.examples.x, known.examples.y).mean()) for params in (start, trained)]
    assert losses[1] < losses[0]
    assert not torch.equal(flatten(trained, 0), flatten(active(alpha=0.5).train(start, None, Rng.seeded(0))[0], 0))


def test_it_steps_as_the_clients_optimiser_does() -> None:
    """Adam's first step moves each number by its rate, whatever the gradient; a plain one at that rate would not."""
    adam = replace(LOCAL, steps=1, lr=0.004, optimizer="adam")
    start = MODEL.init(0)
    trained, _ = replace(active(), imitation=Imitation(MODEL, adam)).train(start, None, Rng.seeded(0))
    moved = (flatten(trained, 0) - flatten(start, 0)).abs()
    assert float((moved > 0).float().mean()) > 0.5
    torch.testing.assert_close(moved[moved > 0].median(), torch.tensor(0.004), rtol=1e-3, atol=0)


def test_the_head_learns_the_property_from_the_layer_below() -> None:
    known = Known.of(auxiliary())
    has = (torch.arange(len(known.examples)) < known.marked).long()
    params = MODEL.init(0)
    hidden = hidden_values(MODEL, params, "1.weight", "1.bias", known.examples.x)
    by_hand = (known.examples.x @ params["0.weight"].T + params["0.bias"]).relu()
    torch.testing.assert_close(hidden, by_hand)
    head = fitted_head(hidden, has)

    def loss(head: torch.Tensor) -> float:
        return float(cross_entropy(hidden @ head[:, :-1].T + head[:, -1], has))

    right = ((hidden @ head[:, :-1].T + head[:, -1]).argmax(1) == has).float().mean()
    assert float(right) > 0.85 > float(1 - has.float().mean())
    carried = fitted_head(hidden, has, head)
    assert loss(carried) < loss(head) < float(torch.tensor(2.0).log())  # it goes on from where it was


def test_the_head_is_carried_along_one_for_each_cluster() -> None:
    attack = active()
    ran = [run(Ifca(rounds=count, local=LOCAL, clusters=2), adversaries=[attack]) for count in (3, 6)]
    heads = [{name: value for name, value in one.memory[-1].items() if name.startswith("head/0/")} for one in ran]
    assert set(heads[0]) <= set(heads[1]) <= {"head/0/0", "head/0/1"}
    lengths = [max(float(head.norm()) for head in kept.values()) for kept in heads]
    assert lengths[1] > lengths[0]


def test_a_fifth_of_its_batch_has_the_property() -> None:
    rows, has = drawn(Known.of(auxiliary()), 6, 26, torch.Generator().manual_seed(0))
    assert has.tolist() == [1] * 6 + [0] * 26
    assert (rows < Known.of(auxiliary()).marked).long().tolist() == has.tolist()


@pytest.mark.parametrize(
    "defence", [Defence(), Dropout(0.3), L2(0.01), DpSgd(1.0, 0.5)], ids=lambda one: type(one).__name__
)
def test_the_same_seed_gives_the_same_bytes_under_every_client_defence(defence: Defence) -> None:
    """Whatever ran in this process before: a module's mode and torch's own generator are left as somebody left them."""
    model = FaceCnn(2, (1, 8, 8))
    small = marked_examples(300)
    pictures = replace(small, x=small.x.repeat(1, 6)[:, :64].view(-1, 1, 8, 8))
    split = PropertySplit(3, "mark", every=2, warmup=1)
    federation = split.split(pictures, Rng.seeded(0))
    guard = defence.client
    local = replace(LOCAL, poisson=isinstance(defence, DpSgd))
    imitation = Imitation(model.with_dropout(guard.dropout) if guard.dropout else model, local, imitated(guard))
    attack = ActiveProperty(
        imitation, property_threat(), warmup=1, trees=5, others=2, each=1, data=split.auxiliary(federation), gamma=5.0
    )
    found = []
    for disturbance in (0, 7):
        torch.manual_seed(disturbance)
        built(imitation.model).train(disturbance > 0)
        done = play(
            FedAvg(rounds=3, local=local),
            federation,
            model,
            defence=defence,
            tape=Tape([attack.threat]),
            adversaries=[attack],
        )
        guess = attack.infer(done.ring.view(attack.threat), attack.data, Rng.seeded(1))
        found.append((done.bytes, encode(done.ring.memory), guess))
    assert found[0] == found[1]


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_the_upload_is_scaled_and_nobody_else_s_is_touched(gamma: float) -> None:
    attack = active(gamma=gamma)
    honest = run(FedAvg(rounds=2, local=LOCAL))
    tampered = run(FedAvg(rounds=2, local=LOCAL), adversaries=[attack])
    start = {name: leaf[0] for name, leaf in tampered.view.received(0).values.items()}
    sent = tampered.view.sent(0)
    root = Rng.seeded(0).child("clients").child("adversary", attack.threat.name, "round", 0, "kind", "train")
    trained, _ = attack.train(start, None, root.child("client", 0))
    expected = flatten(start, 0) + gamma * (flatten(trained, 0) - flatten(start, 0))
    torch.testing.assert_close(flatten(sent.values, leading=2)[0, 0], expected)
    # The mean of three clients moved by a third of what the adversary changed.
    changed = flatten(sent.values, 2)[0, 0] - flatten(honest.view.sent(0).values, 2)[0, 0]
    moved = flatten(tampered.view.received(1).values)[0] - flatten(honest.view.received(1).values)[0]
    weights = honest.federation.train.sizes.float()
    torch.testing.assert_close(moved, changed * weights[0] / weights.sum(), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("gamma", [1.0, 5.0])
def test_it_finds_the_property_in_a_clustered_federation(gamma: float) -> None:
    attack = active(gamma=gamma)
    ran = run(Ifca(rounds=41, local=LOCAL, weighting="equal", clusters=2), adversaries=[attack])
    guess = attack.infer(ran.view, ran.split.auxiliary(ran.federation), Rng.seeded(0))
    assert judge(guess, ran.witness.property_truth(ran.federation)).score > 0.65


def test_the_head_of_every_bundled_kind_of_model_is_found() -> None:
    assert head_names(MODEL.init(0), 2) == ("1.weight", "1.bias")
    assert head_names(Gru(classes=5, vocabulary=20).init(0), 5) == ("head.weight", "head.bias")
    with pytest.raises(InvalidInput, match="second head"):
        head_names(MODEL.init(0), 7)


def test_bad_settings_name_themselves() -> None:
    with pytest.raises(InvalidInput, match=r"alpha=1.5 must lie in \[0, 1\]"):
        active(alpha=1.5)
    with pytest.raises(InvalidInput, match="gamma=0"):
        active(gamma=0)


def test_only_the_active_one_takes_an_insiders_seat() -> None:
    looking: Attack[Suspicions] = passive()
    changing: Attack[Suspicions] = active()
    assert isinstance(changing, Insider)
    assert not isinstance(looking, Insider)
