"""Vertical clustering beside others' code: a step of Lloyd on shares (SPU), and Li, Wang and Li's weighted grid.

Each runs in an interpreter of its own that the user names, from a script of ours against its public interface.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from torch import Tensor

from coterie.bench.beside_peers import Peer, their_seconds
from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.bench.vertical import our_steps, steps_of
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.private_grid import PrivateGrid
from coterie.defences.secure_sums import SecureSums
from coterie.errors import require
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters.columns import means_by_label
from coterie.learn.clusters.lloyd import nearest
from coterie.protocols.clusterings.weighted_grid import WeightedGrid
from coterie.rng import Rng

SPU = Peer("SPU", "spu_lloyd", "spu==0.9.5", "--spu-python", "secret shares in its simulator, FM64")
GRID = Peer(
    "Li, Wang and Li's code",
    "dp_grid",
    "scikit-learn pandas xxhash pyyaml matplotlib",
    "--science-python",
    "DPVFL (v2way, FM sketches) of the suite of VertCoHiRF",
)
MOST_RUNS = 3  # of theirs, which takes minutes
DELTA = 1e-6


def peers(options: Options) -> Iterator[Ratio]:
    for parties, protocol in ((3, "ABY3"), (2, "SEMI2K")):
        yield beside_spu(options, parties, protocol)
    yield beside_the_grid(options)


def beside_spu(
    options: Options, parties: int, protocol: str, records: int = 1000, columns: int = 8, clusters: int = 3
) -> Ratio:
    """Processor seconds of a step. Masked sums need three parties, so ours has these in either case."""
    x = torch.rand(records, columns, generator=torch.Generator().manual_seed(options.seed))
    (ours,) = steps_of(partial(our_steps, _split(x, 3), clusters, SecureSums()), repeats=options.repeats)
    name = f"a step of Lloyd, {records:,} x {columns}, k = {clusters}, masked sums, beside SPU ({protocol})"
    if options.spu_python is None:
        return Ratio(name, ours, "s of processor", setup=_missing(SPU))
    work = {"records": records, "columns": columns, "clusters": clusters, "parties": parties, "protocol": protocol}
    theirs = median(their_seconds(SPU, options.spu_python, {**work, "rounds": options.repeats}))
    setup = f"{SPU.setup}, {parties} parties; it hides distances and labels too, and ours shows the server totals"
    return Ratio(name, ours, "s of processor", theirs, setup=setup)


def beside_the_grid(
    options: Options, records: int = 2000, sketches: int = 200, epsilon: float = 20.0, clusters: int = 4
) -> Ratio:
    """A whole run under the same epsilon, three parties with two columns each, and what both leave unexplained."""
    x = blobs(records, 6, clusters, options.seed)
    runs = min(options.repeats, MOST_RUNS)
    times, left = [], []
    for seed in range(runs):
        start = time.process_time()
        centres = _grid(x, clusters, sketches, epsilon, seed)
        times.append(time.process_time() - start)
        left.append(_unexplained(x, nearest(x, centres), clusters))
    name = f"a weighted grid at epsilon {epsilon:g}, {records:,} x 6, {sketches} sketches, beside {GRID.name}"
    if options.science_python is None or options.vertcohirf is None:
        return Ratio(name, median(times), "s of processor", setup=_missing(GRID) + ", and --vertcohirf the suite")
    folder = options.vertcohirf
    require((folder / "vertcohirf").is_dir(), "--vertcohirf", folder, "must hold the suite's package, vertcohirf")
    with tempfile.TemporaryDirectory(prefix="grid") as home:
        table = Path(home) / "table.npy"
        np.save(table, x.numpy())
        work = {"table": str(table), "parties": 3, "clusters": clusters, "sketches": sketches, "epsilon": epsilon}
        found = their_seconds(GRID, options.science_python.absolute(), {**work, "rounds": runs}, folder)
    setup = (
        f"{GRID.setup}; mean squared distance left: ours {mean(left):.4f}, theirs {mean(found[runs:]):.4f}, one "
        f"cluster {_unexplained(x, torch.zeros(records, dtype=torch.int64), 1):.4f}"
    )
    return Ratio(name, median(times), "s of processor", median(found[:runs]), setup=setup)


def blobs(records: int, columns: int, clusters: int, seed: int) -> Tensor:
    """Clusters on [0, 1]."""
    draws = torch.Generator().manual_seed(seed)
    middles = 0.15 + 0.7 * torch.rand(clusters, columns, generator=draws)
    which = torch.randint(clusters, (records,), generator=draws)
    return (middles[which] + 0.05 * torch.randn(records, columns, generator=draws)).clamp(0, 1)


def _split(x: Tensor, parties: int) -> VerticalFederation:
    size = -(-x.shape[1] // parties)
    columns = tuple(tuple(range(at, min(at + size, x.shape[1]))) for at in range(0, x.shape[1], size))
    examples = Examples(x, torch.zeros(len(x), dtype=torch.int64), 1, "drawn")
    return Vertical(columns=columns).split(examples, Rng.seeded(0))


def _grid(x: Tensor, clusters: int, sketches: int, epsilon: float, seed: int) -> Tensor:
    federation, protocol = _split(x, 3), WeightedGrid(clusters, sketches=sketches)
    defence = PrivateGrid.planned(epsilon, DELTA, protocol.facts(federation, DELTA))
    with Ring(protocol, federation, None, defence, Roots.seeded(seed), processes=0) as ring:
        return ring.run().found


def _unexplained(x: Tensor, labels: Tensor, clusters: int) -> float:
    means = means_by_label(x, labels, x.mean(0).expand(clusters, -1))
    return float((x - means[labels]).square().sum(1).mean())


def _missing(peer: Peer) -> str:
    return f"not run: pip install {peer.needs} in an environment of its own, then {peer.option} its python"
