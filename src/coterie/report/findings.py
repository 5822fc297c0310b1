"""Attacks against defences: the coloured tables, and every number in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.findings import AuditResult, Leak, Suspected, counted
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, details, row, section, table
from coterie.report.values import (
    GLYPHS,
    HEAT_LEVELS,
    MISSING,
    capital,
    chance_of,
    defence_name,
    heat_level,
    interval,
    number,
    verdict,
    with_interval,
)

LONGEST = 200  # answers of a recording's attack that a page shows; the JSON has all

LEAD = (
    "Each cell is the mean over seeds with its 95 % interval. The colour runs from what chance gives to a complete "
    "leak. A leak counts as found when the whole interval lies above chance."
)


def leaks(result: AuditResult) -> Html:
    families = dict.fromkeys(leak.family for leak in result.leaks)
    blocks = [_family(name, [leak for leak in result.leaks if leak.family == name]) for name in families]
    if not blocks:
        blocks = [element("p", "No attack was run.")]
    return section("leaks", "What leaks", LEAD, _scale(), *blocks, needs=".cell")


def _scale() -> Html:
    steps = [element("span", class_=f"h{level}") for level in range(HEAT_LEVELS)]
    keys = [element("span", f"{glyph} {word}") for word, glyph in GLYPHS.items()]
    ramp = element("span", *steps, class_="ramp", aria_hidden="true")
    return element("p", element("span", "chance ", ramp, " complete leak"), *keys, class_="heat-key")


def _family(family: str, found: Sequence[Leak]) -> Html:
    defences = list(dict.fromkeys(leak.defence for leak in found))
    rows: dict[tuple[str, str, str, bool], list[Leak]] = {}
    for leak in found:
        rows.setdefault((leak.attack, leak.adversary, leak.measure, leak.control), []).append(leak)
    heads = [element("th", defence_name(name), scope="col", data_defence=name) for name in defences]
    body = [_row(family, here, defences) for here in rows.values()]
    name = f"{family}: attacks against defences"
    grid = element(
        "table",
        element("caption", capital(family)),
        element("thead", element("tr", element("th", "Attack", scope="col"), *heads)),
        element("tbody", *body),
        class_="heat",
    )
    return element(
        "div",
        element("div", grid, class_="scroll", role="region", aria_label=name, tabindex="0"),
        _words(family, found),
        data_family=family,
        data_needs=".cell",
    )


def _row(family: str, found: Sequence[Leak], defences: Sequence[str]) -> Html:
    one = found[0]
    label = element(
        "th",
        element("span", capital(one.attack), class_="attack"),
        join([" ", badge("control", "◇", "control")]) if one.control else None,
        element("span", one.adversary, class_="by"),
        element("span", f"{one.measure}, {chance_of(found)}", class_="by"),
        scope="row",
    )
    cells = []
    for defence in defences:
        here = [leak for leak in found if leak.defence == defence]
        if here:
            cells.append(_cell(here))
        else:
            cells.append(
                element("td", "not run", class_="none", data_defence=defence, data_label=defence_name(defence))
            )
    return element(
        "tr",
        label,
        *cells,
        data_family=family,
        data_adversary=one.adversary,
        data_control="yes" if one.control else "no",
        data_needs=".cell",
    )


def _cell(found: Sequence[Leak]) -> Html:
    level = heat_level(max((leak.leakage for leak in found), key=lambda value: -1 if math.isnan(value) else value))
    parts = []
    for leak in found:
        said = verdict(leak)
        parts.append(
            element(
                "span",
                element("span", GLYPHS.get(said, "·"), aria_hidden="true"),
                " ",
                element("strong", number(leak.score.value)),
                class_="value",
            )
        )
        parts.append(element("small", interval(leak.score), class_="interval"))
        if said != MISSING:
            parts.append(element("small", said, class_="said"))
    return element(
        "td",
        *parts,
        class_="cell gap" if level is None else f"cell h{level}",
        data_defence=found[0].defence,
        data_label=defence_name(found[0].defence),
        tabindex="-1",
        title="\n".join(_tip(leak) for leak in found),
    )


def _tip(leak: Leak) -> str:
    share = "" if math.isnan(leak.leakage) else f" ({leak.leakage:.0%} of a complete leak)"
    score = f"{leak.measure} {with_interval(leak.score)}"
    return f"{leak.attack}, {leak.adversary}, {defence_name(leak.defence)}: {score}{share}\n{leak.sentence}"


def _words(family: str, found: Sequence[Leak]) -> Html:
    head = ("Attack", "Defence", "Finding", "The adversary had to know", "Basis")
    rows = [
        row(
            head,
            [
                join([capital(leak.attack), element("span", leak.adversary, class_="by"), _control_badge(leak)]),
                defence_name(leak.defence),
                leak.sentence,
                leak.knew or "nothing beyond what it sees",
                _basis(leak),
            ],
            data_family=family,
            data_defence=leak.defence,
            data_adversary=leak.adversary,
            data_control="yes" if leak.control else "no",
        )
        for leak in found
    ]
    return details(f"{family}: every number in words", table(f"{family}: every number in words", head, rows))


def suspected(result: AuditResult) -> Html | None:
    """What the attacks on a recording say, question by question."""
    if not result.suspected:
        return None
    return section(
        "suspected",
        "What the attacks suspect",
        "Their answers to each question, as an adversary would have them. Whether they are right is said only where "
        "the truth was given.",
        *[_answers(one) for one in result.suspected],
        needs="details",
    )


def _answers(found: Suspected) -> Html:
    head = (found.question, found.answer)
    rows = [row(head, [question, answer]) for question, answer in found.answers[:LONGEST]]
    left = len(found.answers) - len(rows)
    return details(
        f"{found.family}: {found.attack} by a {found.adversary}, {counted(len(found.answers), 'answer')}",
        table(f"{found.family}: {found.attack}", head, rows, stacked=False),
        element("p", f"{counted(left, 'further answer')} in the JSON.", class_="by") if left else "",
        data_family=found.family,
        data_adversary=found.adversary,
    )


def _basis(leak: Leak) -> str:
    seeds = counted(leak.seeds, "seed")
    if leak.seeds == 1 and not math.isnan(leak.score.low):
        seeds = "one run, with the interval over what was observed in it"
    ends = f"chance {number(leak.chance)}, complete {number(leak.perfect)}"
    return f"{leak.measure} {with_interval(leak.score)}; {ends}; {seeds}; {verdict(leak)}"


def _control_badge(leak: Leak) -> Html | None:
    return badge("control", "◇", "control: nothing to find") if leak.control else None
