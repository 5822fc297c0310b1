"""The report's last part: how the numbers came about, what is missing, and how to get them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coterie.measure.findings import AuditResult, LeftOut, counted
from coterie.measure.reproduced import Decision, Estimate, Reproduction
from coterie.report.figures import drawn
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, definitions, measured, row, section, table
from coterie.report.values import capital, number, with_interval


def methods(result: AuditResult) -> Html:
    cards = [
        element(
            "article",
            element("h3", capital(one.family)),
            definitions(
                [
                    ("Question", one.question),
                    ("Threat model", one.threat),
                    ("Method", one.method),
                    ("Federation", f"not as configured: {one.differs}" if one.differs else "as configured"),
                    ("Paper", one.paper),
                ],
                "method",
            ),
            data_family=one.family,
        )
        for one in result.methods
    ]
    described = {one.family for one in result.methods}
    missing = [name for name in dict.fromkeys(one.family for one in result.findings) if name not in described]
    if missing:
        cards.append(element("p", f"Without a description: {', '.join(missing)}."))
    return section(
        "method",
        "Method and threat models",
        "Scores are over the units of all seeds, with 95 % intervals that take seeds for clusters of units. An attack "
        "sees what its threat model gives it and nothing else; the truth is used only to score it. What each adversary "
        "had to know stands with its number.",
        *cards,
        needs="article",
    )


LEFT_OUT = ("Kind of attack", "Defence", "Why")


def left_out(left: Sequence[LeftOut], warned: Mapping[str, str]) -> Html:
    rows = [
        row(LEFT_OUT, [capital(one.family), one.defence or "all", f"broke: {one.reason}" if one.failed else one.reason])
        for one in left
    ]
    return section(
        "left-out",
        "What was left out, and why",
        "" if left else "Nothing: every attack that the project has and this federation admits was run.",
        table("What was left out, and why", LEFT_OUT, rows) if left else "",
        join([element("h3", "Warnings on the way"), definitions(warned.items(), "method")]) if warned else "",
    )


def reproduce(facts: Mapping[str, str]) -> Html:
    """The command stands apart, ready to be copied."""
    command = facts.get("command")
    rest = [(key, value) for key, value in facts.items() if key != "command"]
    return section(
        "reproduce",
        "How to reproduce this",
        "" if facts else "Nothing was recorded.",
        element("pre", element("code", command), tabindex="0") if command else "",
        definitions(rest) if rest else "",
    )


def reproductions(tables: Sequence[Reproduction]) -> Html | None:
    if not tables:
        return None
    return section(
        "papers",
        "Tables of the papers, reproduced",
        "Published values beside ours. A claim is undecided where our intervals do not decide it.",
        element("p", _summary(tables), class_="headline"),
        *[_reproduction(one) for one in tables],
    )


def _summary(tables: Sequence[Reproduction]) -> str:
    claims = [claim.decision for one in tables for claim in one.claims]
    if not claims:
        return f"{counted(len(tables), 'table')}, of which the papers claim nothing in words."
    held, broken, undecided = (claims.count(one) for one in (Decision.HOLDS, Decision.FAILS, Decision.UNDECIDED))
    verb = "holds" if held == 1 else "hold"
    rest = f"{broken} {'does' if broken == 1 else 'do'} not, {undecided} {'is' if undecided == 1 else 'are'} undecided"
    return f"{counted(len(tables), 'table')}: of {counted(len(claims), 'claim')}, {held} {verb}, {rest}."


DECISIONS = {Decision.HOLDS: ("good", "✓"), Decision.FAILS: ("bad", "✕"), Decision.UNDECIDED: ("open", "○")}


def _reproduction(one: Reproduction) -> Html:
    unit = f", {one.unit}" if one.unit else ""
    head = ("Row", f"Published{unit}", f"Ours{unit}", "Difference", "Beside it", "Note")
    rows = [
        row(
            head,
            [
                line.label,
                "–" if line.published is None else number(line.published),
                measured(line.ours),
                "–" if line.published is None else _signed(line.ours.value - line.published),
                "; ".join(f"{name} {_beside(value)}" for name, value in line.values.items()),
                line.note,
            ],
        )
        for line in one.rows
    ]
    verdicts = [
        element(
            "li",
            badge(*DECISIONS[claim.decision], claim.decision.value),
            " ",
            claim.text,
            element("span", claim.evidence, class_="by"),
        )
        for claim in one.claims
    ]
    name = f"{one.paper}, {one.table if ' ' in one.table else 'table ' + one.table}"
    return element(
        "article",
        element("h3", f"{capital(name)}: {one.title}"),
        element(
            "p",
            f"Scale: {one.scale}." + (f" Differs from the paper: {one.differs}" if one.differs else ""),
            class_="lead",
        )
        if one.scale
        else None,
        table(f"{name}: published and ours", head, rows),
        element("ul", *verdicts, class_="verdicts") if verdicts else None,
        drawn(one.charts),
    )


def _beside(value: Estimate) -> str:
    """A number that is known has no interval to show."""
    if value.low == value.high or not value.is_known:
        return number(value.value)
    return with_interval(value)


def _signed(value: float) -> str:
    if abs(value) < 5e-4:
        return "±0"
    return ("+" if value > 0 else "") + number(value)
