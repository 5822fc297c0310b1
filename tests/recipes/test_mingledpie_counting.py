"""A server that counts: jobs that run, and claims that can fail."""

from __future__ import annotations

import pytest

from coterie.measure.reproduced import Decision, Rows
from coterie.recipes.mingledpie.claims import counting_claims
from coterie.recipes.mingledpie.runs.counting import counted, uneven
from coterie.recipes.mingledpie.tables.attacks import counting
from coterie.recipes.settings import Settings


def test_counting_jobs_run() -> None:
    for method, blind in (("default", 0.2), ("sets, p=0.5, T=2", 0.3818)):
        found = counted(method, 12, 0.5, 3, seed=0)
        assert 0 < found["alone"] <= found["units"] <= 12
        assert found["expected"]["alone"] == pytest.approx(blind, abs=1e-4)
    assert found["expected"]["alone, sizes known"] > 0.4  # of so few, sizes tell much


def test_sets_alone_give_more_where_clusters_are_uneven() -> None:
    found = uneven(240, seed=0)
    assert found["alone"] > 0.5 * found["units"] > found["expected"]["alone"] * found["units"]


def test_what_counting_gets_is_claimed_of_rows_that_are_there() -> None:
    assert not counting_claims(Rows.of([]))
    for value, expected in ((20.0, Decision.HOLDS), (60.0, Decision.FAILS)):
        entry = next(one for one in counting(Settings()) if one.key["who"] == "alone" and one.key["N"] == 20)
        result = {"alone": value / 100 * 200, "units": 200, "expected": {"alone": 0.2}}
        assert [claim.decision for claim in counting_claims(Rows.of([entry.row({0: result})]))] == [expected]
