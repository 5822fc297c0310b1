"""Tables IV and IX, and what each variant costs: seconds and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.reproduced import Key
from coterie.recipes.mingledpie.published import TABLE_4, TABLE_9
from coterie.recipes.mingledpie.runs.costs import OURS, THEIRS, VARIANTS, encrypted, mingled, variant
from coterie.recipes.mingledpie.tables.entries import Entry, field_of
from coterie.recipes.settings import Scale, Settings


def table_4(settings: Settings) -> Sequence[Entry]:
    model = "Texas100's MLP" if settings.scale is Scale.PAPER else "FCNN"
    return [
        Entry(
            Key.of(p=p, T=T, k=k, N=N, what=what),
            seconds,
            mingled,
            {"model": model, "rate": p, "threshold": T, "clusters": k, "clients": N},
            field_of(what),
            most=math.inf,
        )
        for (p, T, k, N), published in TABLE_4.items()
        for what, seconds in zip(("identity", "aggregation", "rebuilding"), published, strict=True)
    ]


def table_9(settings: Settings) -> Sequence[Entry]:
    """The paper's values stand beside its own settings of CKKS; ours are faster."""
    return [
        Entry(
            Key.of(model=model, settings=used, what=what),
            seconds if used == THEIRS else None,
            encrypted,
            {"model": model, "settings": used},
            field_of(what),
            most=math.inf,
            values={"MB sent": lambda result: result["bytes"] / 1e6},
        )
        for used in (THEIRS, OURS)
        for model, published in TABLE_9.items()
        for what, seconds in zip(("encryption", "decryption"), published, strict=True)
    ]


def variants(settings: Settings) -> Sequence[Entry]:
    size = {"clients": 40, "rounds": 5} if settings.scale is Scale.PAPER else {"clients": 20, "rounds": 3}
    return [
        Entry(
            Key.of(method=method, what=what),
            None,
            variant,
            {"method": method, **size},
            field_of(what),
            most=math.inf,
        )
        for method in VARIANTS
        for what in ("MB sent", "MB received", "seconds a round", "largest difference from IFCA")
    ]
