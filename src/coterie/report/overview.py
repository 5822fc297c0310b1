"""The report's first part: the verdict, the gate, and what was audited."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.measure.findings import UNDEFENDED, AuditResult, Finding, strongest
from coterie.report.decision import decision
from coterie.report.looks import COLOURS, Slots, shape, swatch
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, definitions, row, section, table
from coterie.report.values import capital, defence_name, limit_value, number, with_interval


def verdict(result: AuditResult, slots: Slots) -> Html:
    return section(
        "verdict",
        "Verdict",
        "",
        element("p", result.headline, class_="headline"),
        _gate(result),
        element("h3", "What was recorded" if result.recorded else "What you launch"),
        definitions(result.subject.items()),
        decision(result) if result.findings else None,
        _glance(result, slots) if result.findings else None,
    )


def _glance(result: AuditResult, slots: Slots) -> Html:
    families = dict.fromkeys(one.family for one in result.findings)
    strips = [_strip(family, strongest_by_defence(result.findings, family), slots) for family in families]
    ends = element("div", *[element("span", name) for name in ("chance", "complete leak")], class_="ends")
    lead = "The strongest attack of each kind under each defence, from what chance gives to a complete leak."
    return join(
        [
            element("h3", "How much leaks, at a glance"),
            element("p", lead, class_="lead"),
            element(
                "div", element("div", element("span"), ends, class_="strip-row axis-row"), *strips, class_="strips"
            ),
            _legend(result, slots),
        ]
    )


def strongest_by_defence(findings: Sequence[Finding], family: str) -> list[Finding]:
    """The attack that leaks most under each defence, controls and missing values aside."""
    here = [one for one in findings if one.family == family]
    defences = dict.fromkeys(one.defence for one in here)
    worst = [strongest([one for one in here if one.defence == defence]) for defence in defences]
    return [one for one in worst if one is not None]


def _gate(result: AuditResult) -> Html:
    if not result.checks:
        return element(
            "p",
            badge("open", "○", "no limits set"),
            " The gate has nothing to decide. Limits in the configuration, such as ",
            element("code", "max_property_auc = 0.6"),
            ", make it pass or fail.",
            class_="gate",
        )
    failed = sum(not check.passed for check in result.checks)
    state = badge("bad", "✕", "gate failed") if failed else badge("good", "✓", "gate passed")
    met = len(result.checks) - failed
    head = ("Limit", "Measured", "Result", "Reason")
    rows = [
        row(
            head,
            [
                element("code", str(check.limit)),
                limit_value(check),
                badge("good", "✓", "met") if check.passed else badge("bad", "✕", "broken"),
                check.reason,
            ],
        )
        for check in result.checks
    ]
    return join(
        [
            element("p", state, f" {met} of {len(result.checks)} limits are met.", class_="gate"),
            table("The gate: each limit against what was measured", head, rows),
        ]
    )


def _strip(family: str, findings: Sequence[Finding], slots: Slots) -> Html:
    """A family's line from chance to a complete leak, with one mark for each defence."""
    marks = [
        element(
            "span",
            element(
                "svg",
                element("path", class_=f"mark c{slots[one.defence] % COLOURS}", d=shape(slots[one.defence], 9, 9, 5.5)),
                viewBox="0 0 18 18",
                aria_hidden="true",
            ),
            class_="dot",
            style=f"left:{100 * one.leakage:.1f}%",
            title=_in_short(one),
            data_defence=one.defence,
            role="img",
            aria_label=_in_short(one),
        )
        for one in findings
    ]
    undefended = next((one for one in findings if one.defence == UNDEFENDED), None)
    words = undefended.sentence if undefended else "Not attacked without a defence."
    return element(
        "div",
        element("div", element("strong", capital(family)), element("span", words), class_="strip-words"),
        element("div", *marks, class_="track"),
        class_="strip-row",
        data_family=family,
    )


def _in_short(one: Finding) -> str:
    return (
        f"{defence_name(one.defence)}\n{one.attack} by {one.adversary}\n{one.measure}: {with_interval(one.interval)}"
        f"\nchance: {number(one.chance)}; leakage {one.leakage:.0%}; {one.decision.in_words(one.unit)}"
    )


def _legend(result: AuditResult, slots: Slots) -> Html:
    used = dict.fromkeys(one.defence for one in result.findings if not one.control)
    return element(
        "ul",
        *[element("li", swatch(slots[name]), defence_name(name), data_defence=name) for name in used],
        class_="legend",
        aria_label="Defences",
    )
