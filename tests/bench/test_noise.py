"""The benchmark of noise runs, on small sizes."""

from __future__ import annotations

from coterie.bench.noise import draws, kmeans_sums, private_step
from coterie.bench.registry import Options


def test_every_row_has_its_baseline() -> None:
    options = Options(repeats=1)
    rows = [
        draws(options, count=1000),
        *kmeans_sums(options, records=500, features=5, clients=3),
        *private_step(options, clients=2, batch_size=16),
    ]
    assert len(rows) == 7
    assert all(row.baseline is not None and row.unit == "ms" and row.setup for row in rows)
