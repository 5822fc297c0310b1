"""The benchmark compares like with like, and its bounds are the ones that were asked for."""

from __future__ import annotations

from coterie.bench.property import SHAPES, Shape, attack_cost, per_example
from coterie.bench.registry import Options
from coterie.learn.models.bundled import FaceCnn, fcnn

ONCE = Options(repeats=1)


def test_every_shape_gives_a_bounded_and_an_unbounded_row() -> None:
    small = {
        "dense": Shape(fcnn(2, 20, 8), 3, (20,), times_plain=3.0),
        "cnn": Shape(FaceCnn(2, (3, 8, 8)), 1, (3, 8, 8), times_plain=1.5),
    }
    rows = {row.name: row for row in per_example(ONCE, small)}
    assert len(rows) == 4
    assert rows["clipped gradients: dense"].bound == 1 / 3
    assert rows["clipped gradients: cnn"].bound == 1 / 1.5
    assert rows["clipped and noised: cnn"].bound is None
    assert all(row.ratio is not None for row in rows.values())


def test_the_bounds_are_on_the_papers_models() -> None:
    assert SHAPES["three convolutions, 48x48"].times_plain == 1.5
    assert SHAPES["dense 784-200-10, 20 clients"].times_plain == 3.0


def test_the_attack_is_compared_with_a_round_of_ten_clients() -> None:
    rows = list(attack_cost(ONCE, size=8))
    assert [row.name for row in rows] == [
        "property inference a round: FL",
        "property inference a round: CFL of 2 clusters",
    ]
    for row in rows:
        assert row.bound == 1 / 3
        assert "10 clients" in row.setup
