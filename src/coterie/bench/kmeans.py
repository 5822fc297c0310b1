"""FedDP-KMeans beside a plain loop over the clients, beside the public code, and on ten million points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from coterie.bench.beside_peers import SCRIPTS
from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.data.federation import Federation
from coterie.data.partition.gaussians import GaussianClients
from coterie.defences.noisy_sums.central import CentralNoise
from coterie.defences.noisy_sums.plan import SHARES, plan_noise
from coterie.errors import InvalidInput, require
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters.kmeans import weighted_kmeans
from coterie.learn.clusters.lloyd import nearest, squared_distances
from coterie.measure.clustering import purity
from coterie.privacy.guarantee import Level
from coterie.protocols.clusterings.base import Clusters
from coterie.protocols.clusterings.feddp_kmeans import FedDPKMeans
from coterie.rng import Rng

SIZES = {Level.RECORD: (100, 1000), Level.CLIENT: (2000, 50)}
CONFIGS = {Level.RECORD: "gaussians_data_privacy.yaml", Level.CLIENT: "gaussians_client_privacy.yaml"}
BOUNDS = {Level.RECORD: 11.0, Level.CLIENT: 21.0}  # the public code's, which are set by hand
MOST_RUNS = 2  # of the public code, half a minute each
LEAST = 20.0
MOST_GIB = 8.0


def kmeans(options: Options) -> Iterator[Ratio]:
    for level in SIZES:
        yield from _beside_the_loop(level, options)
    for level in SIZES:
        yield from beside_the_public_code(level, options)
    yield ten_million_points()


def run(
    federation: Federation, server_data: Tensor, level: Level, epsilon: float, seed: int, bound: float | None = None
) -> Clusters:
    """The whole protocol under central noise. ``bound=None`` takes one more round, to estimate it."""
    protocol = FedDPKMeans(10, level, server_data=server_data, steps=int(level is Level.RECORD), bound=bound)
    planned = plan_noise(protocol.releases(), epsilon, 1e-6, SHARES[level])
    protocol, defence = replace(protocol, planned=planned), CentralNoise(planned)
    return Ring(protocol, federation, defence=defence, roots=Roots.seeded(seed), processes=0).run()


def _beside_the_loop(level: Level, options: Options) -> Iterator[Ratio]:
    clients, points = SIZES[level]
    maker, rng = GaussianClients(clients, points), Rng.seeded(options.seed)
    federation, server_data = maker.make(rng), maker.server(rng).whole().x
    parts = [federation.examples.x[federation.train[client]] for client in range(clients)]
    timings = interleaved(
        {
            "ours": lambda: run(federation, server_data, level, 3.0, options.seed),
            "loop": lambda: plain_loop(parts, server_data, level, Rng.seeded(options.seed)),
        },
        options.repeats,
    )
    yield Ratio(
        f"FedDP-KMeans, {clients} clients of {points} points, {level.value} level",
        timings["ours"].best,
        "s",
        timings["loop"].best,
        setup="the same steps client by client and cluster by cluster, in PyTorch, without a ring and without noise",
    )


def plain_loop(parts: list[Tensor], server: Tensor, level: Level, rng: Rng, clusters: int = 10) -> Tensor:
    """What one would write without us: for each step, for each client, for each cluster."""
    outer = torch.zeros(server.shape[1], server.shape[1])
    for x in parts:
        product = x.T @ x
        outer += product if level is Level.RECORD else product * min(1.0, 1500 / float(product.norm()))
    subspace = torch.linalg.eigh(outer).eigenvectors[:, -clusters:]
    known = server @ subspace
    weights = torch.zeros(len(known))
    for x in parts:
        closest = torch.cdist(x @ subspace, known).argmin(1)
        for point in range(len(known)):
            weights[point] += (closest == point).sum()
    projected = weighted_kmeans(known, weights, clusters, rng, restarts=10).centres[0]
    centres = _plain_step(parts, [torch.cdist(x @ subspace, projected).argmin(1) for x in parts], clusters)
    if level is Level.RECORD:
        centres = _plain_step(parts, [torch.cdist(x, centres).argmin(1) for x in parts], clusters)
    return centres


def _plain_step(parts: list[Tensor], labels: list[Tensor], clusters: int) -> Tensor:
    sums, counts = torch.zeros(clusters, parts[0].shape[1]), torch.zeros(clusters)
    for x, mine in zip(parts, labels, strict=True):
        for cluster in range(clusters):
            inside = mine == cluster
            sums[cluster] += x[inside].sum(0)
            counts[cluster] += inside.sum()
    return sums / counts.clamp_min(1).unsqueeze(1)


# -- processes of their own ------------------------------------------------------------------------------------------


def phases(level: Level) -> dict[str, float]:
    """Ours from data to figures in this process: processor seconds of each part. Noise is planned in the rounds."""
    clients, points = SIZES[level]
    times = [time.process_time()]
    maker, rng = GaussianClients(clients, points), Rng.seeded(0)
    federation, server = maker.make(rng), maker.server(rng).whole().x
    times.append(time.process_time())
    centres = run(federation, server, level, 3.0, 0, BOUNDS[level]).known["centres"][0]
    times.append(time.process_time())
    x = federation.examples.x
    labels = nearest(x, centres)
    print(float(squared_distances(x, centres, labels).mean()), purity(labels, federation.examples.y))
    times.append(time.process_time())
    return dict(zip(("data", "rounds", "figures"), (after - before for before, after in pairwise(times)), strict=True))


OURS = "import json, sys; from coterie.bench import kmeans as ours; from coterie.privacy.guarantee import Level; "
OURS += "print(json.dumps(ours.phases(Level(sys.argv[1]))))"
THEIRS = "import feddp_kmeans_phases; feddp_kmeans_phases.main()"
NEEDS = "pip install torch pfl scikit-learn h5py"


def _seconds(command: list[str], search: Sequence[Path] = ()) -> dict[str, float]:
    """What the parts of a process take of the processor, imports aside: others on the machine change it little."""
    with tempfile.TemporaryDirectory(prefix="kmeans") as folder:  # the public code writes its results where it runs
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if search:
            environment["PYTHONPATH"] = os.pathsep.join(map(str, search))
        done = subprocess.run(command, check=True, cwd=folder, env=environment, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _their_seconds(level: Level, python: Path, code: Path) -> dict[str, float]:
    config = str(code / "configs" / CONFIGS[level])
    try:
        return _seconds([str(python), "-c", THEIRS, "--args_config", config], (code, SCRIPTS))
    except OSError as error:
        raise InvalidInput(f"--pfl-python={python} cannot be run ({error}); name an interpreter") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise InvalidInput(f"--pfl-python={python} failed ({last}); it needs: {NEEDS}") from error


def beside_the_public_code(level: Level, options: Options) -> Iterator[Ratio]:
    """Each side as often as the other, and in turn."""
    python, code = options.pfl_python, options.feddp_kmeans
    if code:
        require((code / "run.py").is_file(), "--feddp-kmeans", code, "must hold the public code's run.py and configs")
    ours, theirs = [], []
    for _ in range(min(options.repeats, MOST_RUNS)):
        ours.append(_seconds([sys.executable, "-c", OURS, level.value]))
        if python and code:
            theirs.append(_their_seconds(level, python.absolute(), code.resolve()))

    def row(name: str, setup: str, mine: Sequence[str], its: Sequence[str]) -> Ratio:
        if theirs:
            setup = f"the public code (pfl) on its own configuration; for both, bounds by hand and one thread; {setup}"
        else:
            setup = f"not run: {NEEDS} in an environment of its own, then --pfl-python its python and --feddp-kmeans "
            setup += "a folder with the public code"
        best = min((sum(seconds[part] for part in its) for seconds in theirs), default=None)
        least = min(sum(seconds[part] for part in mine) for seconds in ours)
        name = f"FedDP-KMeans, {level.value} level, {name}"
        return Ratio(name, least, "s of processor", best, LEAST, setup=setup)

    whole = ["data", "rounds", "figures"]
    also = "it also makes new clients, and evaluates on them and an optimum"
    yield row("from data to figures", also, whole, [*whole, "planning"])
    yield row("the algorithm", "planning of the noise, and all rounds", ["rounds"], ["rounds", "planning"])
    yield row("its rounds alone", "ours plans its noise as well, the public code does not", ["rounds"], ["rounds"])


def ten_million_points(clients: int = 10_000, points: int = 1000, dimensions: int = 100) -> Ratio:
    """The most memory that a process takes to make the data (4 GB of them) and to cluster them."""
    code = textwrap.dedent(f"""
        import resource
        from coterie.data.partition.gaussians import GaussianClients
        from coterie.privacy.guarantee import Level
        from coterie.rng import Rng
        from coterie.bench.kmeans import run
        maker, rng = GaussianClients({clients}, {points}, dimensions={dimensions}), Rng.seeded(0)
        federation, server = maker.make(rng), maker.server(rng).whole().x
        run(federation, server, Level.RECORD, 1.0, 0)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    """)
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    setup = f"{dimensions} features, data included; {time.monotonic() - started:.0f} s from start to end"
    return Ratio(
        f"FedDP-KMeans, {clients * points:,} points in {clients:,} clients: memory",
        float(done.stdout),
        "GiB",
        None,
        MOST_GIB,
        bound_on_ratio=False,
        setup=setup,
    )
