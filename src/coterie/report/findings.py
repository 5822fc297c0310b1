"""Attacks against defences: the coloured tables, and every number in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from coterie.measure.exhibits import Suspected
from coterie.measure.findings import AuditResult, Finding, counted
from coterie.measure.verdicts import Verdict
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, details, row, section, table, told
from coterie.report.values import (
    GLYPHS,
    HEAT_LEVELS,
    MEANINGS,
    capital,
    chance_of,
    defence_name,
    ends,
    heat_level,
    number,
    with_interval,
)

LONGEST = 200  # answers of a recording's attack that a page shows; the JSON has all

LEAD = (
    "Each cell is the score over all seeds with its 95 % interval. The colour runs from what chance gives to a "
    "complete leak. "
    + " ".join(f"{capital(verdict.value)}: {meaning}." for verdict, meaning in MEANINGS.items())
    + " So is a score above chance that is not known to lie above its control, and one that more of the same would not "
    "decide: the cell says why."
)


def leaks(result: AuditResult) -> Html:
    families = dict.fromkeys(one.family for one in result.findings)
    blocks = [_family(name, [one for one in result.findings if one.family == name]) for name in families]
    if not blocks:
        blocks = [element("p", "No attack was run.")]
    return section("leaks", "What leaks", LEAD, _scale(), *blocks, needs=".cell")


def _scale() -> Html:
    steps = [element("span", class_=f"h{level}") for level in range(HEAT_LEVELS)]
    keys = [element("span", f"{GLYPHS[verdict]} {verdict.value}") for verdict in MEANINGS]
    ramp = element("span", *steps, class_="ramp", aria_hidden="true")
    return element("p", element("span", "chance ", ramp, " complete leak"), *keys, class_="heat-key")


def _family(family: str, found: Sequence[Finding]) -> Html:
    defences = list(dict.fromkeys(one.defence for one in found))
    rows: dict[tuple[str, str, str, bool], list[Finding]] = {}
    for one in found:
        rows.setdefault((one.attack, one.adversary, one.measure, one.control), []).append(one)
    heads = [element("th", defence_name(name), scope="col", data_defence=name) for name in defences]
    hidden = {key for key, here in rows.items() if all(one.why_not for one in here)}
    body = [_row(family, here, defences) for key, here in rows.items() if key not in hidden]
    body += _not_scored(family, [one for key in rows if key in hidden for one in rows[key]], len(defences))
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


def _row(family: str, found: Sequence[Finding], defences: Sequence[str]) -> Html:
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
        here = [each for each in found if each.defence == defence]
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


def _not_scored(family: str, found: Sequence[Finding], columns: int) -> list[Html]:
    """What nobody could score, in a line a measure: many empty cells would tell no more."""
    rows: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        rows.setdefault((one.measure, one.why_not), []).append(one)
    return [
        element(
            "tr",
            element(
                "th", measure, element("span", "; ".join(_each(one.attack for one in here)), class_="by"), scope="row"
            ),
            element("td", f"not scored: {why}", class_="none", colspan=columns),
            data_family=family,
            data_adversary="\n".join(_each(one.adversary for one in here)),
            data_defence="\n".join(_each(one.defence for one in here)),
        )
        for (measure, why), here in rows.items()
    ]


def _each(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _cell(found: Sequence[Finding]) -> Html:
    level = heat_level(max((one.leakage for one in found), key=lambda value: -1 if math.isnan(value) else value))
    parts = []
    for one in found:
        scored = one.verdict is not Verdict.NOT_SCORED
        parts.append(
            element(
                "span",
                element("span", GLYPHS[one.verdict], aria_hidden="true"),
                " ",
                element("strong", number(one.score) if scored else one.verdict.value),
                class_="value",
            )
        )
        parts.append(element("small", ends(one.interval), class_="interval"))
        if scored:
            parts.append(element("small", told(one), class_="said"))
    return element(
        "td",
        *parts,
        class_="cell gap" if level is None else f"cell h{level}",
        data_defence=found[0].defence,
        data_label=defence_name(found[0].defence),
        tabindex="-1",
        title="\n".join(_tip(one) for one in found),
    )


def _tip(one: Finding) -> str:
    share = "" if math.isnan(one.leakage) else f" ({one.leakage:.0%} of a complete leak)"
    score = f"{one.measure} {with_interval(one.interval)}"
    return f"{one.attack}, {one.adversary}, {defence_name(one.defence)}: {score}{share}\n{one.sentence}"


def _words(family: str, found: Sequence[Finding]) -> Html:
    head = ("Attack", "Defence", "Finding", "The adversary had to know", "Basis")
    rows = [
        row(
            head,
            [
                join([capital(one.attack), element("span", one.adversary, class_="by"), _control_badge(one)]),
                defence_name(one.defence),
                one.sentence,
                one.knew or "nothing beyond what it sees",
                _basis(one),
            ],
            data_family=family,
            data_defence=one.defence,
            data_adversary=one.adversary,
            data_control="yes" if one.control else "no",
        )
        for one in found
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
        f"{found.family}: {found.attack} by a {found.adversary}, {counted(len(found.answers), 'answer')}, "
        f"one a {found.question}",
        table(f"{found.family}: {found.attack}", head, rows, stacked=False),
        element("p", f"{counted(left, 'further answer')} in the JSON.", class_="by") if left else "",
        data_family=found.family,
        data_adversary=found.adversary,
    )


def _basis(one: Finding) -> str:
    scale = f"chance {number(one.chance)}, complete {number(one.perfect)}"
    same = ", the same in each" if one.repeated and one.seeds > 1 else ""
    ground = f"{one.units:,} {one.unit} of {counted(one.seeds, 'seed')}{same}"
    above = "" if one.beyond is None else f"above its control by {with_interval(one.beyond)}; "
    return f"{one.measure} {with_interval(one.interval)}; {above}{scale}; {ground}; {one.decision.in_words(one.unit)}"


def _control_badge(one: Finding) -> Html | None:
    return badge("control", "◇", "control: nothing to find") if one.control else None
