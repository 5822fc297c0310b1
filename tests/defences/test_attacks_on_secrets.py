"""Attacks on noise that is drawn twice under one key: a run resumed twice, a process that forked, a copied key.

Two releases of neighbouring data under the same noise differ by exactly what the neighbour holds. Each attack is first
run where it must succeed, on secrets that are reproducible and so bind nothing.
"""

from __future__ import annotations

import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.defences.test_attacks_on_numerics import NOBODY, NOISE, RECORD, every_place, mechanism
from tests.ring import blobs

from coterie.data.federation import Federation
from coterie.data.provenance import Public
from coterie.defences.dpsgd import DpSgd
from coterie.defences.randomised_response.mechanisms import generalised
from coterie.errors import InvalidInput
from coterie.estimators import FedDPKMeans
from coterie.learn.clusters.sketches import common, phantom_levels
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.params import flatten, stack
from coterie.learn.sgd import Local
from coterie.learn.whole_products import SummedOuterProducts
from coterie.privacy.grid import NoiseGrid
from coterie.privacy.ledger import Ledger
from coterie.privacy.lookup import Draws
from coterie.protocols.fedavg import FedAvg
from coterie.rng import KEY_BYTES, Keystream, Secrets
from coterie.run.folder import CHECKPOINT, RunFolder
from coterie.run.training import train

KEY = bytes(range(KEY_BYTES))


def secret() -> Secrets:
    """The same root each time, as one who copied a key, forked or went on from a checkpoint has it."""
    return Secrets(KEY, reproducible=False)


def left_over(first: NDArray[np.float64], second: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """How much the two releases differ beyond what the data explains, in deviations of noise: 0 where it cancels."""
    return float(np.sqrt(np.mean((first - second - expected) ** 2)) / NOISE)


@every_place
def test_two_releases_under_one_key_have_noise_of_their_own(name: str) -> None:
    made = mechanism(name)
    known = Secrets(KEY, reproducible=True)
    apart = made.release(RECORD, known) - made.release(NOBODY, known)  # what the record is, noise-free
    assert 0 < np.abs(apart).max() < 1.1
    with_it, without = made.release(RECORD, secret()), made.release(NOBODY, secret())
    assert left_over(with_it, without, apart) > 0.7  # sqrt(2) on average; 24 entries or more: once in 1e5 keys
    assert np.array_equal(with_it, made.release(RECORD, secret()))  # made again as it was, it is the same release


def test_answers_at_random_under_one_key_are_drawn_anew() -> None:
    channel, levels = generalised(1.0, 4), np.tile(np.arange(4), 500)
    other = levels.copy()
    other[0] = 1
    known = Secrets(KEY, reproducible=True)
    assert np.array_equal(channel.draw(levels, known)[1:], channel.draw(other, known)[1:])
    first, second = channel.draw(levels, secret()), channel.draw(other, secret())
    assert 0.4 < np.mean(first[1:] != second[1:]) < 0.9
    assert np.array_equal(first, channel.draw(levels, secret()))


def test_two_channels_under_one_key_rule_nothing_out_together() -> None:
    """With the same bits, input 0 got answer 1 of the truer channel only where it got 1 of the other one, too."""
    levels = np.zeros(4000, dtype=np.int64)
    true, truer = (generalised(epsilon, 2) for epsilon in (0.5, 1.0))
    assert not np.any((true.draw(levels, Secrets(KEY, True)) == 0) & (truer.draw(levels, Secrets(KEY, True)) == 1))
    both = (true.draw(levels, secret()) == 0) & (truer.draw(levels, secret()) == 1)
    assert np.mean(both) == pytest.approx(0.622 * 0.269, abs=0.03)  # five deviations


def test_levels_and_phantoms_under_one_key_are_drawn_anew() -> None:
    """They hang on the centres, which are noisy: of other data they are others."""
    centres = np.full((2, 3, 2), 0.5, dtype=np.float32)
    other = centres.copy()
    other[0, 0, 0] = np.nextafter(np.float32(0.5), np.float32(1))

    def levels(told: NDArray[np.float32], under: Secrets) -> NDArray[np.int16]:
        return phantom_levels(2, 3, 200, 20, common(under, told))

    known = Secrets(KEY, reproducible=True)
    assert np.array_equal(levels(centres, known), levels(other, known))
    assert np.mean(levels(centres, secret()) != levels(other, secret())) > 0.9
    assert np.array_equal(levels(centres, secret()), levels(centres, secret()))


def test_numbers_are_told_apart_by_every_bit_shape_and_type() -> None:
    def of(*numbers: NDArray[np.generic]) -> bytes:
        return secret().upon(*numbers).bytes(32)

    row = np.zeros(40_000, dtype=np.int64)
    last, first = row.copy(), row.copy()
    last[-1], first[0] = 1, 1
    several = [of(row), of(last), of(first), of(row[:-1]), of(row.reshape(2, -1)), of(row.astype(np.int32))]
    several += [of(row, row), of(row[:1], row[1:]), of(), of(row[:0]), secret().bytes(32)]
    assert len(set(several)) == len(several)
    assert of(row[::2]) == of(np.ascontiguousarray(row[::2]))
    assert Secrets(KEY, reproducible=True).upon(last).bytes(8) == Secrets(KEY, reproducible=True).bytes(8)


def test_a_fork_does_not_release_two_sums_under_one_noise() -> None:
    """Parent and child go on with the same key and the same request; the child's data has one record more."""
    grid, root = NoiseGrid.over(1 << 20, 4.0), Secrets.from_entropy()
    total = np.arange(50) << 20
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, grid.noised(total + (1 << 20), root).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(reading, 8 * len(total)), dtype=np.int64)
    os.close(reading)
    os.close(writing)
    apart = (theirs - grid.noised(total, root)) / grid.noise.sigma
    assert np.std(apart) > 0.7  # sqrt(2) expected, 0 if both had the same noise: once in 1e9 keys


def test_how_much_is_read_and_made_says_nothing_of_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw in a hundred is made in another way, all of those in the tails among them: time must not tell which."""
    read: list[int] = []
    fill = Keystream.fill

    def counted(self: Keystream, buffer: NDArray[np.uint8], count: int) -> None:
        read.append(count)
        fill(self, buffer, count)

    monkeypatch.setattr(Keystream, "fill", counted)
    amounts, values = set(), []
    for key in range(600):
        read.clear()
        out = np.zeros(3, dtype=np.int32)
        Draws.of([Secrets.seeded(key)], 3)[0].add_to(out)
        amounts.add(tuple(read))
        values.append(out)
    assert len(amounts) == 1
    assert np.abs(values).max() > 3.2 * (1 << 14)  # with some of the tails among them: 1800 draws


def test_how_much_is_computed_says_nothing_of_how_many_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that times a deployed client would else read off how many records entered each batch."""
    model, params = Dense((20, 16, 3)), stack([Dense((20, 16, 3)).init(0)])
    x, y, active = torch.rand(1, 24, 20), torch.zeros(1, 24, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    shapes: list[tuple[int, ...]] = []
    multiplied = SummedOuterProducts.__init__

    def counted(self: SummedOuterProducts, left: NDArray[Any], right: NDArray[Any], units: int) -> None:
        shapes.extend((left.shape, right.shape))
        multiplied(self, left, right, units)

    monkeypatch.setattr(SummedOuterProducts, "__init__", counted)
    found = set()
    for drawn in (0, 1, 13, 24):
        shapes.clear()
        there = torch.zeros(1, 24)
        there[:, :drawn] = 1 / 12
        model.whole_gradients(params, Batch(x, y, there, torch.full((1,), 12.0), active), 1.0, 1 << 14, 24)
        found.add(tuple(shapes))
    assert len(found) == 1


def test_one_sum_on_two_grids_is_not_the_solution_of_two_equations() -> None:
    """4 T + N and 2 T + N, of one key and one sum under two noise multipliers: if N is the same, T follows."""
    total, grids = np.arange(-300, 300), [NoiseGrid.planned(z, 1 << 14, 1 << 12) for z in (0.25, 0.5)]
    assert grids[0].units == grids[1].units
    fine, coarse = (grid.multiple for grid in grids)
    assert fine == 2 * coarse

    def solved(root: Secrets) -> NDArray[np.float64]:
        out = [grid.release([total.copy()], [[total]], [1.0], [root], 300, len(total))[0] for grid in grids]
        found: NDArray[np.float64] = (fine * out[0].astype(np.float64) - coarse * out[1]) / (fine - coarse)
        return found

    assert np.allclose(solved(Secrets(KEY, reproducible=True)), total, atol=0.1)
    assert np.std(solved(secret()) - total) > 0.3 * grids[0].noise.sigma  # sigma / sqrt(2) expected: once in 1e30 keys


def test_threads_that_release_at_once_have_their_own_noise() -> None:
    """What two threads release at the same time is what each releases alone: no stream or memory is shared."""
    grid, totals = NoiseGrid.planned(1.0, 1 << 14, 1 << 12), np.arange(6 * 30_000, dtype=np.int32).reshape(6, -1)

    def released(thread: int) -> NDArray[np.float32]:
        nodes = [Secrets(KEY, reproducible=False).child(thread, row) for row in range(len(totals))]
        origins = [[row] for row in totals]
        return grid.release(totals.copy(), origins, [1.0] * len(totals), nodes, 1 << 18, totals.shape[1])

    alone = [released(thread) for thread in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(released, range(8)))
    assert all(np.array_equal(*pair) for pair in zip(alone, together, strict=True))
    assert len({part.tobytes() for part in alone}) == 8


LOCAL = Local(steps=1, batch_size=12, lr=1.0, poisson=True)  # rate 1: the only chance is the noise's


def changed() -> tuple[Federation, Federation]:
    before = blobs((12, 12))
    x = before.examples.x.clone()
    x[3] = -5 * x[3]
    return before, replace(before, examples=replace(before.examples, x=x))


def run(federation: Federation, folder: Path, ledger: Ledger | None = None, rounds: int = 1) -> torch.Tensor:
    protocol = FedAvg(rounds=rounds, local=LOCAL)
    found = train(
        protocol, federation, Dense((4, 3)), folder=RunFolder(folder), defence=DpSgd(1.0, 4.0), secret=True,
        evaluate_every=1, ledger=ledger,
    )  # fmt: skip
    return flatten(found.models)


def test_a_run_resumed_twice_with_other_data_is_two_releases(tmp_path: Path) -> None:
    """The same checkpoint and secrets, and one record that has changed in between."""
    before, after = changed()
    once, again = tmp_path / "once", tmp_path / "again"
    RunFolder.create(once, {"config": {}})
    RunFolder(once).secrets()
    shutil.copytree(once, again)
    first, second = run(before, once), run(after, again)
    noise = 4.0 / 12 / 2**0.5  # a client's, in the mean of two; in the difference of two releases 1.4 times that
    assert float((first - second).std()) > 0.4 * noise  # false alarm 2e-6; the record moves it by 2 / 12 / 2 in all


def test_a_run_resumed_with_other_data_pays_again(tmp_path: Path) -> None:
    before, after = changed()
    folder, spent = tmp_path / "run", []
    ledger = Ledger(limit=100.0)
    RunFolder.create(folder, {"config": {}})
    for federation in (before, before, after):
        (folder / CHECKPOINT).unlink(missing_ok=True)
        run(federation, folder, ledger)
        spent.append(ledger.epsilon(1e-6))
    assert spent[0] == spent[1] < spent[2]


def test_a_checkpoint_of_other_data_is_not_gone_on_from(tmp_path: Path) -> None:
    before, after = changed()
    RunFolder.create(tmp_path / "run", {"config": {}})
    run(before, tmp_path / "run")
    with pytest.raises(InvalidInput, match="data"):
        run(after, tmp_path / "run", rounds=2)


def test_a_fitted_estimator_takes_no_key_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is handed a pickle of it, or a copy, could subtract the noise."""
    keys, entropy = [], os.urandom

    def noted(count: int) -> bytes:
        keys.append(entropy(count))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", noted)
    x = np.random.default_rng(0).normal(size=(300, 2))
    model = FedDPKMeans(n_clusters=2, epsilon=5.0, bound=3.0)
    model.fit(x, groups=np.arange(300) % 10, server_data=Public(x[:20] + 0.1))
    kept = pickle.dumps(model)
    assert any(len(key) == KEY_BYTES for key in keys)
    assert not any(key in kept for key in keys)
