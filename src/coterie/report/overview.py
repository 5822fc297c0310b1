"""The report's first part: the verdict, the gate, and what was audited."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.findings import AuditResult, Leak
from coterie.report.looks import COLOURS, Slots, shape, swatch
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, definitions, row, section, table
from coterie.report.values import UNDEFENDED, capital, defence_name, limit_value, number, with_interval


def verdict(result: AuditResult, slots: Slots) -> Html:
    return section(
        "verdict",
        "Verdict",
        "",
        element("p", result.headline, class_="headline"),
        _gate(result),
        _glance(result, slots) if result.leaks else None,
        element("h3", "What was audited"),
        definitions(result.subject.items()),
    )


def _glance(result: AuditResult, slots: Slots) -> Html:
    families = dict.fromkeys(leak.family for leak in result.leaks)
    strips = [_strip(family, worst_by_defence(result.leaks, family), slots) for family in families]
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


def worst_by_defence(leaks: Sequence[Leak], family: str) -> list[Leak]:
    """The attack that leaks most under each defence, controls and missing values aside."""
    worst: dict[str, Leak] = {}
    for leak in leaks:
        known = leak.family == family and not leak.control and not math.isnan(leak.leakage)
        if known and (leak.defence not in worst or leak.leakage > worst[leak.defence].leakage):
            worst[leak.defence] = leak
    return list(worst.values())


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
                element("code", check.limit),
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


def _strip(family: str, leaks: Sequence[Leak], slots: Slots) -> Html:
    """A family's line from chance to a complete leak, with one mark for each defence."""
    marks = [
        element(
            "span",
            element(
                "svg",
                element(
                    "path", class_=f"mark c{slots[leak.defence] % COLOURS}", d=shape(slots[leak.defence], 9, 9, 5.5)
                ),
                viewBox="0 0 18 18",
                aria_hidden="true",
            ),
            class_="dot",
            style=f"left:{100 * leak.leakage:.1f}%",
            title=_in_short(leak),
            data_defence=leak.defence,
            role="img",
            aria_label=_in_short(leak),
        )
        for leak in leaks
    ]
    undefended = next((leak for leak in leaks if leak.defence == UNDEFENDED), None)
    words = undefended.sentence if undefended else "Not attacked without a defence."
    return element(
        "div",
        element("div", element("strong", capital(family)), element("span", words), class_="strip-words"),
        element("div", *marks, class_="track"),
        class_="strip-row",
        data_family=family,
    )


def _in_short(leak: Leak) -> str:
    return (
        f"{defence_name(leak.defence)}\n{leak.attack} by {leak.adversary}\n{leak.measure}: {with_interval(leak.score)}"
        f"\nchance: {number(leak.chance)}; leakage {leak.leakage:.0%}"
    )


def _legend(result: AuditResult, slots: Slots) -> Html:
    used = dict.fromkeys(leak.defence for leak in result.leaks if not leak.control)
    return element(
        "ul",
        *[element("li", swatch(slots[name]), defence_name(name), data_defence=name) for name in used],
        class_="legend",
        aria_label="Defences",
    )
