"""The benchmark runs, compares like with like."""

from __future__ import annotations

import pytest

from coterie.bench.ciphers import FCNN, PUBLISHED, bench_ciphers
from coterie.errors import InvalidInput
from coterie.rng import Rng


def test_a_small_run_gives_every_figure() -> None:
    rows = {row.name: row for row in bench_ciphers(Rng.seeded(0), parameters=30_000, clients=12, clusters=4, repeats=1)}
    assert all(row.ours > 0 for row in rows.values())
    for name in ("encryption of one model", "aggregation of 12 models", "decryption of one sum"):
        ratio = rows[name].ratio
        assert ratio is not None
        assert ratio > 1  # even this small, and on a busy machine
    upload = rows["upload a parameter"]
    assert upload.met
    assert upload.ours < 8.1 * 32_768 / 30_000  # four ciphertexts for 30 000 values
    assert upload.baseline is not None
    assert upload.baseline > 70


def test_too_small_a_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="clients, parameters"):
        bench_ciphers(Rng.seeded(0), clients=2)


def test_the_papers_network_has_the_size_of_its_layers() -> None:
    assert FCNN == 159_010
    assert len(PUBLISHED) == 6
