"""What a private run starts from, and what may be said of the run because of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import GaussianDpEvent, get_sigma_gaussian
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.holdings import UserData
from coterie.data.provenance import Public
from coterie.errors import require
from coterie.privacy.accounting import epsilon_of, gaussian_total, guarantee_of
from coterie.privacy.guarantee import Against, Guarantee

NOT_PUBLIC = "{name} may depend on the data; if it does not, say so with coterie.Public({name})"


@dataclass(frozen=True)
class Given:
    """Something that a private run starts from: why it spoils the guarantee, or what it has spent itself."""

    name: str
    points: Tensor
    doubt: str = ""
    spent: Guarantee | None = None  # what was claimed of the fit that it comes from

    @staticmethod
    def public(values: UserData, name: str, features: int) -> tuple[NDArray[np.number], str]:
        """An array (rows, features), and why it spoils a guarantee: nobody vouches for it."""
        table = values.values if isinstance(values, Public) else values
        found = np.asarray(table.numpy() if isinstance(table, Tensor) else table)
        require(found.ndim == 2, f"{name}.shape", found.shape, "must be (points, features)")
        require(found.dtype.kind in "fiub", f"{name}.dtype", found.dtype, "must be numbers")
        require(bool(np.isfinite(found).all()), name, "NaN or infinity", "must be finite; drop those points")
        require(found.shape[1] == features, f"features of {name}", found.shape[1], f"must be {features}")
        return found, "" if isinstance(values, Public) else NOT_PUBLIC.format(name=name)


def composed(alone: Guarantee, given: Sequence[Given], simulated: bool, unknown: Sequence[str] = ()) -> Guarantee:
    """What a run guarantees together with what it starts from. ``unknown`` are settings for which nobody vouches."""
    doubts = [one.doubt for one in given if one.doubt] + [NOT_PUBLIC.format(name=name) for name in unknown]
    if not alone.proven or doubts:
        return alone if not alone.proven else Guarantee.none("; ".join(doubts), alone.level, alone.trust)
    before = [one.spent for one in given if one.spent is not None]
    for one in before:
        if (one.level, one.trust, one.neighbours) != (alone.level, alone.trust, alone.neighbours):
            why = "what it starts from was fitted at another level, between other neighbours or with other trust"
            return Guarantee.none(f"{why}, which does not compose with this one's", alone.level, alone.trust)
    both = alone
    if before:
        events = [event for one in (alone, *before) for event in one.events]
        ripple = sum(one.ripple for one in (alone, *before))
        both = guarantee_of(events, alone.delta, alone.level, alone.trust, 1.0, alone.neighbours, ripple)
        both = replace(both, against=tuple(_against([alone, *before])))
    return replace(both, simulated=simulated or any(one.simulated for one in before))


def _against(parts: Sequence[Guarantee]) -> Iterator[Against]:
    """Each adversary that every part names, with what all parts together tell it.

    All is Gaussian noise: what an adversary's epsilon is the price of is one Gaussian release, and these compose.
    """
    if any(gaussian_total(part.events) is None for part in parts):
        return
    for one in parts[0].against:
        who = (one.whom, one.clients)
        seen = [(other, part) for part in parts for other in part.against if (other.whom, other.clients) == who]
        if len(seen) < len(parts):
            continue
        if any(math.isinf(other.epsilon) for other, _ in seen):
            yield replace(one, epsilon=math.inf)
            continue
        noise = [GaussianDpEvent(get_sigma_gaussian(other.epsilon, part.delta)) for other, part in seen]
        yield replace(one, epsilon=epsilon_of(noise, parts[0].delta))
