"""A radar chart: several measures at once, each on a spoke of its own from 0 in the middle to 1 at the rim."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.exhibits import Chart
from coterie.report.looks import COLOURS, Slots, shape, slots_in
from coterie.report.markup import Html, element
from coterie.report.values import defence_name, number

SIDE, RIM = 360, 120
RINGS = (0.25, 0.5, 0.75, 1.0)


def radar(chart: Chart, slots: Slots) -> Html:
    """One closed line a series; ``chart.spokes`` names the measures, and a series' y has their values in 0..1."""
    count = len(chart.spokes)
    parts = [_closed([ring] * count, "grid") for ring in RINGS]
    for index, name in enumerate(chart.spokes):
        x, y = _at(index, count, 1.0)
        anchor = "middle" if abs(x - SIDE / 2) < 1 else "start" if x > SIDE / 2 else "end"
        label = {"x": f"{SIDE / 2 + (x - SIDE / 2) * 1.12:.1f}", "y": f"{SIDE / 2 + (y - SIDE / 2) * 1.14:.1f}"}
        parts.append(element("line", class_="grid", x1=SIDE / 2, y1=SIDE / 2, x2=f"{x:.1f}", y2=f"{y:.1f}"))
        parts.append(element("text", name, class_="tick", text_anchor=anchor, **label))
    for one, slot in zip(chart.series, slots_in([one.name for one in chart.series], slots), strict=True):
        marks = []
        for index, value in enumerate(one.y):
            tip = f"{defence_name(one.name)}\n{chart.spokes[index]}: {number(value)}"
            place = shape(slot, *_at(index, count, value), 3.5)
            marks.append(element("path", element("title", tip), class_=f"mark c{slot % COLOURS}", d=place))
        edge = _closed(one.y, f"line c{slot % COLOURS}")
        parts.append(element("g", edge, *marks, class_="series", data_series=one.name))
    said = "; ".join(f"{defence_name(one.name)}: {', '.join(map(number, one.y))}" for one in chart.series)
    description = f"{chart.title}. {', '.join(chart.spokes)}. {said}."
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {SIDE} {SIDE}", role="img", aria_label=description)


def _at(index: int, count: int, value: float) -> tuple[float, float]:
    turn = 2 * math.pi * index / count
    reach = RIM * min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
    return SIDE / 2 + reach * math.sin(turn), SIDE / 2 - reach * math.cos(turn)


def _closed(values: Sequence[float], look: str) -> Html:
    places = [_at(index, len(values), value) for index, value in enumerate(values)]
    return element("path", class_=look, d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) + "Z", fill="none")
