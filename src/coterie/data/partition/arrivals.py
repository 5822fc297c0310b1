"""Clients that join during training (MingledPie, Table VIII)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from coterie.data.federation import Federation
from coterie.errors import require
from coterie.rng import Rng


def late(federation: Federation, share: float, round: int, rng: Rng) -> Federation:
    """A random ``share`` of the clients joins in ``round``; at least one client is there from the start."""
    require(0 <= share < 1, "share", share, "must lie in 0..1, below 1: somebody has to start")
    require(round >= 0, "round", round, "must not be negative")
    count = min(int(share * federation.clients + 0.5), federation.clients - 1)
    chosen = torch.randperm(federation.clients, generator=rng.child("latecomers").torch())[:count]
    joins = torch.zeros(federation.clients, dtype=torch.int64)
    joins[chosen] = round
    return replace(federation, joins=joins)


def waves(federation: Federation, clients: Sequence[int], size: int, every: int) -> Federation:
    """The given clients join ``size`` at a time, every ``every`` rounds; the others are there from the start."""
    require(size >= 1, "size", size, "must be at least 1")
    require(every >= 1, "every", every, "must be at least 1")
    known = range(federation.clients)
    wrong = [client for client in clients if client not in known]
    require(not wrong, "clients", wrong, f"must lie in 0..{federation.clients - 1}")
    require(len(set(clients)) == len(clients), "clients", list(clients), "must not name a client twice")
    require(len(clients) < federation.clients, "clients", len(clients), "must leave somebody who starts")
    joins = torch.zeros(federation.clients, dtype=torch.int64)
    joins[list(clients)] = (torch.arange(len(clients)) // size + 1) * every
    return replace(federation, joins=joins)
