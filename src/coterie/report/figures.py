"""The report's figures: ROC curves, frontiers, curves and plots, and galleries, each with its legend and caption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coterie.errors import require
from coterie.measure.exhibits import Chart, Gallery
from coterie.measure.findings import UNDEFENDED, AuditResult, Finding, Frontier, LeftOut
from coterie.measure.roc import RATES
from coterie.report import charts
from coterie.report.charts import looks_of, number_or_whole
from coterie.report.looks import Slots, reference_swatch, slots_of, swatch
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, details, measured, row, section, table
from coterie.report.radar import radar
from coterie.report.values import MISSING, capital, defence_name, number, seconds

PNG = "iVBORw0KGgo"  # how every PNG file begins, in base64
LONGEST_TABLE = 60


def frontiers(result: AuditResult, slots: Slots) -> Html | None:
    if not result.frontiers:
        return None
    return section(
        "frontier",
        "Frontier: leakage against utility",
        "Every mark is one setting of a defence against one kind of attack. Filled marks are not dominated: nothing "
        "else leaks less and is as useful. A larger mark takes more time.",
        *[_frontier(found, slots) for found in result.frontiers],
    )


def _frontier(found: Frontier, slots: Slots) -> Html:
    head = ("Setting", found.leakage_measure, found.utility_measure, "Time", "State", "Limits")
    rows = []
    for one in found.points:
        state = badge("good", "★", "recommended") if one.recommended else None
        strength = "" if one.defence == UNDEFENDED else f", strength {one.strength:g}"
        cells = [
            defence_name(one.setting) if one.setting else defence_name(one.defence) + strength,
            measured(one.leakage),
            measured(one.utility),
            seconds(one.seconds),
            state or ("dominated" if one.dominated else "not dominated"),
            {True: "met", False: "broken", None: "none set"}[one.passes],
        ]
        rows.append(row(head, cells))
    rows += [row(head, _absent(one, found.family)) for one in found.left_out]
    legend = [Entry(name, slot) for name, slot in looks_of(found, slots).items()]
    return element(
        "div",
        element("p", found.recommendation, class_="recommendation"),
        _figure(
            capital(found.title),
            "Whiskers are 95 % intervals; the dotted line joins settings that are not dominated.",
            charts.frontier(found, slots),
            legend,
            f"chance: {number(found.chance)}",
        ),
        table(f"Settings, {found.family or found.title}", head, rows),
        class_="pair",
        data_family=found.family or None,
    )


def _absent(one: LeftOut, family: str) -> list[str]:
    """The row of a setting that is no mark: what broke there, or does not fit."""
    what = defence_name(one.defence or UNDEFENDED) if one.family == family else str(one)
    limits = "nobody knows" if one.failed else ""
    state = join([badge("bad", "✕", "broke") if one.failed else "left out", element("span", one.reason, class_="by")])
    return [what, MISSING, MISSING, "", state, limits]


def rocs(result: AuditResult, slots: Slots) -> Html | None:
    curves: dict[tuple[str, str, str, bool], list[Finding]] = {}
    for one in result.findings:
        if one.roc is not None:
            curves.setdefault((one.family, one.attack, one.adversary, one.control), []).append(one)
    if not curves:
        return None
    return section(
        "roc",
        "ROC curves",
        "How many true accusations an attack gets for how many false ones. A curve on the diagonal guesses; the area "
        "under it is the score. Curves of clusters and of seeds are averaged, as their scores are.",
        element("div", *[_roc(found, slots) for found in curves.values()], class_="figures"),
        needs="figure",
    )


def _roc(found: Sequence[Finding], slots: Slots) -> Html:
    one = found[0]
    title = capital(f"{one.family}: {one.attack}") + (" (control)" if one.control else "")
    legend = [
        Entry(each.defence, slots[each.defence], f"{each.measure} {number(each.score)}", filtered=True)
        for each in found
    ]
    head = ("Defence", "at 0.1 % false positives", "at 1 %", "at 10 %")
    rows = [
        row(
            head,
            [defence_name(each.defence), *(number(each.roc.at(rate)) for rate in RATES)],
            data_defence=each.defence,
        )
        for each in found
        if each.roc is not None
    ]
    return _figure(
        title,
        f"Adversary: {one.adversary}." + (" A control: there is nothing to find." if one.control else ""),
        charts.roc(title, found, slots),
        legend,
        f"chance: {one.measure} {number(one.chance)}",
        details("True positive rates at low false positive rates", table(f"{title}: true positive rates", head, rows)),
        data_family=one.family,
        data_adversary=one.adversary,
        data_control="yes" if one.control else "no",
        data_needs=".series",
    )


def plots(result: AuditResult, slots: Slots) -> Html | None:
    """Curves over rounds, cosine plots, t-SNE: whatever a family drew."""
    return curves(result.charts, slots)


def curves(shown: Sequence[Chart], slots: Slots) -> Html | None:
    if not shown:
        return None
    blocks = []
    for family in dict.fromkeys(chart.family for chart in shown):
        found = [_plot(chart, slots) for chart in shown if chart.family == family]
        blocks.append(
            element(
                "div",
                element("h3", capital(family)) if family else None,
                element("div", *found, class_="figures"),
                data_family=family or None,
            )
        )
    return section("curves", "Curves and plots", "", *blocks, needs="figure")


def drawn(found: Sequence[Chart | Gallery]) -> Html | None:
    """Charts and pictures that stand with a table."""
    shown = [_gallery(one) if isinstance(one, Gallery) else _plot(one, slots_of(())) for one in found]
    return element("div", *shown, class_="figures") if found else None


def _plot(chart: Chart, slots: Slots) -> Html:
    names = [one.name for one in chart.series]
    looks = charts.looks_in(chart, slots)
    legend = [
        Entry(name, slot, filtered=name in slots) for name, slot in zip(names, looks, strict=True) if slot is not None
    ]
    reference = f"{chart.reference[0]}: {number(chart.reference[1])}" if chart.reference else None
    draw = {"scatter": charts.scatter, "radar": radar}.get(chart.kind, charts.line)
    return _figure(
        chart.title,
        f"{chart.caption} {charts.covered(chart) if chart.kind == 'line' else ''}".strip(),
        draw(chart, slots),
        legend,
        reference or (charts.CHANCE if None in looks else None),
        _values(chart),
        data_family=chart.family or None,
        data_needs=".series",
    )


def _values(chart: Chart) -> Html | None:
    """A line chart's numbers as a table; points of a scatter plot say nothing one by one."""
    if chart.kind != "line":
        return None
    places = sorted({x for one in chart.series for x in one.x if math.isfinite(x)})
    if not places or len(places) > LONGEST_TABLE:
        return None
    head = (chart.x_label, *(defence_name(one.name) for one in chart.series))
    known = [dict(zip(one.x, one.y, strict=True)) for one in chart.series]
    rows = [
        row(head, [number_or_whole(x), *("–" if x not in values else number(values[x]) for values in known)])
        for x in places
    ]
    return details("Values as a table", table(f"{chart.title}: {chart.y_label}", head, rows, stacked=False))


class Entry(NamedTuple):
    """A series in a legend; ``filtered`` ones are defences, which come and go with the report's filter."""

    name: str
    slot: int
    note: str = ""
    filtered: bool = False

    def item(self) -> Html:
        button = element(
            "button",
            swatch(self.slot),
            defence_name(self.name),
            element("span", self.note, class_="by") if self.note else None,
            type="button",
            aria_pressed="true",
            data_toggles=self.name,
        )
        return element("li", button, data_defence=self.name if self.filtered else None)


def _figure(
    title: str,
    caption: str,
    svg: Html,
    legend: Sequence[Entry],
    reference: str | None,
    *more: str | None,
    **data: str | None,
) -> Html:
    entries = [entry.item() for entry in legend]
    if reference:
        entries.append(element("li", reference_swatch(), reference))
    return element(
        "figure",
        element("h4", title),
        svg,
        element("ul", *entries, class_="legend") if legend else element("p", "No values.", class_="by"),
        element("figcaption", caption),
        *more,
        **data,
    )


def galleries(result: AuditResult) -> Html | None:
    if not result.galleries:
        return None
    return section(
        "gallery",
        "Gallery: what was reconstructed",
        "Private pictures beside what an attack made of what it saw.",
        *[_gallery(found) for found in result.galleries],
        needs="figure",
    )


def _gallery(found: Gallery) -> Html:
    rows = []
    for heading, pictures in found.rows:
        for picture in pictures:
            require(picture.startswith(PNG), f"picture of {heading!r}", picture[:20], "must be a PNG file in base64")
        images = [
            element("img", src=f"data:image/png;base64,{picture}", alt=f"{heading}, picture {index}")
            for index, picture in enumerate(pictures, 1)
        ]
        rows.append(join([element("div", heading, class_="row-head"), element("div", *images, class_="pictures")]))
    return element(
        "figure",
        element("h4", found.title),
        element("div", *rows, class_="gallery"),
        element("figcaption", found.caption),
        class_="wide",
        data_family=found.family or None,
    )
