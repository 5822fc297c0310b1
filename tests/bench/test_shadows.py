"""Both sides of the benchmark train the same federations, and its bounds are the ones that were asked for."""

from __future__ import annotations

import os

from coterie.bench.registry import Options
from coterie.bench.shadows import example, shadows, train_shadows


def test_rows_and_bounds() -> None:
    asked = example()
    few = {**asked.model_dump(), "data": {**asked.data.model_dump(), "count": 200}}
    few["trainer"] = {**asked.trainers[0].model_dump(), "rounds": 1}
    small = type(asked).model_validate(few)
    apart, whole = shadows(Options(repeats=1), 2, small)
    assert (apart.bound, apart.bound_on_ratio) == (5.0, True)
    assert (whole.bound, whole.bound_on_ratio) == (120.0, False)
    assert apart.baseline is not None
    assert apart.limit is not None
    assert f"{len(os.sched_getaffinity(0))} processes" in apart.name
    assert len(train_shadows(small.model_dump(mode="json"), [0, 1])["parameters"]) == 2
