"""Which of its examples a client looks at in each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.learn.sgd import Local
from coterie.rng import Secrets

Plan = tuple[list[np.ndarray], float]
"""One client's batches as positions in its data, and the number that divides their sums (0: their own size)."""


def plan_batches(size: int, local: Local, draws: np.random.Generator) -> Plan:
    """Steps run through shuffled data, shuffling again when it is used up. Epochs end in a smaller batch. Of the whole
    data there is one batch a step, or an epoch.
    """
    if size == 0:
        return [], 0
    if local.whole:
        return [np.arange(size)] * (local.epochs or local.steps), 0
    width = min(local.batch_size, size)
    if local.epochs is not None:
        orders = [draws.permutation(size) for _ in range(local.epochs)]
        return [order[at : at + width] for order in orders for at in range(0, size, width)], 0
    return list(_shuffled(size, local.steps * width, draws).reshape(local.steps, width)), 0


def _shuffled(size: int, count: int, draws: np.random.Generator) -> np.ndarray:
    """So many places among the data, all of which have come before one comes again."""
    passes = [draws.permutation(size) for _ in range(-(-count // size))]
    return np.concatenate(passes)[:count]


def public_width(batch_size: int) -> int:
    """The width of Poisson batches, or of the blocks that a larger one takes: three deviations above the expected size.

    Products of another width are rounded differently in every row, so it must not depend on who was drawn.
    """
    return max(16, 8 * math.ceil((batch_size + 3 * math.sqrt(batch_size)) / 8))


def poisson_batches(size: int, local: Local, secrets: Secrets) -> Plan:
    """Batches that every example enters by its own coin, and the number that divides their sums: the expected size.

    The coins are secret. Amplification by sampling is what is gained from nobody's knowing who was in a batch.
    """
    if size == 0:
        return [], 0
    rate = min(1.0, local.batch_size / size)
    return [np.flatnonzero(secrets.child(step).coins(rate, size)) for step in range(local.steps)], rate * size


Drawn = tuple[Tensor, Tensor, Tensor, Tensor]
"""One step of all clients: positions in rows and weights, both (clients, width), the divisors, and who is active."""


def stepwise(
    sizes: Sequence[int], local: Local, draws: Iterable[np.random.Generator], offsets: np.ndarray
) -> Iterator[Drawn]:
    """What ``padded`` gives of ``plan_batches`` where neither epochs nor coins make a client's batches uneven."""
    lengths = np.array([min(local.batch_size, size) for size in sizes])
    index = np.zeros((local.steps, len(sizes), lengths.max(initial=0)), dtype=np.int64)
    for client, (size, own) in enumerate(zip(sizes, draws, strict=True)):
        if size:
            index[:, client] = offsets[client]  # what only pads is its own: 0 times another's overflow is not 0
            order = _shuffled(size, local.steps * lengths[client], own).reshape(local.steps, -1)
            index[:, client, : lengths[client]] = order + offsets[client]
    active = torch.from_numpy(lengths > 0)
    divisors = torch.from_numpy(lengths.astype(np.float32)).clamp_min(1)
    inside = torch.from_numpy(np.arange(index.shape[2]) < lengths[:, None])
    weights = torch.where(inside, 1 / divisors.unsqueeze(1), 0)
    for places in torch.from_numpy(index) if active.any() else ():
        yield places, weights, divisors, active


def padded(plan: list[Plan], offsets: np.ndarray, step: int, width: int) -> Drawn:
    """Client i's rows begin at ``offsets[i]``."""
    batches = [batches[step] if step < len(batches) else _NOTHING for batches, _ in plan]
    active = np.array([step < len(batches) for batches, _ in plan])
    lengths = np.array([len(batch) for batch in batches])
    given = np.array([divisor for _, divisor in plan])
    divisors = np.where(active, np.where(given > 0, given, lengths), 1).astype(np.float32)
    inside = np.arange(width) < lengths[:, None]
    own = np.where([len(batches) > 0 for batches, _ in plan], offsets[: len(plan)], 0)  # as ``stepwise`` pads
    index = np.repeat(own[:, None], width, axis=1)
    index[inside] = np.concatenate(batches) + np.repeat(offsets[: len(plan)], lengths)
    weights = np.where(inside, 1 / divisors[:, None], np.float32(0))
    return (
        torch.from_numpy(index),
        torch.from_numpy(weights),
        torch.from_numpy(divisors),
        torch.from_numpy(active),
    )


_NOTHING = np.empty(0, dtype=np.int64)
