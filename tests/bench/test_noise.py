"""The benchmark of noise runs, on small sizes."""

from __future__ import annotations

import pytest

from coterie.bench.noise import draws, kmeans_sums, private_step, private_training
from coterie.bench.registry import Options
from coterie.bench.whole_fit import fit, fit_in_floats, whole_fits
from coterie.data.partition.gaussians import GaussianClients
from coterie.learn.clusters import lloyd, statistics
from coterie.privacy.guarantee import Level
from coterie.rng import Rng


def test_every_row_has_its_baseline() -> None:
    options = Options(repeats=1)
    rows = [
        draws(options, count=1000),
        *kmeans_sums(options, records=500, features=5, clients=3),
        *private_step(options, clients=2, batch_size=16),
        *private_training(options, clients=2, batch_size=16, steps=2),
        *whole_fits(options, {Level.RECORD: (4, 500), Level.CLIENT: (400, 5)}),
    ]
    assert len(rows) == 10
    assert all(row.baseline is not None and row.unit == "ms" and row.setup for row in rows)


@pytest.mark.parametrize("level", [Level.RECORD, Level.CLIENT])
def test_the_fit_in_floats_does_the_same_work(level: Level) -> None:
    """At no noise to speak of, both find the same centres; and the kernels are back in their place afterwards."""
    maker, rng = GaussianClients(400, 50, dimensions=30, variance=0.05), Rng.seeded(0)
    federation, server = maker.make(rng), maker.server(rng).whole().x
    ours, floats = (
        lloyd.squared_distances(x, centres, lloyd.nearest(x, centres)).mean()
        for x in [federation.examples.x]
        for centres in (run(federation, server, level, 0) for run in (fit, fit_in_floats))
    )
    assert float(ours) == pytest.approx(float(floats), rel=0.05)
    assert vars(statistics)["nearest"] is lloyd.nearest
