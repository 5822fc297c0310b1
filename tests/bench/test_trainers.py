"""Both sides of the trainers' benchmarks do the same work. No timings."""

from __future__ import annotations

import torch

from coterie.bench.registry import Options
from coterie.bench.ring import Rounds
from coterie.bench.trainers import OPTIMISERS, WholeCase, ifca_whole, optimisers
from coterie.learn.models.bundled import fcnn
from coterie.learn.params import pick
from coterie.protocols.ifca import Ifca
from coterie.rng import Rng

SMALL = WholeCase(clients=6, samples=9)


def test_a_row_an_optimiser() -> None:
    rows = list(optimisers(Options(repeats=1), clients=2, steps=1))
    assert len(rows) == len(OPTIMISERS)
    assert all(row.bound is not None and row.baseline is not None for row in rows)


def test_the_loop_and_ours_are_the_same_round() -> None:
    rng = Rng.seeded(0)
    loop = SMALL.plain(rng)
    protocol = Ifca(rounds=1, local=SMALL.local, weighting="equal", clusters=4, candidates=0)
    ours = Rounds(protocol, SMALL.federation(rng), fcnn(), rng)
    for slot, module in enumerate(loop.models):
        with torch.no_grad():
            for leaf, mine in zip(module.parameters(), pick(ours.state.published.values, slot).values(), strict=True):
                leaf.copy_(mine)
    theirs, state = loop(), ours()
    chosen = [slot for slot, size in enumerate(state.published.sizes.tolist()) if size]
    assert chosen
    for slot in chosen:
        for due, mine in zip(theirs[slot].values(), pick(state.published.values, slot).values(), strict=True):
            torch.testing.assert_close(mine, due, rtol=1e-3, atol=1e-5)


def test_a_round_is_timed() -> None:
    (row,) = ifca_whole(Options(repeats=1), SMALL)
    assert row.bound == 2.0
