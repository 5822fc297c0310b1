"""Figures as SVG, drawn here so that a report needs no library and no network.

Every mark carries its value as a ``<title>``; the report's script turns these into tooltips, and a browser without
scripts shows them itself. Series differ by colour, by shape and by dash, so none of the three is needed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.measure.exhibits import Chart, Series
from coterie.measure.findings import UNDEFENDED, Finding, Frontier, FrontierPoint
from coterie.measure.intervals import Interval
from coterie.measure.roc import Curve
from coterie.report.looks import COLOURS, Slots, shape, slots_in, slots_of
from coterie.report.markup import Html, element, join, trusted
from coterie.report.scales import Scale, domain, tick_labels
from coterie.report.values import defence_name, number, seconds, with_interval

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 46
MOST_MARKS = 20
"""A line with more points than this shows some of its marks, evenly, and the others only under the pointer."""
CHANCE = "chance"
"""A series of this name is where guessing lies, drawn as a reference."""
CLOSE = 0.004  # of an axis: lines no further apart than this cannot be told apart


@dataclass(frozen=True)
class Frame:
    """The axes of a figure."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str
    height: float = HEIGHT
    whole: bool = False  # whether half of what is counted across, such as rounds, makes no sense

    @classmethod
    def around(
        cls, x: tuple[float, float], y: tuple[float, float], x_label: str, y_label: str, height: float = HEIGHT
    ) -> Frame:
        across, upward = Scale(*x, LEFT, WIDTH - RIGHT), Scale(*y, height - BOTTOM, TOP)
        return cls(across, upward, x_label, y_label, height)

    def at(self, x: float, y: float) -> str:
        return f"{self.x(x):.1f} {self.y(y):.1f}"

    def axes(self) -> Html:
        ground, ys = self.y.start, self.y.ticks()
        xs = [value for value in self.x.ticks(6) if not self.whole or value.is_integer()]
        parts = []
        for value, label in zip(ys, tick_labels(ys), strict=True):
            place = f"{self.y(value):.1f}"
            parts += [
                element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place),
                element("text", label, class_="tick", x=LEFT - 7, y=place, dy="0.32em", text_anchor="end"),
            ]
        for value, label in zip(xs, tick_labels(xs), strict=True):
            place = f"{self.x(value):.1f}"
            parts += [
                element("line", class_="axis", x1=place, x2=place, y1=f"{ground:.1f}", y2=f"{ground + 4:.1f}"),
                element("text", label, class_="tick", x=place, y=f"{ground + 17:.1f}", text_anchor="middle"),
            ]
        middle = (self.y.start + self.y.end) / 2
        parts += [
            element("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{ground:.1f}", y2=f"{ground:.1f}"),
            element(
                "text",
                self.x_label,
                class_="label",
                x=(LEFT + WIDTH - RIGHT) / 2,
                y=self.height - 8,
                text_anchor="middle",
            ),
            element(
                "text",
                self.y_label,
                class_="label",
                transform=f"translate(13 {middle:.1f}) rotate(-90)",
                text_anchor="middle",
            ),
        ]
        return join(parts)

    def reference(self, value: float) -> Html:
        """A horizontal line; the legend names it, where no data can be in the way."""
        if not self.y.low <= value <= self.y.high:
            return trusted("")
        place = f"{self.y(value):.1f}"
        return element("line", class_="reference", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place)

    def svg(self, description: str, *content: str) -> Html:
        return element(
            "svg",
            self.axes(),
            *content,
            class_="chart",
            viewBox=f"0 0 {WIDTH} {self.height:g}",
            role="img",
            tabindex="0",
            aria_label=description,
        )


def line(chart: Chart, slots: Slots) -> Html:
    """Lines with bands for their intervals; a line breaks where a value is missing."""
    reference = [chart.reference[1]] if chart.reference else []
    bands = [bound for one in chart.series for bounds in (one.low, one.high) for bound in bounds]
    frame = Frame.around(
        domain((value for one in chart.series for value in one.x), rounded=False, air=0),
        domain([value for one in chart.series for value in one.y] + bands + reference),
        chart.x_label,
        chart.y_label,
    )
    frame = replace(frame, whole=chart.x_label == "round")
    looks = looks_in(chart, slots)
    drawn = [
        _chance(frame, one) if slot is None else _line(frame, one, slot, defence=one.name in slots)
        for one, slot in zip(chart.series, looks, strict=True)
    ]
    return frame.svg(describe(chart), _reference(frame, chart), *drawn)


def _line(frame: Frame, series: Series, slot: int, *, defence: bool) -> Html:
    banded = len(series.low) == len(series.high) == len(series.x) > 0
    points = [
        (index, x, y)
        for index, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        if math.isfinite(x) and math.isfinite(y)
    ]
    runs = _runs(points)
    parts = []
    if banded:
        parts += [_band(frame, series, [index for index, _, _ in run], slot) for run in runs]
    parts += [_path(frame, [(x, y) for _, x, y in run], slot) for run in runs]
    every = math.ceil(len(points) / MOST_MARKS)
    for place, (index, x, y) in enumerate(points):
        bounds = f" [{number(series.low[index])}, {number(series.high[index])}]" if banded else ""
        tip = (
            f"{defence_name(series.name)}\n{frame.x_label}: {number_or_whole(x)}\n{frame.y_label}: {number(y)}{bounds}"
        )
        parts.append(mark(frame, x, y, slot, tip, radius=3, hidden=place % every > 0))
    return _series(series.name, parts, defence=defence)


def looks_in(chart: Chart, slots: Slots) -> list[int | None]:
    """Of each series; none of what only says where guessing lies."""
    names = [one.name for one in chart.series if one.name != CHANCE or chart.kind != "line"]
    looks = dict(zip(names, slots_in(names, slots), strict=True))
    return [looks.get(one.name) for one in chart.series]


def covered(chart: Chart) -> str:
    """Which lines lie on one another, so that only the last can be seen; empty if none do."""
    values = [value for one in chart.series for value in one.y if math.isfinite(value)]
    reach = CLOSE * (max(values) - min(values)) if values else 0.0
    groups: list[list[Series]] = []
    for one in chart.series:
        alike = next((group for group in groups if _same(group[0], one, reach)), None)
        groups.append([one]) if alike is None else alike.append(one)
    said = [[defence_name(one.name) for one in group] for group in groups if len(group) > 1]
    return " ".join(f"The lines of {' and of '.join(names)} lie on one another." for names in said)


def _same(one: Series, other: Series, reach: float) -> bool:
    near = all(abs(a - b) <= reach for a, b in zip(one.y, other.y, strict=False))
    return list(one.x) == list(other.x) and len(one.y) == len(other.y) and near


def _chance(frame: Frame, series: Series) -> Html:
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
    line = "M" + "L".join(frame.at(x, y) for x, y in points) if points else ""
    return element("path", class_="reference", d=line)


def _runs(points: Sequence[tuple[int, float, float]]) -> list[list[tuple[int, float, float]]]:
    runs: list[list[tuple[int, float, float]]] = []
    for point in points:
        if runs and runs[-1][-1][0] == point[0] - 1:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _path(frame: Frame, points: Sequence[tuple[float, float]], slot: int) -> Html:
    return element("path", class_=f"line c{slot % COLOURS}", d="M" + "L".join(frame.at(x, y) for x, y in points))


def _band(frame: Frame, series: Series, indices: Sequence[int], slot: int) -> Html:
    known = [i for i in indices if math.isfinite(series.low[i]) and math.isfinite(series.high[i])]
    if not known:
        return trusted("")
    edge = [frame.at(series.x[i], series.high[i]) for i in known]
    edge += [frame.at(series.x[i], series.low[i]) for i in reversed(known)]
    return element("path", class_=f"band c{slot % COLOURS}", d="M" + "L".join(edge) + "Z")


def _reference(frame: Frame, chart: Chart) -> Html:
    return frame.reference(chart.reference[1]) if chart.reference else trusted("")


def scatter(chart: Chart, slots: Slots) -> Html:
    """Points; the shape says the series."""
    reference = [chart.reference[1]] if chart.reference else []
    frame = Frame.around(
        domain((value for one in chart.series for value in one.x), rounded=False),
        domain([value for one in chart.series for value in one.y] + reference, rounded=False),
        chart.x_label,
        chart.y_label,
        height=340,
    )
    parts = [_reference(frame, chart)]
    for one, slot in zip(chart.series, slots_in([one.name for one in chart.series], slots), strict=True):
        marks = [
            mark(frame, x, y, slot, f"{one.name}\n{chart.x_label}: {number(x)}\n{chart.y_label}: {number(y)}", 4)
            for x, y in zip(one.x, one.y, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        ]
        parts.append(_series(one.name, marks, defence=one.name in slots))
    return frame.svg(describe(chart), *parts)


def roc(title: str, findings: Sequence[Finding], slots: Slots) -> Html:
    """The curves of one attack under its defences, with the diagonal that guessing gives.

    What is drawn is the whole curve of the finding, whose area is the score beside it.
    """
    frame = Frame.around((0, 1), (0, 1), "false positive rate", "true positive rate", height=380)
    diagonal = element("path", class_="reference", d=f"M{frame.at(0, 0)}L{frame.at(1, 1)}")
    curves = []
    for one in findings:
        slot, points = slots[one.defence], corners(one.roc)
        marks = [
            mark(
                frame,
                x,
                y,
                slot,
                f"{defence_name(one.defence)}\nfalse positives: {x:.1%}\ntrue positives: {y:.1%}",
                3,
                hidden=True,
            )
            for x, y in points
        ]
        curves.append(_series(one.defence, [_path(frame, points, slot) if points else "", *marks], defence=True))
    summary = "; ".join(f"{defence_name(one.defence)}: {one.measure} {number(one.score)}" for one in findings)
    return frame.svg(f"ROC curves, {title}. {summary}.", diagonal, *curves)


def corners(curve: Curve | None) -> list[tuple[float, float]]:
    """A curve's points without those inside straight stretches."""
    points = list(zip(curve.false, curve.true, strict=True)) if curve else []
    kept = points[:1]
    for previous, here, following in zip(points, points[1:], points[2:], strict=False):
        turn = (here[0] - previous[0]) * (following[1] - here[1]) - (here[1] - previous[1]) * (following[0] - here[0])
        if abs(turn) > 1e-12:
            kept.append(here)
    return kept + points[1:][-1:]


def frontier(found: Frontier, slots: Slots) -> Html:
    """Leakage upward, utility to the right, time as the size of the mark; dots join what nothing else dominates."""
    points = [
        one for one in found.points if math.isfinite(one.utility.estimate) and math.isfinite(one.leakage.estimate)
    ]
    frame = Frame.around(
        domain(reach([one.utility for one in points])),
        domain([*reach([one.leakage for one in points]), found.chance]),
        f"{found.utility_measure} ({'higher' if found.higher_is_better else 'lower'} is better)",
        f"{found.leakage_measure} (lower is better)",
        height=340,
    )
    best = sorted((one.utility.estimate, one.leakage.estimate) for one in points if not one.dominated)
    edge = element("path", class_="frontier", d="M" + "L".join(frame.at(*point) for point in best)) if best else ""
    longest = max((one.seconds for one in points if math.isfinite(one.seconds)), default=0.0)
    groups, notes = [], Notes()
    for defence, slot in looks_of(found, slots).items():
        marks = [_setting(frame, one, slot, longest, notes) for one in points if one.defence == defence]
        groups.append(_series(defence, marks, defence=False))
    return frame.svg(f"{found.title}. {found.recommendation}", frame.reference(found.chance), edge, *groups)


def looks_of(found: Frontier, slots: Slots) -> dict[str, int]:
    """A sweep may name defences without the setting that the rest of the report names them with: then anew."""
    names = dict.fromkeys(one.defence for one in found.points)
    return (
        {name: slots[name] for name in names}
        if slots.keys() >= names.keys()
        else slots_of(("", name) for name in names)
    )


def reach(found: Sequence[Interval]) -> list[float]:
    """What an axis should show: all values, and intervals as far as they do not push the values together."""
    values = [one.estimate for one in found if math.isfinite(one.estimate)]
    if not values:
        return []
    least, most = min(values), max(values)
    room = (most - least) or abs(most) / 2
    ends = [end for one in found for end in (one.low, one.high) if math.isfinite(end)]
    return [*values, *(min(max(end, least - room), most + room) for end in ends)]


class Notes:
    """Words beside marks, each where no other is in the way."""

    LETTER, LINE = 6.6, 13.0  # what a letter takes across and a line downward, at most

    def __init__(self) -> None:
        self.taken: list[tuple[float, float, float, float]] = []

    def place(self, text: str, x: float, y: float, away: float) -> Html:
        wide = len(text) * self.LETTER
        for leftward, down in ((False, -4.0), (False, 12.0), (True, -4.0), (True, 12.0), (False, 25.0), (False, -17.0)):
            start = x - away - wide if leftward else x + away
            box = (start, y + down - self.LINE + 3, start + wide, y + down + 3)
            inside = start >= LEFT and start + wide <= WIDTH + 8
            if inside and not any(_overlap(box, other) for other in self.taken):
                break
        self.taken.append(box)
        anchor, at = ("end", x - away) if leftward else ("start", x + away)
        place = {"x": f"{at:.1f}", "y": f"{y + down:.1f}"}
        return element("text", text, class_="note", text_anchor=anchor, **place)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _setting(frame: Frame, point: FrontierPoint, slot: int, longest: float, notes: Notes) -> Html:
    x, y = point.utility.estimate, point.leakage.estimate
    share = point.seconds / longest if longest > 0 and math.isfinite(point.seconds) else 0.0
    radius = 3.5 + 3.5 * math.sqrt(share)
    state = "recommended" if point.recommended else "dominated" if point.dominated else "not dominated"
    tip = (
        f"{point.setting or f'{defence_name(point.defence)}, strength {point.strength:g}'}: {state}\n"
        f"{frame.y_label}: {with_interval(point.leakage)}\n{frame.x_label}: {with_interval(point.utility)}\n"
        f"time: {seconds(point.seconds)}"
    )
    parts: list[str] = []
    if math.isfinite(point.utility.low) and math.isfinite(point.utility.high):
        low, high = frame.x.within(point.utility.low), frame.x.within(point.utility.high)
        ends = f"M{frame.at(low, y)}L{frame.at(high, y)}"
        parts.append(element("path", class_="whisker", d=ends))
    if math.isfinite(point.leakage.low) and math.isfinite(point.leakage.high):
        low, high = frame.y.within(point.leakage.low), frame.y.within(point.leakage.high)
        ends = f"M{frame.at(x, low)}L{frame.at(x, high)}"
        parts.append(element("path", class_="whisker", d=ends))
    if point.recommended:
        ring = {"cx": f"{frame.x(x):.1f}", "cy": f"{frame.y(y):.1f}", "r": f"{radius + 5:.1f}"}
        parts.append(element("circle", class_="ring", **ring))
    parts.append(mark(frame, x, y, slot, tip, radius, hollow=point.dominated))
    if not point.dominated and point.defence != UNDEFENDED:
        name = (point.note or f"{point.strength:g}") + (" · recommended" if point.recommended else "")
        away = radius + (9 if point.recommended else 4)
        parts.append(notes.place(name, frame.x(x), frame.y(y), away))
    return join(parts)


def mark(
    frame: Frame, x: float, y: float, slot: int, tip: str, radius: float, *, hidden: bool = False, hollow: bool = False
) -> Html:
    look = " ".join(["mark", f"c{slot % COLOURS}", *(["quiet"] if hidden else []), *(["hollow"] if hollow else [])])
    path = shape(slot, frame.x(x), frame.y(y), radius)
    return element("path", element("title", tip), class_=look, d=path)


def _series(name: str, parts: Sequence[str], *, defence: bool) -> Html:
    """A group that a legend can hide and, if it belongs to a defence, a filter too."""
    return element("g", *parts, class_="series", data_series=name, data_defence=name if defence else None)


def describe(chart: Chart) -> str:
    """What the figure shows, for those who do not see it."""
    ends = []
    for one in chart.series:
        finite = [value for value in one.y if math.isfinite(value)]
        if chart.kind == "scatter":
            ends.append(f"{defence_name(one.name)}: {len(finite)} points")
        elif finite:
            ends.append(f"{defence_name(one.name)}: from {number(finite[0])} to {number(finite[-1])}")
        else:
            ends.append(f"{defence_name(one.name)}: no values")
    return f"{chart.title}. {chart.y_label} against {chart.x_label}. " + "; ".join(ends) + "."


def number_or_whole(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else number(value)
