"""The report's first part: the verdict, the gate, and what was audited."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.measure.findings import UNDEFENDED, AuditResult, Finding, counted, strongest
from coterie.measure.headline import broken, by_defence, sentences_of
from coterie.report.decision import decision
from coterie.report.looks import COLOURS, Slots, shape, swatch
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, definitions, row, section, table
from coterie.report.values import attack_name, capital, defence_name, limit_value, number, with_interval

LANE = 16  # pixels


def verdict(result: AuditResult, slots: Slots) -> Html:
    first, *rest = sentences_of(result)
    return section(
        "verdict",
        "Verdict",
        "",
        element("p", first, class_="headline"),
        element("ul", *[element("li", sentence) for sentence in rest], class_="further") if rest else None,
        _gate(result),
        element("h3", "What was recorded" if result.recorded else "What you launch"),
        definitions(result.subject.items()),
        decision(result) if result.findings else None,
        _glance(result, slots) if result.findings else None,
    )


def _glance(result: AuditResult, slots: Slots) -> Html:
    families = dict.fromkeys(one.family for one in result.findings)
    said = {family: found[UNDEFENDED].sentence for family, found in by_defence(result).items() if UNDEFENDED in found}
    strips = [
        _strip(family, strongest_by_defence(result.findings, family), slots, said.get(family, ""))
        for family in families
    ]
    ends = element("div", *[element("span", name) for name in ("chance", "complete leak")], class_="ends")
    lead = (
        "The strongest attack of each kind under each defence, from what chance gives to a complete leak. A line is "
        "its 95 % interval by itself. The words, and the table above, have the wider interval that allows for how "
        "many attacks were tried; that one decides."
    )
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
    broke = len(broken(result))
    unknown = f" {counted(broke, 'attack')} broke, and what is not known passes nothing." if broke else ""
    if not result.checks and broke:
        return element("p", badge("bad", "✕", "gate failed"), unknown, class_="gate")
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
    state = badge("good", "✓", "gate passed") if result.passed else badge("bad", "✕", "gate failed")
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
            element("p", state, f" {met} of {len(result.checks)} limits are met.{unknown}", class_="gate"),
            table("The gate: each limit against what was measured", head, rows),
        ]
    )


def _strip(family: str, findings: Sequence[Finding], slots: Slots, said: str) -> Html:
    """A family's lines from chance to a complete leak: for each defence a lane with its mark and whisker."""
    lanes = {one.defence: f"{LANE * (number + 0.5):.0f}px" for number, one in enumerate(findings)}
    whiskers = [
        element(
            "span",
            class_=f"whisker c{slots[one.defence] % COLOURS}",
            style=f"left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%;top:{lanes[one.defence]}",
            data_defence=one.defence,
        )
        for one in findings
        if one.interval.is_known
        for low, high in [(one.leak_of(one.interval.low), one.leak_of(one.interval.high))]
    ]
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
            style=f"left:{100 * one.leakage:.1f}%;top:{lanes[one.defence]}",
            title=_in_short(one),
            data_defence=one.defence,
            role="img",
            aria_label=_in_short(one),
        )
        for one in findings
    ]
    words = said or "Not attacked without a defence."
    return element(
        "div",
        element("div", element("strong", capital(family)), element("span", words), class_="strip-words"),
        element("div", *whiskers, *marks, class_="track", style=f"height:{LANE * max(len(findings), 2)}px"),
        class_="strip-row",
        data_family=family,
    )


def _in_short(one: Finding) -> str:
    return (
        f"{defence_name(one.defence)}\n{attack_name(one)}\n{one.measure}: {with_interval(one.interval)}"
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
