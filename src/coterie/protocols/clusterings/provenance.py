"""What a private run starts from, and what may be said of the run because of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.provenance import Public
from coterie.errors import require
from coterie.privacy.accounting import guarantee_of
from coterie.privacy.guarantee import Guarantee, Level, Trust

NOT_PUBLIC = "{name} may depend on the data; if it does not, say so with coterie.Public({name})"


@dataclass(frozen=True)
class Given:
    """Something that a private run starts from: why it spoils the guarantee, or what it has spent itself."""

    name: str
    points: Tensor
    doubt: str = ""
    events: tuple[Any, ...] = ()
    level: Level | None = None
    trust: Trust | None = None
    simulated: bool = False

    @staticmethod
    def public(values: Any, name: str, features: int) -> tuple[NDArray[Any], str]:
        """An array (rows, features), and why it spoils a guarantee: nobody vouches for it."""
        table = values.values if isinstance(values, Public) else values
        found = np.asarray(table.numpy() if isinstance(table, Tensor) else table)
        require(found.ndim == 2, f"{name}.shape", found.shape, "must be (points, features)")
        require(found.dtype.kind in "fiub", f"{name}.dtype", found.dtype, "must be numbers")
        require(bool(np.isfinite(found).all()), name, "NaN or infinity", "must be finite; drop those points")
        require(found.shape[1] == features, f"features of {name}", found.shape[1], f"must be {features}")
        return found, "" if isinstance(values, Public) else NOT_PUBLIC.format(name=name)


def composed(alone: Guarantee, own: Sequence[Any], given: Sequence[Given], simulated: bool) -> Guarantee:
    """What a run guarantees together with what it starts from; ``own`` are the run's events."""
    doubts = [one.doubt for one in given if one.doubt]
    if not alone.proven or doubts:
        return alone if not alone.proven else Guarantee.none("; ".join(doubts), alone.level, alone.trust)
    spent = [one for one in given if one.events]
    for one in spent:
        if (one.level, one.trust) != (alone.level, alone.trust):
            why = f"{one.name} was fitted at another level or with other trust, which does not compose with this one's"
            return Guarantee.none(why, alone.level, alone.trust)
    events = [*own, *(event for one in spent for event in one.events)]
    both = guarantee_of(events, alone.delta, alone.level, alone.trust, 1.0, alone.neighbours) if spent else alone
    return replace(both, simulated=simulated or any(one.simulated for one in given))
