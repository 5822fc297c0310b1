"""A round on a machine that does something else too: half of its cores are taken by processes that never rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Protocol

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.ring import Rounds, fedavg_round, threads
from coterie.rng import Rng

MOST_TIMES = 2.2  # half of the cores are gone, and a tenth for sharing


class Spinning(Protocol):
    def spin(self) -> None: ...

    def rest(self) -> None: ...


class Neighbour:
    """A process that spins on one core whenever it is let, and is stopped in between."""

    def __init__(self, core: int) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(self._process.pid, {core})
        self.rest()

    def spin(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def rest(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def beside(neighbours: Sequence[Spinning], run: Callable[[], object]) -> Callable[[], None]:
    """The same run, with the neighbours spinning."""

    def both() -> None:
        for neighbour in neighbours:
            neighbour.spin()
        try:
            run()
        finally:
            for neighbour in neighbours:
                neighbour.rest()

    return both


def busy_machine(options: Options, clients: int = 100, each: int = 250) -> Iterator[Ratio]:
    cores = sorted(os.sched_getaffinity(0))
    taken = cores[: max(1, len(cores) // 2)]
    with ExitStack() as stack:
        ours: Rounds = stack.enter_context(closing(fedavg_round(Rng.seeded(options.seed), clients, each)))
        neighbours = [stack.enter_context(closing(Neighbour(core))) for core in taken]
        timings = interleaved({"idle": ours, "busy": beside(neighbours, ours)}, options.repeats)
    policy = os.environ.get("OMP_WAIT_POLICY", "torch's own")
    yield Ratio(
        f"FedAvg, FCNN, {clients} clients: a round with {len(taken)} of {len(cores)} cores taken",
        timings["busy"].best,
        "s",
        timings["idle"].best,
        1 / MOST_TIMES,
        setup=f"the same round with those cores free; {threads()}, which wait: {policy}",
    )
