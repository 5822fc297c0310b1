"""Vertical k-means beside scikit-learn's Lloyd on the joined table: a step in the open, and under masked sums.

And a private join beside one in the open, on so many identifiers that it takes seconds: it grows with their number;
sums of distances under CKKS beside masked ones, on so few records that it takes seconds; and proofs of range.
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.bench.ratio import Ratio
from coterie.bench.registry import Options
from coterie.data.alignment import in_the_open
from coterie.data.federation import Examples, VerticalFederation
from coterie.data.partition.features import Vertical
from coterie.defences.secure_sums import PairwiseMasks, SecureSums
from coterie.errors import require
from coterie.estimators.columns import in_private
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.protocols.clusterings.vertical_kmeans import Start, VerticalKMeans
from coterie.rng import Rng
from coterie.seal.ckks import Ckks
from coterie.seal.range_proofs import Committed, chance, holds
from coterie.wire.codec import encode

RECORDS, COLUMNS, PARTIES, CLUSTERS = 1_000_000, 40, 4, 10
FEW, MANY = 1, 11  # steps whose difference is timed: what a run costs besides its steps drops out
OPEN, MASKED = 1 / 2, 1 / 10  # within so many times of scikit-learn


def vertical(options: Options) -> Iterator[Ratio]:
    yield from steps(options)
    yield joined()
    yield encrypted()
    yield proven()


def proven(numbers: int = 20, bits: int = 5, sampled: int = 64) -> Ratio:
    """Processor seconds to prove that a number has so many bits, beside those to check it."""
    mine = Committed([place % (1 << bits) for place in range(numbers)], bits)
    start = time.process_time()
    points = mine.points
    committed = (time.process_time() - start) / numbers
    start = time.process_time()
    proofs = [mine.proof(place, b"bench") for place in range(numbers)]
    ours = (time.process_time() - start) / numbers
    start = time.process_time()
    fine = all(holds(point, proof, bits, b"bench") for point, proof in zip(points, proofs, strict=True))
    theirs = (time.process_time() - start) / numbers
    require(fine, "proofs", "refused", "must hold: a benchmark of what does not work says nothing")
    caught = chance(10_000_000, 100_000, sampled)
    text = (
        f"beside checking it; {160 * bits} bytes; a commitment takes {committed * 1e6:.0f} us, so ten million "
        f"take {committed * 1e7 / 60:.0f} min; {sampled} of its numbers, proven in {ours * sampled:.2f} s, "
        f"catch whoever lies in 1 % of them with a chance of {caught:.2f}"
    )
    return Ratio(f"proof that a number has {bits} bits", ours, "s of processor", theirs, None, setup=text)


def encrypted(records: int = 20_000, clusters: int = CLUSTERS, parties: int = PARTIES) -> Ratio:
    """Processor seconds to seal a step's distances of all parties, add them up and open the sum, which a party does."""
    distances = torch.rand(parties, records * clusters, generator=torch.Generator().manual_seed(0))
    cipher = Ckks(members=parties)
    key = cipher.keygen()
    start = time.process_time()
    batch = cipher.seal(distances, key, range(parties))
    batch.add(torch.ones(parties, 1)).open(key)
    ours = time.process_time() - start
    x = torch.rand(records, parties)
    federation = Vertical(parties).split(
        Examples(x, torch.zeros(records, dtype=torch.int64), 1, "uniform"), Rng.seeded(0)
    )
    (masked,) = steps_of(partial(our_steps, federation, clusters, SecureSums()), repeats=1)
    each = len(encode(batch)) / parties
    text = (
        f"beside masked sums; a party sends {each / records:.0f} bytes a record and step, at a million "
        f"{each / records / 1e3:.1f} GB and {ours / records * 1e6:.0f} s of processor; whoever has the key, a "
        "party, sees the totals"
    )
    name = f"CKKS sums of a step's distances: {records:,} records, {parties} parties, k = {clusters}"
    return Ratio(name, ours, "s of processor", masked, None, setup=text)


def joined(identifiers: int = 2000, parties: int = 2) -> Ratio:
    """Processor seconds to join so many identifiers a party, half of which all have."""
    own = [np.arange(identifiers) + party * identifiers // 2 for party in range(parties)]
    times = []
    for join in (in_private, in_the_open):
        start = time.process_time()
        join(own)
        times.append(max(time.process_time() - start, 1e-9))
    a_million = times[0] / identifiers * 1e6 / 3600
    text = (
        f"beside a join in the open; a million a party take {a_million:.2f} h of one core, and {parties} cores share it"
    )
    name = f"private set intersection: {identifiers:,} identifiers a party, {parties} parties"
    return Ratio(name, times[0], "s of processor", times[1], None, setup=text)


def steps(
    options: Options, records: int = RECORDS, columns: int = COLUMNS, parties: int = PARTIES, clusters: int = CLUSTERS
) -> Iterator[Ratio]:
    """Processor seconds a step; the data have no clusters, so that none of the runs ends early."""
    draws = torch.Generator().manual_seed(options.seed)
    x = torch.rand(records, columns, generator=draws)
    federation = Vertical(parties).split(
        Examples(x, torch.zeros(records, dtype=torch.int64), 1, "uniform"), Rng.seeded(options.seed)
    )
    chosen = x[torch.randperm(records, generator=draws)[:clusters]].numpy()
    beside = partial(_scikit, x.numpy(), chosen)
    shape = f"{records:,} records of {columns} columns, {parties} parties, k = {clusters}"
    setup = f"scikit-learn's KMeans (lloyd) on the joined table, a step as the difference of {MANY} and {FEW}"
    plans = (
        ("in the open", Defence(), OPEN),
        ("masked sums, words of 4 bytes", SecureSums(PairwiseMasks(width=4)), MASKED),
        ("masked sums, words of 8 bytes", SecureSums(), None),
    )
    for name, defence, bound in plans:
        ours, theirs = steps_of(partial(our_steps, federation, clusters, defence), beside, repeats=options.repeats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        text = f"{setup}; peak of the process so far {peak:.1f} GiB"
        yield Ratio(f"vertical k-means, a step {name}: {shape}", ours, "s of processor", theirs, bound, setup=text)


def steps_of(*runs: Callable[[int], object], repeats: int) -> list[float]:
    """Of each, a step in processor time: the median of several differences, taken by turns on the same machine."""
    for run in runs:
        run(FEW)  # caches and threads then exist
    found = [[_a_step(run) for run in runs] for _ in range(repeats)]
    return [max(median(own), 1e-9) for own in zip(*found, strict=True)]


def _a_step(run: Callable[[int], object]) -> float:
    times = []
    for count in (FEW, MANY):
        start = time.process_time()
        run(count)
        times.append(time.process_time() - start)
    return (times[1] - times[0]) / (MANY - FEW)


def our_steps(federation: VerticalFederation, clusters: int, defence: Defence, steps: int) -> object:
    protocol = VerticalKMeans(clusters, steps, start_on=Start.RECORDS)
    with Ring(protocol, federation, None, defence, Roots.seeded(0), processes=0) as ring:
        return ring.run()


def _scikit(x: NDArray[np.float32], centres: NDArray[np.float32], steps: int) -> object:
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it does not converge in so few steps, and says so
        return KMeans(len(centres), init=centres, n_init=1, max_iter=steps, tol=0.0, algorithm="lloyd").fit(x)
