"""Figures 4 and 9 as they are drawn: how accuracy grows, over all clusters and in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coterie.measure.exhibits import Chart, Series
from coterie.recipes.mingledpie.tables.entries import Entries, chosen
from coterie.recipes.settings import Settings
from coterie.run.jobs import Result

Curve = Sequence[Sequence[float]]  # (round, accuracy) pairs
Charts = Callable[[Settings, Mapping[str, Result]], Sequence[Chart]]


def drawn(entries: Entries, by: str, curves: Callable[[Result], Mapping[str, Curve]], caption: str) -> Charts:
    """One chart for each value of the key's ``by``, one line for each curve of each run, of the first seed."""

    def charts(settings: Settings, results: Mapping[str, Result]) -> Sequence[Chart]:
        lines: dict[str, dict[str, Curve]] = {}
        for entry in chosen(entries, settings):
            result = results.get(entry.job_key(settings.seeds[0]), {})
            for name, curve in curves(result).items():
                label = " ".join(word for word in (str(entry.key.get("method") or ""), name) if word)
                lines.setdefault(str(entry.key[by]), {})[label] = curve
        return [
            Chart(title, caption, "round", "accuracy, %", [_series(name, curve) for name, curve in named.items()])
            for title, named in lines.items()
        ]

    return charts


def _series(name: str, curve: Curve) -> Series:
    return Series(name, [point[0] for point in curve], [point[1] for point in curve])


def over_all(result: Result) -> Mapping[str, Curve]:
    return {"": result["curve"]} if result.get("curve") else {}


def in_each(result: Result) -> Mapping[str, Curve]:
    return {f"cluster {number}": curve for number, curve in enumerate(result.get("cluster curves", ()))}
