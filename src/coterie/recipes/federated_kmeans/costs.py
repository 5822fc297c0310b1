"""Paper 002, Figures 1 to 4: what privacy costs, level by level and epsilon by epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.measure.judge import t_interval
from coterie.measure.reproduced import Claim, Line
from coterie.recipes.base import Settings
from coterie.recipes.federated_kmeans import runs
from coterie.run.jobs import Job, Result

PRIVATE, TUNED, KFED, BASELINE = "FedDP-KMeans", "FedDP-KMeans, tuned", "k-FED", "k-FED, then noisy Lloyd"
PUBLIC = "the server's points alone"
WITHOUT_NOISE = (KFED, PUBLIC)
REFERENCE = "published: the public code, seed 0"


def data_folder(settings: Settings) -> str | None:
    return str(settings.data.resolve()) if settings.data else None


def slug(*words: object) -> str:
    return "-".join(str(word).replace(" ", "_").replace(",", "").replace("'", "") for word in words)


def line_of(row: str, published: float | None, values: Sequence[float], note: str = "") -> Line:
    return Line(row, published, sum(values) / len(values), *t_interval(values), note, len(values))


@dataclass(frozen=True)
class Point:
    """One run a seed: a method at an epsilon, and the published cost and accuracy where there are any."""

    method: str
    level: str
    epsilon: float
    cost: float | None = None
    accuracy: float | None = None
    source: str = ""

    @property
    def row(self) -> str:
        at = "" if self.method in WITHOUT_NOISE else f", epsilon {self.epsilon:g}"
        return f"{self.level} level, {self.method}{at}"


@dataclass(frozen=True)
class Figure:
    """Points on one kind of data."""

    data: str
    sizes: Mapping[str, tuple[int, int]]  # clients and points each, by level
    points: tuple[Point, ...]
    excess: bool = False  # show how far above the optimum, and nothing else

    def jobs(self, settings: Settings) -> Sequence[Job]:
        found = []
        for point in self.points:
            if settings.wants(point.row):
                clients, each = self.sizes[point.level]
                for seed in settings.seeds:
                    arguments = {
                        "name": self.data,
                        "clients": clients,
                        "points": each,
                        "method": point.method,
                        "level": point.level,
                        "epsilon": point.epsilon,
                        "seed": seed,
                        "data": data_folder(settings) if self.data == "census" else None,
                    }
                    found.append(Job(self._key(point, seed), runs.clustering, arguments))
        return found

    def _key(self, point: Point, seed: int) -> str:
        return slug(self.data, point.level, point.method, point.epsilon, f"seed{seed}")

    def lines(self, settings: Settings, results: Mapping[str, Result]) -> Sequence[Line]:
        rows = []
        for point in self.points:
            found = [results[key] for seed in settings.seeds if (key := self._key(point, seed)) in results]
            if not found:
                continue
            best = sum(result["optimum"] for result in found) / len(found)
            mean = sum(result["cost"] for result in found) / len(found)
            note = "; ".join(filter(None, [f"{mean:.4f}; Lloyd without noise: {best:.4f}", point.source]))
            if self.excess:
                above = [100 * (result["cost"] / result["optimum"] - 1) for result in found]
                rows.append(line_of(f"{point.row}: above the optimum, %", None, above))
                continue
            rows.append(line_of(f"{point.row}: cost", point.cost, [result["cost"] for result in found], note))
            if "accuracy" in found[0]:
                shares = [100 * result["accuracy"] for result in found]
                rows.append(line_of(f"{point.row}: accuracy, %", point.accuracy, shares, point.source))
        return rows


GAUSSIAN_SIZES = {"record": (100, 1000), "client": (2000, 50)}


def _curve(level: str, epsilons: Sequence[float]) -> tuple[Point, ...]:
    return tuple(Point(method, level, epsilon) for epsilon in epsilons for method in (PRIVATE, BASELINE))


def _without_noise(level: str) -> tuple[Point, ...]:
    return tuple(Point(method, level, math.inf) for method in WITHOUT_NOISE)


FIGURE_1 = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    (
        *_curve("record", (0.5, 1.0)),
        Point(PRIVATE, "record", 2.5, None, 97.62, "published in the text"),
        Point(BASELINE, "record", 2.5),
        Point(PRIVATE, "record", 3.1326, 49.9554, 98.47, REFERENCE),
        Point(KFED, "record", math.inf, 54.6385, 58.27, f"{REFERENCE}; it sends raw records, see the notes"),
        Point(PUBLIC, "record", math.inf),
    ),
)
FIGURE_2 = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    (
        *_curve("client", (0.5, 1.0, 1.5)),
        Point(PRIVATE, "client", 2.5558, 50.5728, 97.62, REFERENCE),
        Point(BASELINE, "client", 2.5558),
        *_without_noise("client"),
    ),
)
CENSUS_SIZES = {"record": (51, 0), "client": (1000, 0)}
FIGURE_3 = Figure(
    "census",
    CENSUS_SIZES,
    (
        *_curve("record", (0.5, 1.0, 3.0)),
        *_without_noise("record"),
        *_curve("client", (1.0, 3.0, 10.0)),
        *_without_noise("client"),
    ),
)
FIGURE_4 = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    tuple(Point(PRIVATE, level, epsilon) for level in ("record", "client") for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0)),
    excess=True,
)
BEST = Figure(
    "gaussians",
    GAUSSIAN_SIZES,
    (
        Point(TUNED, "record", 3.0, 49.9554, 98.47, f"{REFERENCE}, at epsilon 3.133"),
        Point(TUNED, "record", 1.0),
        Point(TUNED, "record", 0.5),
        Point(TUNED, "client", 3.0, 50.5728, 97.62, f"{REFERENCE}, at epsilon 2.556"),
        Point(TUNED, "client", 1.0),
        Point(TUNED, "client", 0.5),
    ),
)


def _value(lines: Sequence[Line], row: str) -> Line | None:
    return next((line for line in lines if line.row == row), None)


def _is_below(one: Line, other: Line) -> bool | None:
    """None where a 95 % interval of the difference holds 0: independent intervals add up as squares."""
    reach = math.hypot(one.high - one.ours, other.high - other.ours)
    return one.ours < other.ours if abs(one.ours - other.ours) > reach else None


def crossing_claims(level: str, lines: Sequence[Line]) -> Sequence[Claim]:
    """FedDP-KMeans beside k-FED with a noisy step at each epsilon, and beside what needs no noise."""
    private, found = f"{level} level, {PRIVATE}, epsilon ", []
    epsilons = [line.row.removeprefix(private).split(":")[0] for line in lines if line.row.startswith(private)]
    for epsilon in sorted(set(epsilons), key=float):
        ours = _value(lines, f"{private}{epsilon}: cost")
        others = {
            "k-FED with a noisy step": f"{level} level, {BASELINE}, epsilon {epsilon}: cost",
            "k-FED without noise": f"{level} level, {KFED}: cost",
            "a clustering of the server's points alone": f"{level} level, {PUBLIC}: cost",
        }
        for name, row in others.items():
            other = _value(lines, row)
            if ours is not None and other is not None:
                text = f"{level} level, epsilon {epsilon}: FedDP-KMeans costs less than {name}"
                found.append(Claim(text, _is_below(ours, other), f"{ours.ours:.4f} against {other.ours:.4f}"))
    return found


def reference_claims(lines: Sequence[Line]) -> Sequence[Claim]:
    found = []
    for level, tolerance in (("record", 0.001), ("client", 0.01)):
        line = _value(lines, f"{level} level, {TUNED}, epsilon 3: cost")
        if line is not None and line.published is not None:
            most = line.published * (1 + tolerance)
            text = f"{level} level: within {100 * tolerance:g} % of the public code's cost, or below it"
            found.append(Claim(text, line.ours <= most, f"{line.ours:.4f} against {line.published:.4f}"))
    return found
