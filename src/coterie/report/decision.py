"""The report as a decision: what each adversary learns of what is launched, what defences change, what to do next."""

from __future__ import annotations

import math

from coterie.measure.claims import Outcome
from coterie.measure.findings import UNDEFENDED, AuditResult, Defended, Finding
from coterie.measure.headline import broken, by_defence, judged
from coterie.measure.verdicts import Verdict
from coterie.report.markup import Html, element, join
from coterie.report.parts import badge, row, table, told
from coterie.report.values import (
    GLYPHS,
    attack_name,
    attainable,
    capital,
    chance_of,
    defence_name,
    number,
    with_interval,
)

KINDS = {Verdict.LEAKS: "bad", Verdict.BOUNDED: "good", Verdict.UNDECIDED: "open", Verdict.NOT_SCORED: "open"}
HEAD = ("Adversary", "What it learns", "Verdict")
BARE = "Without a defence"


def decision(result: AuditResult) -> Html:
    """Of the federation as it is launched; stress tests are marked."""
    questions = {one.family: one.question for one in result.methods}
    bare = {family: found.get(UNDEFENDED) for family, found in by_defence(result).items()}
    defended = result.launched != UNDEFENDED and not result.recorded
    head = (*HEAD, BARE) if defended else HEAD
    rows = [
        row(
            head,
            [
                join([capital(one.adversary), element("span", capital(family), class_="by"), _stress(one)]),
                join([questions.get(family, ""), element("span", _answer(one), class_="by")]),
                _verdict(one),
                *([_undefended(one, bare.get(family))] if defended else []),
            ],
        )
        for family, one in judged(result)
    ]
    steps = next_steps(result)
    return join(
        [
            table("What each adversary learns of the federation as it is launched", head, rows),
            element("h3", "What to do next"),
            element("ol", *[element("li", step) for step in steps], class_="steps"),
        ]
    )


def _verdict(one: Finding) -> Html:
    """Of what is undecided, below it, what would decide, or why no more of the same would."""
    more = told(one).removeprefix(one.verdict.value).lstrip(": ")
    more += " would decide" if more.startswith("≈") else ""
    said = badge(KINDS[one.verdict], GLYPHS[one.verdict], one.verdict.value)
    return join([said, element("span", more, class_="by") if more else None])


def _answer(one: Finding) -> str:
    if math.isnan(one.score):
        return "There was nothing to score its answer by."
    return f"{capital(one.attack)}: {one.measure} {with_interval(one.interval)}, {chance_of([one])}"


def _stress(one: Finding) -> Html | None:
    return badge("control", "◇", "stress test") if one.stress else None


def _undefended(one: Finding, bare: Finding | None) -> str:
    if one.defence == UNDEFENDED or bare is None:
        return "the same: nothing defends it here"
    return f"{capital(attack_name(bare))}: {number(bare.score)}, {bare.verdict.value}"


def next_steps(result: AuditResult) -> list[str]:
    """What follows from the verdict, most urgent first."""
    found = judged(result)
    served = next((one for one in result.as_configured if one.defence == result.launched), None)
    steps = [*_about_claims(result), *_about_use(served), *_about_epsilon(result)]
    steps += [f"{capital(str(one))} broke ({one.reason}): mend it and run the audit again." for one in broken(result)]
    for family, one in found:
        if one.verdict is Verdict.LEAKS and not one.stress:
            steps.append(f"{capital(family)} leaks: {_remedy(result, family, one)}.")
    for family, one in found:
        if one.verdict is Verdict.UNDECIDED and not one.stress:
            steps.append(f"{capital(family)} is undecided: {one.decision.remedy(one.unit)}{_meanwhile(one)}.")
    if stressed := [family for family, one in found if one.verdict is Verdict.LEAKS and one.stress]:
        steps.append(
            f"Under stress it leaks ({', '.join(stressed)}): Method says what was changed for that, and so how far "
            "yours is from it."
        )
    if not result.checks:
        steps.append("Say what you will not go beyond, in [limits]: then the gate decides the same way every time.")
    elif failed := [check for check in result.checks if not check.passed]:
        steps.append(f"Do not launch before {', '.join(str(check.limit) for check in failed)} is met.")
    return steps or ["Nothing that was tried speaks against launching it; what was left out is listed below."]


def _meanwhile(one: Finding) -> str:
    """Clients cannot be had like seeds."""
    rest = "; where there are no more, take it for possible"
    return rest if one.decision.repeated and math.isfinite(one.decision.more_units) else ""


def _about_claims(result: AuditResult) -> list[str]:
    rows = [*result.as_configured, *result.defended]
    own = [one for one in rows if one.defence == result.launched and one.promise]
    if any(one.promise and one.promise.outcome is Outcome.VIOLATED for one in own):
        return [f"Do not launch: what {result.launched} claims is violated by measurement. Look for the mistake first."]
    return []


def _about_epsilon(result: AuditResult) -> list[str]:
    """Where nothing is proven, and would be with other settings: what must change, and what that is worth."""
    rows = [(one, one.promise) for one in result.as_configured if one.promise and one.promise.guarantee.attainable]
    own = [(one, promise) for one, promise in rows if one.defence == result.launched]
    steps = []
    for one, promise in (own or rows)[:1]:
        ways = " or ".join(
            f"with {'; '.join(way.changes)} (ε = {number(way.guarantee.epsilon)})"
            for way in promise.guarantee.attainable
        )
        more = "" if own else ". `coterie init --data FILE --epsilon E` writes such a configuration"
        steps.append(
            f"{capital(defence_name(one.defence))} proves no epsilon here. It would prove {attainable(promise)}: "
            f"{ways}; Claims says what that rests on{more}."
        )
    return steps


def _about_use(served: Defended | None) -> list[str]:
    if served is None or not served.learnt_nothing:
        return []
    names = ", ".join(served.unbeaten)
    return [f"It has learnt nothing: clients are not known to gain over {names}. Train longer, or otherwise."]


def _remedy(result: AuditResult, family: str, launched: Finding) -> str:
    """The defence that was compared under which least is found, if that is no leak."""
    others = by_defence(result)[family].items()
    tried = {name: found for name, found in others if name not in (launched.defence, UNDEFENDED)}
    better = {name: found for name, found in tried.items() if found.verdict in (Verdict.BOUNDED, Verdict.UNDECIDED)}
    if not better:
        return (
            "no defence that was compared stops it"
            if tried
            else "no defence was compared; name one in [[audit.compare]]"
        )
    name, best = min(better.items(), key=lambda item: (item[1].verdict is not Verdict.BOUNDED, item[1].leakage))
    return (
        f"under {defence_name(name)} it is {best.verdict.value} ({attack_name(best)}: {best.measure} "
        f"{with_interval(best.interval)})"
    )
