"""A million enrolled clients of whom a thousand are asked a round, beside a federation of that thousand.

Each in a process of its own: a peak of memory cannot be unlearned.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options

ENROLLED, ASKED, EACH = 1_000_000, 1_000, 10
SLOWEST, MOST_MORE = 1.3, 256  # times as long, and MiB more, than the federation of those who are asked


@dataclass(frozen=True)
class Cost:
    seconds: float  # the best round
    mib: float  # the peak


def enrolled(options: Options, clients: int = ENROLLED, asked: int = ASKED) -> Iterator[Ratio]:
    few, many = (measured(count, asked, options) for count in (asked, clients))
    name = f"FedAvg, FCNN, {asked:,} asked of {clients:,} enrolled"
    beside = f"a federation of {asked:,}, all of them asked and in memory"
    yield Ratio(f"{name}: a round", many.seconds, "s", few.seconds, 1 / SLOWEST, setup=beside)
    yield Ratio(
        f"{name}: peak memory",
        many.mib,
        "MiB",
        few.mib,
        few.mib + MOST_MORE,
        bound_on_ratio=False,
        setup=f"{beside}; at most {MOST_MORE} MiB more",
    )


def measured(clients: int, asked: int, options: Options) -> Cost:
    words = [str(number) for number in (clients, asked, options.repeats, options.seed)]
    command = [sys.executable, "-m", "coterie.bench.enrolled", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def run_here(clients: int, asked: int, repeats: int, seed: int) -> Cost:
    """The best of some rounds, each of other clients, after one that is not counted."""
    import torch

    from coterie.bench.ring import random_federation
    from coterie.data.federation import Examples
    from coterie.data.lazy import AnyFederation, LazyFederation
    from coterie.flow.ring import Ring
    from coterie.flow.turn import Roots
    from coterie.learn.models.bundled import fcnn
    from coterie.learn.sgd import Local
    from coterie.protocols.fedavg import FedAvg
    from coterie.rng import Rng

    rng = Rng.seeded(seed)
    x = torch.rand(asked * EACH, 784, generator=rng.child("pictures").torch())
    pool = random_federation(asked, EACH, x, rng)
    federation: AnyFederation = pool
    if clients > asked:

        def read(client: int) -> Examples:  # as from a disk: one of the thousand
            return pool.examples.take(pool.train[client % asked])

        federation = LazyFederation(torch.full((clients,), EACH), read, read)
    protocol = FedAvg(rounds=1 + repeats, local=Local(steps=5, batch_size=EACH), participation=asked / clients)
    stamps: list[float] = []
    with Ring(protocol, federation, fcnn(), roots=Roots.same(rng)) as ring:
        ring.run(before_ask=lambda ask: stamps.append(time.perf_counter()))
        stamps.append(time.perf_counter())
    rounds = [later - earlier for earlier, later in pairwise(stamps[1:])]
    return Cost(min(rounds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


if __name__ == "__main__":
    print(json.dumps(vars(run_here(*map(int, sys.argv[1:])))))
