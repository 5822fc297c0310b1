"""Scales, ticks and coordinates worked out by hand, and colours that hold up without full colour vision."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib.resources import files
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.sample import findings, frontier, roc_of

from coterie.measure.exhibits import Chart, Series
from coterie.measure.intervals import Interval
from coterie.measure.roc import MOST_POINTS, Curve
from coterie.report import charts
from coterie.report.looks import COLOURS, SHAPES, shape, slots_in, slots_of
from coterie.report.radar import radar
from coterie.report.scales import Scale, domain, tick_labels, ticks
from coterie.report.terminal import HEAT
from coterie.report.values import HEAT_LEVELS, heat_level, number, power, seconds, size

STYLE = files("coterie.report").joinpath("report.css").read_text("utf-8")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 40, [0, 10, 20, 30, 40]),
        (0.03, 0.47, [0.1, 0.2, 0.3, 0.4]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (990, 1010, [990, 995, 1000, 1005, 1010]),
    ],
)
def test_ticks_are_round_values_within_the_domain(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_ordered_and_inside(low: float, span: float) -> None:
    high = low + span
    found = ticks(low, high)
    assert found == sorted(set(found))
    assert len(found) <= 7
    slack = 1e-6 * span
    assert all(low - slack <= value <= high + slack for value in found)


def test_tick_labels_share_their_decimals() -> None:
    assert tick_labels([-0.5, 0.0, 0.5]) == ["−0.5", "0.0", "0.5"]
    assert tick_labels([0, 10, 20]) == ["0", "10", "20"]
    assert tick_labels([0.95, 1.0, 1.05]) == ["0.95", "1.00", "1.05"]
    assert tick_labels([0, 200_000, 400_000]) == ["0", "2e+05", "4e+05"]


def test_domains_reach_the_next_ticks_and_ignore_what_is_not_finite() -> None:
    assert domain([0.03, 0.97, math.nan, math.inf]) == (0.0, 1.0)
    assert domain([0, 10], rounded=False, air=0.1) == (-1.0, 11.0)
    assert domain([]) == (0.0, 1.0)
    assert domain([math.nan]) == (0.0, 1.0)
    low, high = domain([5.0, 5.0])
    assert low < 5 < high


def test_a_scale_is_a_straight_line() -> None:
    scale = Scale(0, 10, 100, 50)
    assert [scale(0), scale(5), scale(10)] == [100, 75, 50]


def test_a_line_goes_where_it_should() -> None:
    chart = Chart("t", "", "round", "accuracy", [Series("a", [0, 5, 10], [0.0, 0.5, 1.0])])
    # x: 56..424 over 0..10; y: 244..14 over 0..1
    assert 'd="M56.0 244.0L240.0 129.0L424.0 14.0"' in charts.line(chart, {})


def test_a_line_breaks_at_missing_values() -> None:
    series = Series("a", [0, 1, 2, 3, 4], [0.0, 0.5, math.nan, 0.5, 1.0])
    svg = charts.line(Chart("t", "", "x", "y", [series]), {})
    assert paths(svg, "line") == ["M56.0 244.0L148.0 129.0", "M332.0 129.0L424.0 14.0"]
    assert "nan" not in svg
    assert svg.count("<title>") == 4


def test_there_is_no_half_round() -> None:
    chart = Chart("t", "", "round", "accuracy", [Series("a", [0, 1], [0.2, 0.7])])
    across = re.findall(r'text-anchor="middle">([^<]*)</text>', charts.line(chart, {}))
    assert across == ["0", "1", "round", "accuracy"]


def test_marks_of_a_long_line_do_not_hide_it() -> None:
    chart = Chart("t", "", "x", "y", [Series("a", list(range(60)), [0.5] * 59 + [1.0])])
    drawn = charts.line(chart, {})
    assert drawn.count("mark c0") == 60
    assert drawn.count("quiet") == 40


def test_lines_on_one_another_are_named() -> None:
    series = [Series(name, [0, 1, 2], y) for name, y in (("none", [0, 0.5, 1]), ("b", [0, 0.501, 1]), ("c", [0, 1, 1]))]
    assert charts.covered(Chart("t", "", "x", "y", series)) == "The lines of undefended and of b lie on one another."
    assert charts.covered(Chart("t", "", "x", "y", series[1:])) == ""


def test_chance_is_a_reference_and_takes_no_look() -> None:
    chart = Chart("t", "", "x", "y", [Series("chance", [0, 1], [0, 1]), Series("attack", [0, 1], [1, 1])])
    assert charts.looks_in(chart, {}) == [None, 0]
    assert 'class="reference" d="M' in charts.line(chart, {})


def test_bands_follow_the_interval_up_and_back() -> None:
    series = Series("a", [0, 1], [0.5, 0.5], low=[0.0, 0.0], high=[1.0, 1.0])
    svg = charts.line(Chart("t", "", "x", "y", [series]), {})
    assert paths(svg, "band") == ["M56.0 14.0L424.0 14.0L424.0 244.0L56.0 244.0Z"]


def test_roc_corners() -> None:
    finding = replace(findings()[0], roc=Curve([0, 0, 0.5, 1], [0, 0.5, 1, 1]))
    svg = charts.roc("t", [finding], slots_of([("", "none")]))
    # a plot of 368 by 320 from (56, 334)
    assert paths(svg, "line") == ["M56.0 334.0L56.0 174.0L240.0 14.0L424.0 14.0"]
    assert paths(svg, "reference") == ["M56.0 334.0L424.0 14.0"]


def test_straight_stretches_need_no_points_and_corners_do() -> None:
    assert charts.corners(Curve([0, 0.25, 0.5, 1], [0, 0.25, 0.5, 1])) == [(0, 0), (1, 1)]
    assert charts.corners(Curve([0, 0, 1], [0, 1, 1])) == [(0, 0), (0, 1), (1, 1)]
    assert not charts.corners(None)


def test_the_drawn_curve_has_the_printed_area() -> None:
    """Read back from the picture: a plot of 368 by 320 from (56, 334)."""
    for area in (0.55, 0.769, 0.98):
        curve = roc_of(area, points=5000).thinned()
        assert len(curve.false) <= MOST_POINTS
        finding = replace(findings()[0], roc=curve, interval=Interval.unknown(area))
        (drawn,) = paths(charts.roc("t", [finding], slots_of([("", "none")])), "line")
        places = [tuple(map(float, place.split())) for place in drawn[1:].split("L")]
        points = [((x - 56) / 368, (334 - y) / 320) for x, y in places]
        found = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
        assert found == pytest.approx(area, abs=5e-4)  # what is printed has three digits


def test_the_frontier_joins_what_is_not_dominated_and_marks_the_recommended() -> None:
    found = frontier()
    svg = charts.frontier(found, slots_of([("", "none")]))
    assert len(paths(svg, "frontier")[0].split("L")) == sum(not point.dominated for point in found.points)
    assert svg.count('class="ring"') == 1
    assert svg.count("hollow") == sum(point.dominated for point in found.points)
    assert "0.6 · recommended" in svg


def test_a_setting_without_a_measurement_is_left_out() -> None:
    found = frontier()
    lost = replace(found.points[0], leakage=Interval.unknown(math.nan))
    svg = charts.frontier(replace(found, points=[lost, *found.points[1:]]), {})
    assert svg.count("<title>") == len(found.points) - 1
    assert "nan" not in svg
    ElementTree.fromstring(charts.frontier(replace(found, points=[]), {}))


def test_every_mark_says_its_value() -> None:
    chart = Chart("t", "", "first axis", "second axis", [Series("a", [1, 2], [0.25, math.nan])], kind="scatter")
    titles = [title.text for title in ElementTree.fromstring(charts.scatter(chart, {})).iter("title")]
    assert titles == ["a\nfirst axis: 1.000\nsecond axis: 0.250"]


def test_defences_look_alike_in_all_figures() -> None:
    slots = slots_of([("f", "b"), ("f", "none"), ("f", "a"), ("g", "b")])
    assert slots == {"none": 0, "b": 1, "a": 2}
    assert slots_in(["a", "none"], slots) == [2, 0]
    assert slots_in(["a", "cluster 1"], slots) == [0, 1]


def test_defences_of_one_family_differ_in_colour_and_all_in_look() -> None:
    """Eleven defences, of which some are in several families: more than there are colours."""
    used = [("kmeans", f"noise {n}") for n in range(3)] + [("profiling", f"mingling {n}") for n in range(3)]
    used += [("property", f"other {n}") for n in range(4)] + [("property", "DP-SGD"), ("acquisition", "DP-SGD")]
    slots = slots_of(used)
    looks = {(slot % COLOURS, slot % SHAPES) for slot in slots.values()}
    assert len(looks) == len(slots) == 12
    for family in {family for family, _ in used}:
        colours = [slots[name] % COLOURS for name in {"none", *(name for one, name in used if one == family)}]
        assert len(set(colours)) == len(colours)


def test_shapes_differ_and_stay_within_reach() -> None:
    drawn = [shape(slot, 0, 0, 5) for slot in range(SHAPES)]
    assert len(set(drawn)) == SHAPES
    for path in drawn[1:]:
        assert all(abs(float(value)) <= 7 for value in re.findall(r"-?\d+\.\d", path))


@pytest.mark.parametrize(
    ("leakage", "level"), [(0, 0), (0.14, 0), (0.15, 1), (0.5, 3), (0.99, 6), (1, 6), (math.nan, None)]
)
def test_heat_levels(leakage: float, level: int | None) -> None:
    assert heat_level(leakage) == level


def test_numbers_are_written_for_people() -> None:
    assert [number(x) for x in (0.12345, -0.5, 12.345, 12345.6, 0.00012, 0.0)] == [
        "0.123", "−0.500", "12.3", "12,346", "0.0001", "0.000"]  # fmt: skip
    assert [number(math.nan), number(math.inf)] == ["not measured", "∞"]
    assert [seconds(x).replace("\u00a0", " ") for x in (0.42, 1.31, 200)] == ["420 ms", "1.3 s", "3 min 20 s"]
    assert [size(x).replace("\u00a0", " ") for x in (12, 31_400, 4.1e8, 2e13)] == [
        "12 B",
        "31.4 kB",
        "410 MB",
        "20.0 TB",
    ]
    assert [power(x) for x in (1e-5, 2e-6, 0.0)] == ["10⁻⁵", "2·10⁻⁶", "0"]


# Colours, as the style sheet gives them for both themes.


def colours(prefix: str, count: int, theme: int) -> list[tuple[float, float, float]]:
    found = []
    for index in range(count):
        pair = re.search(rf"--{prefix}{index}: light-dark\((#\w{{6}}), (#\w{{6}})\)", STYLE)
        assert pair is not None
        found.append(linear(pair.group(1 + theme)))
    return found


def paper(theme: int) -> tuple[float, float, float]:
    pair = re.search(r"--paper: light-dark\((#\w{6}), (#\w{6})\)", STYLE)
    assert pair is not None
    return linear(pair.group(1 + theme))


def linear(colour: str) -> tuple[float, float, float]:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return red, green, blue


def luminance(colour: tuple[float, float, float]) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_in_heat_cells_is_readable(theme: int) -> None:
    for ground, ink in zip(colours("h", HEAT_LEVELS, theme), colours("i", HEAT_LEVELS, theme), strict=True):
        assert contrast(ground, ink) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_heat_grows_in_one_direction_so_that_grey_tells_it_too(theme: int) -> None:
    steps = [luminance(colour) for colour in colours("h", HEAT_LEVELS, theme)]
    assert steps == sorted(steps, reverse=theme == 0)
    assert all(contrast((a,) * 3, (b,) * 3) > 1.1 for a, b in pairwise(steps))


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_series_stand_out_from_the_paper(theme: int) -> None:
    assert all(contrast(colour, paper(theme)) >= 3 for colour in colours("c", COLOURS, theme))


# Viénot, Brettel and Mollon 1999: what is left of a colour without the long or the middle cones, in linear RGB.
WITHOUT = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


def lab(colour: tuple[float, ...]) -> tuple[float, float, float]:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    parts = [
        sum(a * max(0.0, b) for a, b in zip(row, colour, strict=True)) / w for row, w in zip(rows, white, strict=True)
    ]
    x, y, z = (p ** (1 / 3) if p > 0.008856 else 7.787 * p + 16 / 116 for p in parts)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("kind", WITHOUT)
def test_the_first_six_series_differ_without_red_or_green_cones(kind: str, theme: int) -> None:
    seen = [
        lab(tuple(sum(a * b for a, b in zip(row, colour, strict=True)) for row in WITHOUT[kind]))
        for colour in colours("c", 6, theme)
    ]
    assert min(math.dist(a, b) for a, b in combinations(seen, 2)) > 10


def test_the_terminal_has_the_report_s_colours() -> None:
    for level, style in enumerate(HEAT):
        ink, _, ground = style.split()
        assert f"--h{level}: light-dark({ground}" in STYLE
        assert f"--i{level}: light-dark({ink}" in STYLE


def paths(svg: str, kind: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("path")
    return [path.get("d", "") for path in found if kind in path.get("class", "").split()]


def test_the_frontier_says_which_way_is_better() -> None:
    assert "accuracy (higher is better)" in charts.frontier(frontier(), {})
    assert "property AUC (lower is better)" in charts.frontier(frontier(), {})
    assert "accuracy (lower is better)" in charts.frontier(replace(frontier(), higher_is_better=False), {})


def test_notes_keep_out_of_each_others_way() -> None:
    """Four settings at one place, and one at the right edge, where there is room to the left only."""
    notes = charts.Notes()
    for _ in range(4):
        notes.place("noise multiplier 1", 200, 100, 8)
    notes.place("noise multiplier 1", 420, 200, 8)
    for one, other in combinations(notes.taken, 2):
        across = one[0] < other[2] and other[0] < one[2]
        downward = one[1] < other[3] and other[1] < one[3]
        assert not (across and downward)
    assert notes.taken[-1][2] < 420


def test_a_wide_interval_does_not_push_the_values_together() -> None:
    found = [Interval(0.5, -9.0, 10.0), Interval(0.7, 0.65, 0.75)]
    assert (min(charts.reach(found)), max(charts.reach(found))) == pytest.approx((0.3, 0.9))
    assert charts.reach([Interval.unknown(math.nan)]) == []
    wide = charts.frontier(replace(frontier(), points=[replace(frontier().points[0], leakage=found[0])]), {})
    ends = [float(number) for path in paths(wide, "whisker") for number in re.findall(r"[\d.-]+", path)[1::2]]
    assert all(14 <= end <= 294 for end in ends)  # within the plot


def test_a_radar_has_a_spoke_a_measure_and_a_closed_line_a_series() -> None:
    chart = Chart("Three", "", "", "", [Series("one", [0, 1, 2], [1.0, 0.5, 0.0])], "radar", spokes=("a", "b", "c"))
    drawn = str(radar(chart, {}))
    assert drawn.count('class="tick"') == 3
    assert "b: 0.500" in drawn
    assert "M180.0 60.0L" in drawn  # all of the first measure: straight up, to the rim
