"""Time a client and memory as clients grow, each size in a process of its own: a peak cannot be unlearned."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.errors import nearest, require

MOST_GIB = 4.0
LEAST_LINEARITY = 0.67  # a client among many may cost at most 1.5 times a client among few


@dataclass(frozen=True)
class Cost:
    """One round of so many clients."""

    clients: int
    seconds_per_client: float
    gib: float  # the peak of all processes together; pages that they share are counted in each


def scaling(options: Options, sizes: tuple[int, ...] = (100, 1_000, 10_000), resnets: int = 120) -> Iterator[Ratio]:
    """The FCNN with 5 steps of up to 50 of a client's 10 examples; ResNet-18 with one step of 4 examples."""
    curve = [measured("fcnn", clients, options.seed) for clients in sizes]
    for cost in curve:
        yield Ratio(
            f"FCNN, {cost.clients:,} clients: a client's round",
            1e3 * cost.seconds_per_client,
            "ms",
            1e3 * curve[0].seconds_per_client,
            LEAST_LINEARITY,
            setup=f"a client among {sizes[0]}, in the same run",
        )
    for cost in curve:
        yield _memory(f"FCNN, {cost.clients:,} clients", cost)
    large = measured("resnet18", resnets, options.seed)
    yield Ratio(f"ResNet-18, {resnets} clients: a client's round", 1e3 * large.seconds_per_client, "ms")
    yield _memory(f"ResNet-18, {resnets} clients", large)


def _memory(name: str, cost: Cost) -> Ratio:
    return Ratio(f"{name}: peak memory", cost.gib, "GiB", None, MOST_GIB, bound_on_ratio=False)


def measured(model: str, clients: int, seed: int = 0) -> Cost:
    command = [sys.executable, "-m", "coterie.bench.scaling", model, str(clients), str(seed)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def run_here(model: str, clients: int, seed: int) -> Cost:
    """One round in this process, data and workers included in the peak."""
    import torch

    from coterie.bench.ring import Rounds, random_federation
    from coterie.learn.models.bundled import ResNet18, fcnn
    from coterie.learn.sgd import Local
    from coterie.protocols.fedavg import FedAvg
    from coterie.rng import Rng

    cases = {
        "fcnn": (fcnn(), 10, (784,), Local(steps=5, batch_size=50)),
        "resnet18": (ResNet18(), 4, (3, 32, 32), Local(steps=1, batch_size=4)),
    }
    require(model in cases, "model", model, nearest(model, cases))
    network, each, shape, local = cases[model]
    rng = Rng.seeded(seed)
    x = torch.rand(clients * each, *shape, generator=rng.child("pictures").torch())
    federation = random_federation(clients, each, x, rng)
    with closing(Rounds(FedAvg(rounds=1, local=local), federation, network, rng)) as rounds:
        start = time.perf_counter()
        rounds()
        seconds = time.perf_counter() - start
        workers = rounds.ring.clients.processes or 0
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kib += workers * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # the largest child's
    return Cost(clients, seconds / clients, kib / 2**20)


if __name__ == "__main__":
    print(json.dumps(vars(run_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
