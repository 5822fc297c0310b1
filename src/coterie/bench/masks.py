"""What secure sums cost besides masking: keys, shares, boxes and their opening, for a thousand clients."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.data.federation import Examples, Federation, Shards
from coterie.defences.mingling.defence import Mingling
from coterie.defences.secure_sums import PairwiseMasks, SecureSums
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.base import ModelTrainer
from coterie.protocols.fedavg import FedAvg
from coterie.protocols.ifca import Ifca

CLIENTS, NEIGHBOURS, SECONDS = 1000, 20, 10.0
SETUP = "a round of FedAvg on a model of 6 parameters, less the same round in the clear"
MINGLED = "a round of IFCA with five clusters on a model of 6 parameters, less the same round in the clear"
ONCE = Local(steps=1, batch_size=1, lr=0.1)
FEDAVG = FedAvg(rounds=1, local=ONCE)


def set_up(options: Options) -> Iterator[Ratio]:
    """Processor seconds a round; 5-byte words beside 8-byte ones."""
    few = _seconds(SecureSums(PairwiseMasks(NEIGHBOURS)), CLIENTS, options.seed)
    name = f"secure sums' set-up, {CLIENTS:,} clients with {NEIGHBOURS} neighbours"
    yield Ratio(name, few, "s", None, SECONDS, bound_on_ratio=False, setup=SETUP)
    mingled = _seconds(Mingling(cipher=PairwiseMasks(NEIGHBOURS)), CLIENTS, options.seed, Ifca(1, ONCE, candidates=0))
    yield Ratio("mingling's, with its tally of sizes", mingled, "s", None, SECONDS, bound_on_ratio=False, setup=MINGLED)
    fewer = CLIENTS // 10
    ours, all_pairs = (_seconds(SecureSums(PairwiseMasks(n)), fewer, options.seed) for n in (NEIGHBOURS, None))
    yield Ratio(f"the same, {fewer} clients, beside all pairs", ours, "s", all_pairs, setup=SETUP)


def _seconds(defence: Defence, clients: int, seed: int, protocol: ModelTrainer = FEDAVG) -> float:
    """A round's processor time under the defence, less the same round's without."""
    return _round(defence, clients, seed, protocol) - _round(Defence(), clients, seed, protocol)


def _round(defence: Defence, clients: int, seed: int, protocol: ModelTrainer) -> float:
    rows = torch.arange(clients)
    examples = Examples(torch.randn(clients, 2, generator=torch.Generator().manual_seed(seed)), rows % 2, 2, "points")
    shards = Shards.of(list(rows.split(1)))
    federation = Federation(examples, shards, shards, torch.zeros(clients, dtype=torch.int64))
    with Ring(protocol, federation, Dense((2, 2)), defence, Roots.seeded(seed)) as ring:
        started = time.process_time()
        ring.run()
        return time.process_time() - started
