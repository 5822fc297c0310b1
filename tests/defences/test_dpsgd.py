"""DP-SGD adds the noise it claims, no more and no less, and claims what its events compose to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from coterie.data.federation import Examples, Federation, Schedule, Shards
from coterie.defences.dpsgd import DpSgd, block_width, grid_of
from coterie.defences.regularise import L2, Dropout
from coterie.errors import InvalidInput
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.exact_gradients import gradient_step
from coterie.learn.models.bundled import Cnn, Gru
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch, Model, OwnModule
from coterie.learn.params import Layout, Params, flatten, stack
from coterie.learn.sgd import Local
from coterie.privacy.accounting import dpsgd_events, epsilon_of
from coterie.privacy.grid import NoiseGrid
from coterie.protocols.base import Trainer
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.fedem import FedEM
from coterie.protocols.ifca import Ifca
from coterie.protocols.sattler import Sattler

POISSON = Local(steps=2, batch_size=8, lr=0.1, poisson=True)


def federation(sizes: tuple[int, ...] = (20, 30, 40), shape: tuple[int, ...] = (6,)) -> Federation:
    generator = torch.Generator().manual_seed(0)
    total = sum(sizes)
    x = torch.randn(total, *shape, generator=generator)
    examples = Examples(x, (x.flatten(1)[:, 0] > 0).long(), 2, "drawn")
    rows = Shards.of(list(torch.arange(total).split(list(sizes))))
    return Federation(examples, rows, rows, torch.full((len(sizes),), -1))


def trained(
    defence: Defence,
    protocol: Trainer[Any],
    data: Federation | None = None,
    model: Model | None = None,
) -> Tensor:
    data = data or federation()
    model = model or Dense((6, 5, 2))
    ring = Ring(protocol, data, model, defence, Roots.seeded(1), processes=0)
    return flatten(protocol.result(ring.run()).values)


@pytest.mark.parametrize("neutral", [DpSgd(math.inf, 0.0), Dropout(0.0), L2(0.0)])
@pytest.mark.parametrize("local", [POISSON, Local(steps=2, batch_size=8)])
def test_a_neutral_setting_changes_no_bit(neutral: Defence, local: Local) -> None:
    protocol = Ifca(rounds=2, local=local, clusters=2, candidates=0)
    assert torch.equal(trained(neutral, protocol), trained(Defence(), protocol))


def test_a_neutral_setting_changes_no_bit_of_a_convolution() -> None:
    data, model = federation(shape=(1, 28, 28)), Cnn(2)
    protocol = FedAvg(rounds=1, local=POISSON)
    plain = trained(Defence(), protocol, data, model)
    for neutral in (DpSgd(math.inf, 0.0), Dropout(0.0), L2(0.0)):
        assert torch.equal(trained(neutral, protocol, data, model), plain)
    for active in (DpSgd(0.1, 0.0), Dropout(0.5), L2(0.1)):
        assert not torch.equal(trained(active, protocol, data, model), plain)


def test_noise_has_the_stated_deviation_and_differs_by_client_and_step() -> None:
    guard = DpSgd(clip=0.5, noise_multiplier=3.0).client
    model, nobody = Dense((199, 100)), torch.zeros(2, 16, dtype=torch.int64)
    params = stack([model.init(0)] * 2)
    empty = Batch(torch.zeros(2, 16, 199), nobody, torch.zeros(2, 16), torch.ones(2), torch.ones(2, dtype=torch.bool))
    step = Step(
        torch.tensor([4, 7]),
        0,
        torch.tensor([10.0, 30.0]),
        torch.tensor([0.1, 0.3]),
        torch.tensor([True, True]),
        True,
        Turn(3, Roots.seeded(0)),
    )
    noise = flatten(guard.gradients(model, params, empty, step))  # (clients, 20000)
    grid = grid_of(3.0, *model.units(16, 20_000))
    whole = gradient_step(0.5, grid.units, [(199, 100)]) * grid.noise.sigma  # more, by what rounding may add to a norm
    assert 1 <= whole / (0.5 * 3) < 1.03
    for row, deviation in zip(noise, (whole / 10, whole / 30), strict=True):
        # False alarm with probability 1e-6 on each side.
        low, high = chi2.ppf([1e-6, 1 - 1e-6], row.numel())
        assert low < float((row / deviation).double().square().sum()) < high
        assert abs(float(row.double().mean())) < 5 * deviation / math.sqrt(row.numel())
    again = flatten(guard.gradients(model, params, empty, step))
    later = flatten(guard.gradients(model, params, empty, replace(step, index=1)))
    assert torch.equal(noise, again)
    assert abs(float(torch.corrcoef(torch.stack([noise[0], noise[1], later[0]])).triu(1).abs().max())) < 0.05


def test_an_empty_poisson_batch_is_noised_like_any_other() -> None:
    """Its absence would tell that nobody was drawn."""
    rare = Local(steps=1, batch_size=1, lr=0.1, poisson=True)
    quiet = trained(DpSgd(1.0, 0.0), FedAvg(rounds=1, local=rare), federation((2000,)))
    noisy = trained(DpSgd(1.0, 1.0), FedAvg(rounds=1, local=rare), federation((2000,)))
    spread = (noisy - quiet).std() / 0.1  # lr
    assert 0.5 < float(spread) < 2  # clip * sigma / expected batch size = 1


def test_one_example_moves_a_step_by_at_most_the_clip() -> None:
    local = Local(steps=1, batch_size=10, lr=1.0, poisson=True)
    with_it = federation((10,))  # rate 1: every record is in every batch
    x = with_it.examples.x.clone()
    x[3] = 1e3
    changed = Federation(Examples(x, with_it.examples.y, 2, "drawn"), with_it.train, with_it.test, with_it.groups)
    moved = trained(DpSgd(0.25, 0), FedAvg(1, local), with_it) - trained(DpSgd(0.25, 0), FedAvg(1, local), changed)
    assert 0 < float(moved.norm()) <= 2 * 0.25 / 10 + 1e-6  # one clipped example goes and another comes


class Odd(nn.Module):
    """With a weight that no layer owns, so that its gradients are taken one example at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(12, 3), nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)  # type: ignore[no-any-return]


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1099, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Model, tuple[int, ...], int | None]] = {
    "dense": (Dense((12, 9, 3)), (12,), None),
    "convolutions": (Cnn(3, (1, 16, 16)), (1, 16, 16), None),
    "recurrent": (Gru(3, vocabulary=30, embedding=5, hidden=7), (6,), 30),
    "a user's own": (OwnModule(Odd), (12,), None),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("blocks", [1, 2])
def test_an_example_moves_the_exact_sum_by_its_own_gradient(name: str, blocks: int) -> None:
    """In whole steps: removed, in another place, or in another block, the others' gradients keep every bit."""
    (model, shape, tokens), width, draws = MODELS[name], 16, torch.Generator().manual_seed(3)
    count = blocks * width
    x = torch.randn(1, count, *shape, generator=draws) * torch.logspace(-2, 3, count).view(1, -1, *[1] * len(shape))
    x = x if tokens is None else torch.randint(tokens, (1, count, *shape), generator=draws)
    y = torch.randint(0, 3, (1, count), generator=draws)
    params = stack([model.init(5)])
    units = NoiseGrid.planned(1.0, *reversed(model.units(width, Layout.of(params, leading=1).length))).units

    def total(kept: Tensor) -> Tensor:
        """Those that are kept stand together at the front."""
        rows = kept.nonzero().flatten()
        there = torch.zeros(1, count)
        there[0, : len(rows)] = 0.5
        own, labels = torch.zeros_like(x), torch.zeros_like(y)
        own[0, : len(rows)], labels[0, : len(rows)] = x[0, rows], y[0, rows]
        batch = Batch(own, labels, there, torch.full((1,), 2.0), torch.ones(1, dtype=torch.bool))
        sums = model.whole_gradients(params, batch, 0.5, units, width)
        return torch.from_numpy(next(sums.totals)).double()

    everybody = torch.ones(count, dtype=torch.bool)
    for gone in (0, 5, count - 1):
        kept, alone = everybody.clone(), ~everybody
        kept[gone], alone[gone] = False, True
        moved = total(everybody) - total(kept)
        assert torch.equal(moved, total(alone))
        assert float(moved.square().sum()) <= units**2  # whole numbers below 2^53: exact


def test_blocks_are_of_one_width() -> None:
    """Rows of a narrower last block are rounded otherwise: one that leaves made others move into a wide one."""
    assert [block_width(width) for width in (0, 16, 4096, 4104, 8200)] == [1, 16, 4096, 2052, 2734]
    model, params = Dense((64, 16, 10)), stack([Dense((64, 16, 10)).init(2)])
    widths: list[int] = []

    def batch(width: int) -> Batch:
        x = torch.randn(1, width, 64, generator=torch.Generator().manual_seed(5))
        ones = torch.ones(1, width)
        return Batch(x, torch.zeros(1, width, dtype=torch.int64), ones, ones[:, 0], ones[:, 0].bool())

    class Watched(Dense):
        def _passed(self, params: Params, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
            widths.append(batch.x.shape[1])
            return super()._passed(params, batch)

    watched = Watched((64, 16, 10))
    in_blocks = watched._stands_alone(params, 32)  # some machines round small products otherwise: there, row by row
    widths.clear()
    (found,) = watched.whole_gradients(params, batch(72), 1.0, 10_000, 32).totals
    assert widths == ([32, 32, 32] if in_blocks else [1] * 72)
    (again,) = model.whole_gradients(params, batch(96), 1.0, 10_000, 32).totals
    (last,) = model.whole_gradients(params, replace(batch(96), weights=_behind(72, 96)), 1.0, 10_000, 32).totals
    assert np.array_equal(found, again - last)


def _behind(start: int, width: int) -> Tensor:
    return (torch.arange(width) >= start).float().unsqueeze(0)


def test_models_of_a_million_parameters_are_put_on_the_grid_in_double_precision() -> None:
    """In single precision that would be refused: it could not keep the bound."""
    model, length = OwnModule(Large), 1_100_000
    params, x = stack([model.init(0)]), torch.randn(1, 16, 1099, generator=torch.Generator().manual_seed(1))
    ones = torch.ones(1, 16)
    batch = Batch(x, torch.zeros(1, 16, dtype=torch.int64), ones, ones[:, 0], ones[:, 0].bool())
    units = NoiseGrid.planned(1.0, *reversed(model.units(16, length))).units
    sums = model.whole_gradients(params, batch, 0.5, units, 16)
    (total,) = sums.totals
    clipped = flatten(model.gradients(params, batch, 0.5))[0]
    assert float((torch.from_numpy(total) * sums.worth - clipped).norm() / clipped.norm()) < 0.02


@pytest.mark.parametrize("name", MODELS)
def test_the_exact_sum_is_the_clipped_gradient(name: str) -> None:
    (model, shape, tokens), draws = MODELS[name], torch.Generator().manual_seed(4)
    x = torch.rand(2, 16, *shape, generator=draws)
    x = x if tokens is None else torch.randint(tokens, (2, 16, *shape), generator=draws)
    y = torch.randint(0, 3, (2, 16), generator=draws)
    there, active = torch.full((2, 16), 1 / 12), torch.ones(2, dtype=torch.bool)
    there[:, 12:] = 0
    batch, params = Batch(x, y, there, torch.full((2,), 12.0), active), stack([model.init(1), model.init(2)])
    clipped = flatten(model.gradients(params, batch, 0.3))
    sums = model.whole_gradients(params, batch, 0.3, min(1 << 16, model.units(16, clipped.shape[1])[1]), 16)
    whole = torch.stack([torch.from_numpy(total) * sums.worth for total in sums.totals])
    assert float((whole / 12 - clipped).norm() / clipped.norm()) < 0.02


def test_dropout_masks_hang_on_a_secret_of_256_bits() -> None:
    """Two seeds that agree in their first 32 bits, which is all that torch would keep, give different masks."""
    x, y, active = torch.rand(1, 4, 12), torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    module = OwnModule(lambda: nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5), nn.Linear(64, 3)))
    for model in (Dense((12, 64, 3), dropout=0.5), module):
        params = stack([model.init(0)])
        batches = [
            Batch(x, y, torch.ones(1, 4), torch.ones(1), active, (seed,))
            for seed in (7, 7, 7 + (1 << 33), 7 + (1 << 255))
        ]
        first, again, *others = (flatten(model.gradients(params, batch)) for batch in batches)
        assert torch.equal(first, again)
        assert not any(torch.equal(first, other) for other in others)


def test_l2_is_weight_decay_by_hand() -> None:
    start = trained(L2(0.5), FedAvg(rounds=0))
    local = Local(steps=1, batch_size=90, lr=0.1)
    data = federation((90,))
    plain, decayed = (trained(defence, FedAvg(1, local), data) for defence in (Defence(), L2(0.5)))
    torch.testing.assert_close(decayed, plain - 0.1 * 0.5 * start)


# -- what is claimed --------------------------------------------------------------------------------------------------


def test_the_guarantee_is_what_the_events_compose_to() -> None:
    run = FedAvg(rounds=10, local=POISSON).facts(federation(), delta=1e-5)
    found = DpSgd(1.0, 1.5).guarantee(run)
    assert found.proven
    # The smallest client (20 records) is sampled at the highest rate: 8 of 20, 2 steps in each of 10 rounds.
    # The grid's noise is larger by a part of 2^-14 at most, and the draws' distance takes a billionth of delta.
    assert found.epsilon == pytest.approx(epsilon_of(dpsgd_events(8 / 20, 1.5, 20), 1e-5), rel=1e-4)
    assert "record" in str(found)
    assert "local noise" in str(found)


def test_more_noise_costs_less_and_no_noise_is_no_claim() -> None:
    run = FedAvg(rounds=5, local=POISSON).facts(federation())
    costs = [DpSgd(1.0, sigma).guarantee(run).epsilon for sigma in (0.5, 1.0, 2.0)]
    assert costs == sorted(costs, reverse=True)
    for none in (DpSgd(1.0, 0.0), DpSgd(math.inf, 0.0)):
        assert not none.guarantee(run).proven


def test_shuffled_batches_and_raw_choices_are_no_claim() -> None:
    shuffled = FedAvg(rounds=5, local=Local(steps=2, batch_size=8)).facts(federation())
    assert "poisson=True" in DpSgd().guarantee(shuffled).why_not
    chosen = DpSgd(1.0, 1.0).guarantee(Ifca(rounds=5, local=POISSON).facts(federation()))
    assert not chosen.proven
    assert "fits its raw data best" in chosen.why_not
    assert chosen.epsilon == DpSgd(1.0, 1.0).guarantee(FedAvg(rounds=5, local=POISSON).facts(federation())).epsilon


def test_a_scheduled_record_pays_for_the_rounds_of_its_own_pool() -> None:
    data = federation((20, 40))
    plain = torch.arange(20, 50)
    data = Federation(
        data.examples, data.train, data.test, data.groups, schedules={1: Schedule(torch.arange(50, 60), plain, every=5)}
    )
    run = FedAvg(rounds=10, local=POISSON).facts(data)
    pools = {(pool.size, pool.trainings) for exposure in run.exposures for pool in exposure}
    assert pools == {(20, 10), (10, 2), (30, 8)}  # marked in rounds 0 and 5
    overlapping = Federation(
        data.examples, data.train, data.test, data.groups, schedules={1: Schedule(plain, plain, every=5)}
    )
    run = FedAvg(rounds=10, local=POISSON).facts(overlapping)
    assert [(30, 2), (30, 8)] in [[(pool.size, pool.trainings) for pool in exposure] for exposure in run.exposures]
    unmarked = Federation(
        data.examples, data.train, data.test, data.groups, schedules={1: Schedule(plain[:0], plain, every=5)}
    )
    run = FedAvg(rounds=10, local=POISSON).facts(unmarked)
    assert DpSgd(1.0, 1.0).guarantee(run).proven  # of no records, none is sampled: its rate was a division by zero


def test_every_training_in_a_round_is_paid_for() -> None:
    def trainings(protocol: Trainer[Any]) -> int:
        return max(pool.trainings for exposure in protocol.facts(federation()).exposures for pool in exposure)

    assert trainings(FedAvg(rounds=7)) == 7
    assert trainings(FedEM(rounds=7, components=3)) == 21
    assert trainings(Sattler(rounds=7, most=4)) == 7 + 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DpSgd(clip=0), "clip=0 must be positive"),
        (lambda: DpSgd(noise_multiplier=-1), "noise_multiplier=-1 must not be negative"),
        (lambda: DpSgd(math.inf, 1.0), "clip=inf must be finite"),
        (lambda: Dropout(1.0), "rate=1.0"),
        (lambda: L2(-0.1), "penalty=-0.1"),
    ],
)
def test_bad_settings_name_themselves(make: type, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()
