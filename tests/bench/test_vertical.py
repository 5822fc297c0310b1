"""The benchmark of vertical k-means runs, on a small size."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.bench.registry import Options
from coterie.bench.vertical import encrypted, joined, proven, steps
from coterie.bench.vertical_peers import beside_spu, beside_the_grid
from coterie.errors import InvalidInput


def test_every_row_has_its_baseline() -> None:
    rows = list(steps(Options(repeats=1), records=3000, columns=8, parties=4, clusters=3))
    assert len(rows) == 3
    assert all(row.baseline is not None and row.unit == "s of processor" and row.setup for row in rows)


def test_a_private_join_says_what_a_million_takes() -> None:
    row = joined(identifiers=20)
    assert row.baseline is not None
    assert "a million a party take" in row.setup


def test_sums_under_ckks_say_what_a_million_takes() -> None:
    row = encrypted(records=200, clusters=2)
    assert row.baseline is not None
    assert "bytes a record and step" in row.setup


def test_proofs_say_what_they_catch() -> None:
    row = proven(numbers=2, bits=2)
    assert row.baseline is not None
    assert "catch whoever lies in 1 % of them with a chance of 0.47" in row.setup


def test_peers_that_are_not_given_say_how_they_would_be() -> None:
    for row, needs in (
        (beside_spu(Options(repeats=1), 3, "ABY3", records=60, columns=6), "pip install spu"),
        (beside_the_grid(Options(repeats=1), records=120, sketches=16), "--vertcohirf the suite"),
    ):
        assert row.baseline is None
        assert needs in row.setup


def test_a_peer_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    python = Path(sys.executable)
    with pytest.raises(InvalidInput, match=r"--spu-python=.* failed .*pip install spu"):
        beside_spu(Options(repeats=1, spu_python=python), 3, "ABY3", records=60, columns=6)
    with pytest.raises(InvalidInput, match=r"--vertcohirf=.* must hold the suite's package"):
        beside_the_grid(Options(repeats=1, science_python=python, vertcohirf=tmp_path), records=120, sketches=16)
