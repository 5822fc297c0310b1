"""FedEM against one example at a time."""

from __future__ import annotations

import torch
from tests.references import client_loop as slow
from tests.ring import blobs, cohort, play

from coterie.data.federation import Federation
from coterie.flow.guard import ClientGuard
from coterie.learn.models.dense import Dense
from coterie.learn.params import pick, stack
from coterie.learn.sgd import Local
from coterie.measure.utility import evaluate
from coterie.protocols.fedem import FedEM
from coterie.wire.messages import TRAIN

MODEL = Dense((4, 5, 3))
LOCAL = Local(epochs=2, batch_size=4, lr=0.2)
UNEVEN = blobs([10, 5, 7])


def test_an_e_step_and_an_m_step() -> None:
    """From mixtures that are uneven, and unknown for the last client: the reference's E step, then its SGD."""
    protocol = FedEM(local=LOCAL, components=2)
    group = cohort(UNEVEN, MODEL)
    before = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]])
    for client in (0, 1):
        group.memory[client]["mixture"] = before[client].clone()
    models = stack(MODEL.init(seed) for seed in range(2))
    sent = protocol.answer(TRAIN, models, group, ClientGuard())
    module = slow.module_of(MODEL.sizes)
    both = [pick(models, slot) for slot in range(2)]
    shares = []
    for client in range(3):
        rows = UNEVEN.train[client]
        shares.append(slow.e_step(module, both, before[client], UNEVEN.examples.x[rows], UNEVEN.examples.y[rows]))
        kept = group.memory[client]["mixture"]
        torch.testing.assert_close(kept, shares[client].mean(0), rtol=1e-4, atol=1e-6)
    every = torch.cat(shares)  # rows in the order of the shards
    for slot in range(2):
        batches = list(group.batches(LOCAL, every[:, slot], f"component {slot}"))
        for client in range(3):
            steps, weights = [], []
            for batch in batches:
                kept = batch.weights[client] > 0
                if kept.any():
                    steps.append((batch.x[client][kept], batch.y[client][kept]))
                    weights.append(batch.weights[client][kept] * kept.sum())
            expected = slow.sgd(module, both[slot], steps, 0.2, example_weights=weights)
            for name, leaf in expected.items():
                torch.testing.assert_close(sent.values[name][client, slot], leaf, rtol=1e-4, atol=1e-5)
    assert sent.membership.tolist() == [[1.0, 1.0]] * 3
    assert sent.weights.tolist() == [10.0, 5.0, 7.0]


def test_mixtures_are_shares_and_stay_with_the_clients() -> None:
    done = play(FedEM(rounds=4, local=LOCAL, components=3), blobs([10, 0, 7]), MODEL)
    memory = done.ring.memory
    assert sorted(memory) == [0, 2]  # client 1 has no data, so it was never asked
    for client in (0, 2):
        assert memory[client]["mixture"].shape == (3,)
        torch.testing.assert_close(memory[client]["mixture"].sum(), torch.tensor(1.0))
    assert set(done.asks[-1].published.values) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_a_newcomer_predicts_with_one_e_step() -> None:
    group = cohort(UNEVEN, MODEL)
    models = stack(MODEL.init(seed) for seed in range(2))
    chosen = FedEM(components=2).choose(models, group)
    module = slow.module_of(MODEL.sizes)
    rows = UNEVEN.train[1]
    x, y = UNEVEN.examples.x[rows], UNEVEN.examples.y[rows]
    expected = slow.e_step(module, [pick(models, slot) for slot in range(2)], torch.tensor([0.5, 0.5]), x, y).mean(0)
    torch.testing.assert_close(chosen[1], expected, rtol=1e-4, atol=1e-6)


def test_two_groups_find_their_components(two_groups: Federation) -> None:
    protocol = FedEM(rounds=25, local=Local(epochs=2, batch_size=6, lr=0.3), components=2)
    done = play(protocol, two_groups, MODEL)
    scores = evaluate(done.ring, done.state)
    assert scores.mean > 0.9
    leaning = scores.choices.argmax(1)
    assert len(set(leaning[::2].tolist())) == len(set(leaning[1::2].tolist())) == 1
    assert leaning[0] != leaning[1]
