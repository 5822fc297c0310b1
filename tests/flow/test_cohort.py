"""Batches, losses and training of a group of clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from tests.references import client_loop as slow
from tests.ring import blobs, cohort
from torch import Tensor

from coterie.data.federation import Schedule, Shards
from coterie.defences.clipped_ldp import ClippedLdp
from coterie.defences.dpsgd import DpSgd
from coterie.flow.batches import padded, plan_batches, poisson_batches, stepwise
from coterie.flow.cohort import Memory, segment_mean
from coterie.flow.guard import ClientGuard
from coterie.flow.turn import Step
from coterie.learn.models.dense import Dense
from coterie.learn.params import Params, pick, stack
from coterie.learn.sgd import Local
from coterie.rng import Secrets
from coterie.wire.codec import encode

MODEL = Dense((4, 5, 3))


def plan(size: int, local: Local, seed: int = 0) -> list[np.ndarray]:
    return plan_batches(size, local, np.random.default_rng(seed))[0]


class TestPlan:
    def test_steps_run_through_shuffled_data(self) -> None:
        batches = plan(10, Local(steps=5, batch_size=4))
        assert [len(batch) for batch in batches] == [4] * 5
        drawn = np.concatenate(batches)
        assert sorted(drawn[:10]) == list(range(10))
        assert sorted(drawn[10:]) == list(range(10))
        assert list(drawn[:10]) != list(drawn[10:])

    def test_a_client_smaller_than_the_batch_uses_all_it_has(self) -> None:
        assert [sorted(batch) for batch in plan(3, Local(steps=2, batch_size=50))] == [[0, 1, 2]] * 2

    def test_epochs_end_in_a_smaller_batch(self) -> None:
        batches = plan(10, Local(epochs=2, batch_size=4))
        assert [len(batch) for batch in batches] == [4, 4, 2] * 2
        assert sorted(np.concatenate(batches[:3])) == list(range(10))

    def test_no_data_no_batches(self) -> None:
        assert plan(0, Local()) == []

    @pytest.mark.parametrize("sizes", [(9, 4, 7), (3, 0, 8, 1), (0, 0)])
    def test_all_clients_at_once_as_planned_one_by_one(self, sizes: tuple[int, ...]) -> None:
        local, offsets = Local(steps=3, batch_size=4), np.array([0, *np.cumsum(sizes)])
        each = [plan_batches(size, local, np.random.default_rng(client)) for client, size in enumerate(sizes)]
        due = [padded(each, offsets, step, 4) for step in range(3 * (max(sizes) > 0))]
        draws = (np.random.default_rng(client) for client in range(len(sizes)))
        found = list(stepwise(sizes, local, draws, offsets))
        assert len(found) == len(due)
        for ours, one_by_one in zip(found, due, strict=True):
            assert all(map(torch.equal, ours, one_by_one))

    def test_poisson_moments(self) -> None:
        """2000 batches at rate 0.2 of 50: sizes have mean 10, variance 8; bounds of six standard errors.

        The variance of a sample variance of n binomials is about 2 * 8^2 / n. Each bound fails once in 5e8 seeds.
        """
        batches, divisor = poisson_batches(50, Local(steps=2000, batch_size=10, poisson=True), Secrets.seeded(0))
        sizes = np.array([len(batch) for batch in batches])
        assert divisor == 10
        assert abs(sizes.mean() - 10) < 6 * (8 / 2000) ** 0.5
        assert abs(sizes.var() - 8) < 6 * 8 * (2 / 2000) ** 0.5
        each = np.bincount(np.concatenate(batches), minlength=50)  # 400 times, deviation 17.9
        assert abs(each - 400).max() < 6 * 17.9
        assert all(len(set(batch)) == len(batch) for batch in batches)

    def test_poisson_of_a_small_client_is_everything(self) -> None:
        batches, divisor = poisson_batches(3, Local(steps=2, batch_size=50, poisson=True), Secrets.seeded(0))
        assert [list(batch) for batch in batches] == [[0, 1, 2]] * 2
        assert divisor == 3


class TestBatches:
    def test_weights_divisors_and_padding(self) -> None:
        group = cohort(blobs([10, 3]), MODEL)
        first, _, third = group.batches(Local(epochs=1, batch_size=4))
        assert first.weights.tolist() == [[0.25] * 4, [pytest.approx(1 / 3)] * 3 + [0.0]]
        assert first.divisors.tolist() == [4.0, 3.0]
        assert third.weights.tolist() == [[0.5, 0.5, 0.0, 0.0], [0.0] * 4]
        assert third.active.tolist() == [True, False]
        assert third.divisors.tolist() == [2.0, 1.0]

    def test_an_empty_poisson_batch_is_a_step_all_the_same(self) -> None:
        """It must be: noise that is left out when a batch is empty would tell that it was."""
        group = cohort(blobs([12]), MODEL)
        batches = list(group.batches(Local(steps=60, batch_size=1, poisson=True)))
        empty = [batch for batch in batches if float(batch.weights.sum()) == 0]
        assert empty
        assert len(batches) == 60
        assert all(bool(batch.active.all()) and batch.divisors.tolist() == [1.0] for batch in empty)

    def test_clients_draw_from_their_own_data(self) -> None:
        federation = blobs([10, 6])
        for batch in cohort(federation, MODEL).batches(Local(steps=4, batch_size=5)):
            for client in range(2):
                mine = federation.examples.x[federation.train[client]]
                assert all((mine == example).all(1).any() for example in batch.x[client])

    def test_a_scheduled_client_uses_its_rows_of_the_round(self) -> None:
        federation = blobs([10, 6])
        rows = federation.train[0]
        schedule = {0: Schedule(marked=rows[:2], plain=rows[2:], every=3)}
        for round, used in ((0, rows[:2]), (1, rows[2:]), (3, rows[:2])):
            group = replace(cohort(federation, MODEL, round=round), schedules=schedule)
            assert group.round_shards[0].tolist() == used.tolist()
            assert group.round_shards[1].tolist() == federation.train[1].tolist()
            batch = next(group.batches(Local(steps=1, batch_size=20)))
            assert int((batch.weights[0] > 0).sum()) == len(used)


class TestLosses:
    def test_mean_loss_of_each_model_on_each_client(self) -> None:
        federation = blobs([10, 0, 6])
        models = stack(MODEL.init(seed) for seed in range(3))
        losses = cohort(federation, MODEL).losses(models)
        x, y, module = federation.examples.x, federation.examples.y, slow.module_of(MODEL.sizes)
        assert losses.shape == (3, 3)
        for client in (0, 2):
            rows = federation.train[client]
            for slot in range(3):
                expected = slow.mean_loss(module, pick(models, slot), x[rows], y[rows])
                assert float(losses[client, slot]) == pytest.approx(expected, rel=1e-5)
        assert losses[1].tolist() == [0, 0, 0]

    def test_a_sample_is_the_client_s_own_and_fresh_every_round(self) -> None:
        federation = blobs([40, 3])
        models = stack([MODEL.init(0)])
        one, same, other = (cohort(federation, MODEL, round=round).losses(models, 5) for round in (0, 0, 1))
        whole = cohort(federation, MODEL).losses(models)
        assert torch.equal(one, same)
        assert one[0] != other[0]
        assert torch.equal(one[1], whole[1])  # fewer than five: all of them

    def test_segment_means_by_hand(self) -> None:
        shards = Shards.of([torch.tensor([9, 8]), torch.tensor([]), torch.tensor([7])])
        values = torch.tensor([[1.0, 10.0], [3.0, 30.0], [5.0, 50.0]])
        assert segment_mean(values, shards).tolist() == [[2.0, 20.0], [0.0, 0.0], [5.0, 50.0]]
        assert segment_mean(values[:, 0], shards).tolist() == [2.0, 0.0, 5.0]


@dataclass(frozen=True)
class Recorder(ClientGuard):
    steps: list[Step] = field(default_factory=list)

    def gradient(self, grads: dict[str, Tensor], params: Params, step: Step) -> Params:
        self.steps.append(step)
        return grads


def test_a_gradient_guard_is_told_what_it_needs() -> None:
    group = cohort(blobs([10, 3]), MODEL)
    guard = Recorder()
    start = stack([MODEL.init(0)] * 2)
    group.train(start, Local(epochs=1, batch_size=4), guard, label="first")
    group.train(start, Local(epochs=1, batch_size=4), guard, label="second")
    assert [step.index for step in guard.steps] == [0, 1, 2] * 2
    assert [step.divisors.tolist() for step in guard.steps[:3]] == [[4, 3], [4, 1], [2, 1]]
    drawn = {step.turn.draws(7, "noise", step.index).key for step in guard.steps}
    secret = {step.turn.secrets(7, "noise", step.index).bytes(16) for step in guard.steps}
    assert len(drawn) == len(secret) == 6  # two trainings of one answer never meet the same noise


def test_dropout_of_a_guard() -> None:
    @dataclass(frozen=True)
    class Drop(ClientGuard):
        @property
        def dropout(self) -> float:
            return 0.5

    group = cohort(blobs([10, 3]), Dense((4, 40, 3)))
    start = stack([group.trained.init(0)] * 2)
    dropped = group.train(start, Local(), Drop())
    expected = replace(group, model=Dense((4, 40, 3), dropout=0.5)).train(start, Local(), ClientGuard())
    plain = group.train(start, Local(), ClientGuard())
    assert torch.equal(dropped["0.weight"], expected["0.weight"])
    assert not torch.equal(dropped["0.weight"], plain["0.weight"])


@pytest.mark.parametrize(
    "local",
    [
        Local(steps=3, batch_size=4, lr=0.2),
        Local(epochs=1, batch_size=3, lr=0.2, momentum=0.9, carry=True),
        Local(steps=2, lr=0.05, optimizer="adam"),
        Local(steps=3, whole=True, lr=0.2),
    ],
    ids=["steps", "momentum that stays", "adam", "whole"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_on_several_threads_are_the_clients_one_by_one(
    local: Local, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares a part, the rows, weights, schedules and memories of a client are its own."""
    federation = blobs([10, 3, 7, 0, 12, 5, 8])
    schedules = {2: Schedule(federation.train[2][:4], federation.train[2][4:], every=1)}
    model, choice = Dense((4, 16, 3)), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    models, weights = stack(map(model.init, range(3))), torch.rand(42, generator=torch.Generator().manual_seed(0))

    def trained(numbers: int) -> tuple[dict[str, Tensor], list[Memory]]:
        monkeypatch.setattr("coterie.flow.cohort.CACHED_NUMBERS", numbers)
        group = replace(cohort(federation, model), schedules=schedules)
        found = group.train(group.copies(models, choice), local, ClientGuard(), proximal=0.1, example_weights=weights)
        return found, group.memory

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (alone, kept), (shared, kept_too) = trained(1), trained(500)
        together, _ = trained(1 << 30)
    finally:
        torch.set_num_threads(before)
    for name, leaf in together.items():
        torch.testing.assert_close(alone[name], leaf, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(shared[name], leaf, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(leaf[3], models[name][0], rtol=0, atol=0)  # no data: it stands still
    for one, other in zip(kept, kept_too, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("guard", [ClientGuard(), DpSgd(0.5, 1.0).client], ids=["plain", "private"])
def test_threads_change_neither_noise_nor_ledger(guard: ClientGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two threads or in one: each client has its own keystream, and the ledger its own order."""
    monkeypatch.setattr("coterie.flow.cohort.CACHED_NUMBERS", 1)
    local, before = Local(steps=4, batch_size=4, lr=0.1, poisson=True), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            here = cohort(blobs((12,) * 8), MODEL)
            trained = here.train(stack([MODEL.init(0)] * 8), local, guard)
            found.append((trained, here.turn.ledger.rows))
    finally:
        torch.set_num_threads(before)
    (alone, spent), (one, paid), (other, again) = found
    assert encode(one) == encode(other)
    assert all(
        torch.allclose(leaf, one[name], atol=1e-5) for name, leaf in alone.items()
    )  # other shapes round otherwise
    assert spent == paid == again
    assert [client for client, _, _ in spent] == ([] if guard.plain else list(range(8)))


@pytest.mark.parametrize("local", [Local(steps=3, batch_size=4, lr=0.3), Local(epochs=2, batch_size=4, lr=0.3)])
def test_a_record_that_overflows_changes_what_its_own_client_trains_alone(local: Local) -> None:
    """What pads the batches of smaller clients is their own: 0 times infinity is NaN."""
    usual, model, guard = blobs((6, 5, 1, 6, 3, 1, 4, 5)), Dense((4, 6, 3)), ClippedLdp().client
    x = usual.examples.x.clone()
    x[0] = 3.4e38 * x[0].sign()
    start = {name: leaf.expand(8, *leaf.shape) for name, leaf in model.init(0).items()}
    changed = replace(usual, examples=replace(usual.examples, x=x))
    one, other = (cohort(federation, model).train(start, local, guard) for federation in (usual, changed))
    assert bool(other["0.weight"][0].isnan().any())
    for name, leaf in one.items():
        assert torch.equal(other[name][1:], leaf[1:]), name
