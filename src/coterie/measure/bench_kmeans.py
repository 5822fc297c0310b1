"""FedDP-KMeans beside a plain loop over the clients, beside the public code, and on ten million points."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from coterie.data.federation import Federation
from coterie.data.partition.gaussians import GaussianClients
from coterie.defences.central_noise import CentralNoise
from coterie.defences.noisy_sums import SHARES, plan_noise
from coterie.flow.drive import drive
from coterie.flow.guarantee import Level
from coterie.flow.protocol import Server
from coterie.flow.rng import Rng
from coterie.flow.simulate import Simulator, population
from coterie.learn.kmeans import weighted_kmeans
from coterie.learn.nearest_centre import NearestCentre
from coterie.measure.bench import Options
from coterie.measure.ratio import Ratio, interleaved
from coterie.protocols.clustering import Clusters
from coterie.protocols.feddp_kmeans import FedDPKMeans

SIZES = {Level.RECORD: (100, 1000), Level.CLIENT: (2000, 50)}
CONFIGS = {Level.RECORD: "gaussians_data_privacy.yaml", Level.CLIENT: "gaussians_client_privacy.yaml"}
PUBLIC_CODE = "FEDDP_KMEANS"
"""The environment variable that names a folder with the public code of FedDP-KMeans."""

LEAST = 20.0
MOST_GIB = 8.0


def kmeans(options: Options) -> Iterator[Ratio]:
    for level in SIZES:
        yield from _beside_the_loop(level, options)
    for level in SIZES:
        yield _beside_the_public_code(level, options)
    yield ten_million_points()


def run(federation: Federation, server_data: Tensor, level: Level, epsilon: float, seed: int) -> Clusters:
    """The whole protocol under central noise."""
    protocol = FedDPKMeans(10, level, server_data=server_data, steps=int(level is Level.RECORD))
    defence = CentralNoise(plan_noise(protocol.releases(), epsilon, 1e-6, SHARES[level]))
    model, rng = NearestCentre(10, server_data.shape[1]), Rng.seeded(seed)
    server = Server(population(federation), model.init, defence.server, rng.child("server"))
    simulator = Simulator(protocol, federation, model, defence.client, rng.child("clients"), processes=0)
    return drive(protocol, protocol.start(server), server, simulator)


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
    for x, mine in zip(parts, labels):
        for cluster in range(clusters):
            inside = mine == cluster
            sums[cluster] += x[inside].sum(0)
            counts[cluster] += inside.sum()
    return sums / counts.clamp_min(1).unsqueeze(1)


# -- processes of their own ------------------------------------------------------------------------------------------

LAUNCHER = """
import importlib, pkgutil, sys, types
import pfl.callback
for module in pkgutil.iter_modules(pfl.callback.__path__):  # it has moved since the public code was written
    found = importlib.import_module("pfl.callback." + module.name)
    if hasattr(found, "AggregateMetricsToDisk"):
        pfl.callback.AggregateMetricsToDisk = found.AggregateMetricsToDisk
if importlib.util.find_spec("folktables") is None:  # imported, but not used for Gaussian mixtures
    unused = types.ModuleType("folktables")
    unused.ACSDataSource = unused.ACSIncome = unused.generate_categories = object
    sys.modules["folktables"] = unused
sys.path.insert(0, ".")
import time
import run
started = time.process_time()
run.main()
print("seconds:", time.process_time() - started)
"""

OURS = """
import sys, time
from coterie.data.partition.gaussians import GaussianClients
from coterie.flow.guarantee import Level
from coterie.flow.rng import Rng
from coterie.learn.lloyd import nearest, squared_distances
from coterie.measure.bench_kmeans import run
from coterie.measure.clustering import purity
level, clients, points = Level(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
started = time.process_time()
maker, rng = GaussianClients(clients, points), Rng.seeded(0)
federation, server = maker.make(rng), maker.server(rng).whole().x
centres = run(federation, server, level, 3.0, 0).known["centres"][0]
x = federation.examples.x
labels = nearest(x, centres)
print(float(squared_distances(x, centres, labels).mean()), purity(labels, federation.examples.y))
print("seconds:", time.process_time() - started)
"""


def _processor_seconds(command: list[str], folder: Path | None = None) -> float:
    """What a process takes of the processor once all is imported: others on the machine change it little."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, cwd=folder, env=alone, capture_output=True, text=True)
    return float(done.stdout.rsplit("seconds:", 1)[1])


def _beside_the_public_code(level: Level, options: Options) -> Ratio:
    """From making the data to printing cost and accuracy, which the public code does for its optimum as well."""
    clients, points = SIZES[level]
    ours = min(
        _processor_seconds([sys.executable, "-c", OURS, level.value, str(clients), str(points)])
        for _ in range(options.repeats)
    )
    folder, theirs = os.environ.get(PUBLIC_CODE), None
    setup = f"not run: set {PUBLIC_CODE} to a folder with the public code, and an interpreter that can import pfl"
    if folder and options.pfl_python:
        command = [str(options.pfl_python), "-c", LAUNCHER, "--args_config", f"configs/{CONFIGS[level]}"]
        theirs = _processor_seconds(command, Path(folder))
        setup = "the public code (pfl) from its data to its figures, processor seconds, one thread each"
    name = f"FedDP-KMeans, {level.value} level, from data to figures"
    return Ratio(name, ours, "s of processor", theirs, LEAST, setup=setup)


def ten_million_points(clients: int = 10_000, points: int = 1000, dimensions: int = 100) -> Ratio:
    """The most memory that a process takes to make the data (4 GB of them) and to cluster them."""
    code = textwrap.dedent(f"""
        import resource
        from coterie.data.partition.gaussians import GaussianClients
        from coterie.flow.guarantee import Level
        from coterie.flow.rng import Rng
        from coterie.measure.bench_kmeans import run
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
