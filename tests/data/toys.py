"""Small examples whose every row can be told from the others."""

from __future__ import annotations

import torch

from coterie.data.federation import Examples, Federation, Shards
from coterie.rng import Rng


def toy(count: int = 1000, classes: int = 10, test: int = 0, seed: int = 0) -> Examples:
    """Labels in turn; x holds the row's number; the last ``test`` rows are the published test part."""
    draw = Rng.seeded(seed).child("toy").torch()
    rows = torch.arange(count)
    tags = {
        "rare": (torch.rand(count, generator=draw) < 0.2).to(torch.int64),
        "writer": rows // 20,
        "school": rows // 200,
    }
    if test:
        tags["split"] = (rows >= count - test).to(torch.int64)
    return Examples(
        x=rows.to(torch.float32)[:, None].repeat(1, 4), y=rows % classes, classes=classes, name="toy", tags=tags
    )


def rows_once(shards: Shards) -> bool:
    return len(shards.rows.unique()) == len(shards.rows)


def label_counts(federation: Federation, client: int, test: bool = False) -> torch.Tensor:
    rows = (federation.test if test else federation.train)[client]
    return torch.bincount(federation.examples.y[rows], minlength=federation.examples.classes)


def apart(federation: Federation) -> bool:
    """No row is trained on by one and tested on by another."""
    return not torch.isin(federation.train.rows, federation.test.rows).any()


def same(one: Federation, other: Federation) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in (
            (one.train.rows, other.train.rows),
            (one.train.offsets, other.train.offsets),
            (one.test.rows, other.test.rows),
            (one.test.offsets, other.test.offsets),
            (one.groups, other.groups),
        )
    )
