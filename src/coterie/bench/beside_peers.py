"""Other simulators on the same work: FedAvg, 100 clients, FCNN, 5 local steps of 50, no evaluation.

Each runs in an interpreter of its own that the user names, from a script of ours against its public interface. Starting
up (processes, data, the first round) is not counted, for it or for us.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.ring import IfcaCase, fedavg_round, products_alone, threads
from coterie.errors import InvalidInput
from coterie.learn.sgd import Local
from coterie.rng import Rng

SCRIPTS = Path(__file__).parent / "peers"
OF_LIMIT = 0.8  # of what the matrix products alone would reach beside a peer: the bound, whatever the peer costs


@dataclass(frozen=True)
class Work:
    clients: int = 100
    each: int = 250  # examples a client: one pass
    steps: int = 5
    batch_size: int = 50
    lr: float = 0.01
    rounds: int = 5
    cores: int = 1


@dataclass(frozen=True)
class Peer:
    name: str
    script: str
    needs: str  # what pip installs it from
    option: str
    setup: str


FLOWER = Peer(
    "Flower's simulation",
    "flower_rounds",
    "torch 'flwr[simulation]==1.41.0'",
    "--flower-python",
    "run_simulation on Ray, one client a core at a time, one thread each, message-based FedAvg",
)
PFL = Peer(
    "pfl",
    "pfl_rounds",
    "torch pfl",
    "--pfl-python",
    "SimulatedBackend in one process, torch's threads, FederatedAveraging",
)


def peers(options: Options, work: Work | None = None) -> Iterator[Ratio]:
    work = work or Work(rounds=options.repeats, cores=len(os.sched_getaffinity(0)))
    for peer, python in ((FLOWER, options.flower_python), (PFL, options.pfl_python)):
        before = _ours(work, options)
        name = f"FedAvg, FCNN, {work.clients} clients: a round, beside {peer.name}"
        if python is None:
            how = f"not run: pip install {peer.needs} in an environment of its own, then {peer.option} its python"
            yield Ratio(name, before.round, "s", setup=how)
            continue
        theirs = min(their_seconds(peer, python, work))
        ours = before.best(_ours(work, options))  # before and after: neither side alone has a quiet machine
        setup = f"{peer.setup}; ours in one process, {threads()}"
        limit = theirs / ours.products
        yield Ratio(name, ours.round, "s", theirs, OF_LIMIT * limit, limit=limit, setup=setup)


@dataclass(frozen=True)
class _Ours:
    """Seconds of a round of ours, and of its matrix products alone."""

    round: float
    products: float

    def best(self, other: _Ours) -> _Ours:
        return _Ours(min(self.round, other.round), min(self.products, other.products))


def _ours(work: Work, options: Options) -> _Ours:
    rng = Rng.seeded(options.seed)
    local = Local(steps=work.steps, batch_size=work.batch_size, lr=work.lr)
    products = products_alone(IfcaCase(work.clients, 0, work.each, local), rng)
    timings = interleaved(
        {"ours": fedavg_round(rng, work.clients, work.each, local), "products": products}, work.rounds
    )
    return _Ours(timings["ours"].best, timings["products"].best)


def their_seconds(peer: Peer, python: Path, work: Work | Mapping[str, object], code: Path | None = None) -> list[float]:
    """Seconds of each round; it gets an empty home, and sends nobody anything. ``code``: where it is, if no package."""
    with tempfile.TemporaryDirectory(prefix="peer") as home:
        environment = os.environ | {
            "COTERIE_PEER_WORK": json.dumps(asdict(work) if isinstance(work, Work) else dict(work)),
            "FLWR_HOME": home,
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join(map(str, [SCRIPTS] if code is None else [SCRIPTS, code.resolve()])),
            "RAY_TMPDIR": home,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        environment.pop("OMP_WAIT_POLICY", None)  # ours; theirs wait as they come
        command = [str(python), "-c", f"import {peer.script} as rounds; rounds.main()"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        except OSError as error:
            raise InvalidInput(f"{peer.option}={python} cannot be run ({error}); name an interpreter") from error
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or ["no message"])[-1]
            raise InvalidInput(f"{peer.option}={python} failed ({last}); it needs: pip install {peer.needs}") from error
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])["seconds"]
    return seconds
