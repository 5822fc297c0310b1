"""The benchmarks: each measures ours and a baseline in one run and gives ``Ratio`` rows.

A new one is a function that takes ``Options`` and yields rows, and a line in ``BENCHMARKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from coterie.bench.ratio import Ratio
from coterie.errors import nearest, require


@dataclass(frozen=True)
class Options:
    """What a user may set."""

    repeats: int = 5
    seed: int = 0
    flower_python: Path | None = None  # an interpreter that can import flwr[simulation] and torch
    pfl_python: Path | None = None  # an interpreter that can import pfl and torch
    feddp_kmeans: Path | None = None  # a folder with the public code of FedDP-KMeans, which that interpreter can run
    location30: Path | None = None  # a folder with Location-30
    lira: Path | None = None  # a folder with LiRA's own plot.py
    privacy_meter: Path | None = None  # a folder with Privacy Meter's attacks.py
    science_python: Path | None = None  # an interpreter that can import what these two need, and the last one
    spu_python: Path | None = None  # an interpreter that can import spu
    vertcohirf: Path | None = None  # a folder with the suite of VertCoHiRF

    def __post_init__(self) -> None:
        require(self.repeats >= 1, "repeats", self.repeats, "must be at least 1")


@dataclass(frozen=True)
class Benchmark:
    about: str
    home: str  # module:function, imported when it is run

    def run(self, options: Options) -> Iterable[Ratio]:
        module, function = self.home.split(":")
        bench: Callable[[Options], Iterable[Ratio]] = getattr(import_module(module), function)
        return bench(options)


BENCHMARKS: Mapping[str, Benchmark] = {
    "startup": Benchmark("help and import of the package", "coterie.bench.startup:startup"),
    "ifca": Benchmark("IFCA with 120 clients of the dense network", "coterie.bench.ring:ifca"),
    "trainers": Benchmark("optimisers, and IFCA beside its authors' loop", "coterie.bench.trainers:trainers"),
    "neighbour": Benchmark("a round while half of the cores are taken", "coterie.bench.neighbour:busy_machine"),
    "modules": Benchmark("CNNs and a GRU, client by client", "coterie.bench.ring:modules"),
    "scaling": Benchmark("time and memory up to 10,000 clients", "coterie.bench.scaling:scaling"),
    "enrolled": Benchmark("a million enrolled, a thousand asked a round", "coterie.bench.enrolled:enrolled"),
    "deploy": Benchmark("a round on real processes beside its payload", "coterie.deploy.overhead:overhead"),
    "deploy_many": Benchmark("64 deployed clients on this machine", "coterie.deploy.overhead:many"),
    "property": Benchmark(
        "clipped gradients, and property inference beside a round", "coterie.bench.property:property_inference"
    ),
    "ciphers": Benchmark("sealed sums beside TenSEAL and the paper's tables", "coterie.bench.ciphers:ciphers"),
    "masks": Benchmark("secure sums' set-up for a thousand clients", "coterie.bench.masks:set_up"),
    "kmeans": Benchmark("FedDP-KMeans: a loop, the public code, ten million points", "coterie.bench.kmeans:kmeans"),
    "vertical": Benchmark("vertical k-means, a step beside scikit-learn's", "coterie.bench.vertical:vertical"),
    "vertical_peers": Benchmark(
        "vertical clustering beside SPU and Li, Wang and Li's code, if given", "coterie.bench.vertical_peers:peers"
    ),
    "duel": Benchmark("a generator against a discriminator, beside a bare loop", "coterie.bench.duel:duel"),
    "noise": Benchmark("discrete noise and exact sums beside floats", "coterie.bench.noise:noise"),
    "shadows": Benchmark("shadow federations together and one by one", "coterie.bench.shadows:both"),
    "canaries": Benchmark("what canaries prove of DP-SGD, honest and broken", "coterie.bench.canaries:canaries"),
    "members": Benchmark("LiRA and RMIA beside their authors' code, if given", "coterie.bench.members:members"),
    "peers": Benchmark("Flower's simulation and pfl, if given", "coterie.bench.beside_peers:peers"),
}


def run_benchmarks(names: Sequence[str] = (), options: Options | None = None) -> Iterator[tuple[str, Ratio]]:
    """The rows of the benchmarks with these names (none: of all) as they are measured, each with the name."""
    chosen = list(names) or list(BENCHMARKS)
    for name in chosen:
        require(name in BENCHMARKS, "benchmark", name, nearest(name, BENCHMARKS))
    for name in chosen:
        for row in BENCHMARKS[name].run(options or Options()):
            yield name, row
