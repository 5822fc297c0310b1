"""The verdict in a few sentences: of the federation as it is launched, of what its defence buys, of stress tests apart.

Whoever tries many attacks finds one above chance sooner or later. Here, where they are counted, each interval is as
wide as so many together deserve; in the tables each stands for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coterie.measure.claims import Outcome
from coterie.measure.findings import UNDEFENDED, AuditResult, Finding, LeftOut, counted, telling
from coterie.measure.verdicts import SIZE, Verdict

FEW = 5  # names in a line of the terminal


def headline_of(result: AuditResult) -> str:
    return " ".join(sentences_of(result))


def sentences_of(result: AuditResult) -> list[str]:
    """The first is what matters most."""
    return [*_launched(result), *_rest(result), *_omissions(result)]


def brief_of(result: AuditResult) -> str:
    """The same for few lines: of many names the first, and what was left out is only counted."""
    return " ".join([*_launched(result, brief=True), *_rest(result, brief=True), *_omissions(result, brief=True)])


def _rest(result: AuditResult, brief: bool = False) -> list[str]:
    parts = [*_gained(result, brief), *_stressed(result, brief)]
    parts += [*_broken(result, brief), *_controls(result, brief), *_claims(result), *_learnt(result)]
    failed = sum(not check.passed for check in result.checks)
    if failed:
        parts.append(f"{failed} of {counted(len(result.checks), 'limit')} {_is(failed)} broken.")
    elif result.checks and result.passed:
        parts.append("All limits are met.")
    elif result.checks:  # what broke was under none of them
        parts.append("What was measured meets all limits, and the gate fails for what broke.")
    return parts


def broken(result: AuditResult) -> list[LeftOut]:
    """Attacks that have a place here, and broke."""
    return [one for one in result.left_out if one.failed]


def judged(result: AuditResult) -> list[tuple[str, Finding]]:
    """By family, what it is judged by under the defence that is launched; stress tests last."""
    return [*together(as_launched(result)).items(), *together(as_launched(result, stress=True)).items()]


def by_defence(result: AuditResult) -> dict[str, dict[str, Finding]]:
    """By family and defence, what it is judged by, as one of all attacks under that defence.

    Of what is launched it is the headline's, which counts other attacks: one finding has one verdict.
    """
    real = [one for one in result.findings if not one.control]
    found: dict[str, dict[str, Finding]] = {}
    for defence, stress in dict.fromkeys((one.defence, one.stress) for one in real):
        here = [one for one in real if (one.defence, one.stress) == (defence, stress)]
        for family, one in together(here).items():
            found.setdefault(family, {})[defence] = one
    for family, one in judged(result):
        found[family][one.defence] = one
    return found


def as_launched(result: AuditResult, stress: bool = False) -> list[Finding]:
    """What attacks on the configured federation found, under its defence; undefended where that has no place.

    ``stress``: of those that changed it, instead.
    """
    real = [one for one in result.findings if not one.control and one.stress is stress]
    if result.recorded:
        return real
    under = {one.family for one in real if one.defence == result.launched}
    return [one for one in real if one.defence == (result.launched if one.family in under else UNDEFENDED)]


def together(findings: Sequence[Finding]) -> dict[str, Finding]:
    """By family, the finding that it is judged by, with an interval that holds for all of these attacks at once."""
    scored = sum(one.verdict is not Verdict.NOT_SCORED for one in findings)
    wide = [one.among(scored) for one in findings]
    return {name: telling([one for one in wide if one.family == name]) for name in dict.fromkeys(_families(findings))}


def _launched(result: AuditResult, brief: bool = False) -> list[str]:
    found = together(as_launched(result))
    if not found:
        return ["No attack was run." if not result.findings else "No attack was run on the federation as configured."]
    launched = as_launched(result)
    if all(one.nothing_there for one in launched):
        return [f"There was nothing to score: {'; '.join(dict.fromkeys(one.why_not for one in launched))}."]
    if all(one.verdict is Verdict.NOT_SCORED for one in launched):
        return ["There was no truth to score by: what the attacks suspect is reported, not how right they are."]
    where = "As recorded" if result.recorded else f"As configured, {_under(result.launched)}"
    said = {
        Verdict.LEAKS: "this federation leaks to {}",
        Verdict.UNDECIDED: "it is undecided whether it leaks to {}",
        Verdict.BOUNDED: f"less than {SIZE:.0%} of a complete leak is learnt by {{}}",
        Verdict.NOT_SCORED: "not all was scored of {}",
    }
    parts = [
        f"{words.format(_kinds(those))} ({_listed(those, brief)})."
        for verdict, words in said.items()
        if (those := _those(found, verdict))
    ]
    return [f"{where}, {parts[0]}", *(part[:1].upper() + part[1:] for part in parts[1:])]


def _gained(result: AuditResult, brief: bool) -> list[str]:
    """What would leak without the defence that is configured."""
    if result.recorded or result.launched == UNDEFENDED:
        return []
    bare = {family: found[UNDEFENDED] for family, found in by_defence(result).items() if UNDEFENDED in found}
    leaking = _those({family: one for family, one in bare.items() if not one.stress}, Verdict.LEAKS)
    return [f"Without a defence it leaks to {_kinds(leaking)} ({_listed(leaking, brief)})."] if leaking else []


def _stressed(result: AuditResult, brief: bool) -> list[str]:
    """Of a federation that was changed: apart, and by name."""
    found = together(as_launched(result, stress=True))
    those = {verdict: _those(found, verdict) for verdict in Verdict}
    said = "; ".join(f"{verdict.value} ({_listed(names, brief)})" for verdict, names in those.items() if names)
    return [f"Stress tests, of a federation that was changed for them: {said}."] if said else []


def _broken(result: AuditResult, brief: bool) -> list[str]:
    """What broke has found nothing, and that is no safety."""
    failed = broken(result)
    said = [f"{one}: {one.reason}" for one in failed]
    return (
        [
            f"{counted(len(failed), 'attack')} broke, and nobody knows what {_they(failed)} would have found "
            f"({_listed(said, brief)})."
        ]
        if failed
        else []
    )


def _controls(result: AuditResult, brief: bool) -> list[str]:
    """What fires where there is nothing to find, as one of so many controls, and which scores it takes with it.

    A control speaks for the attack that it belongs to: for the same adversary, under the same defence, and no further.
    """
    scored = [one for one in result.findings if one.control and one.verdict is not Verdict.NOT_SCORED]
    fooled = [one for one in scored if one.among(len(scored)).verdict is Verdict.LEAKS]
    said = [_fooled(one, result.findings) for one in fooled]
    more = len(said) - 1 if brief else 0
    return [*said[:1], f"In all, {counted(more + 1, 'control')} do."] if more > 0 else said


def _fooled(control: Finding, findings: Sequence[Finding]) -> str:
    """Attacks keep the runs of the control that they are held against, seed by seed."""
    by = f" by {control.adversary}" if control.adversary else ""
    where = f"{control.family}: {control.attack}{by}, {_under(control.defence)}"
    said = f"A control finds what is not there ({where})"
    place = (control.family, control.defence)
    held = [one for one in findings if (one.family, one.defence) == place and one.control_runs == control.runs]
    beside = [one for one in held if one.adversary == control.adversary] or held
    names = "; ".join(dict.fromkeys(one.attack for one in beside))
    return f"{said}: what {names} scored there proves nothing." if names else f"{said}."


def _claims(result: AuditResult) -> list[str]:
    rows = [*result.as_configured, *result.defended]
    names = dict.fromkeys(one.defence for one in rows if one.promise and one.promise.outcome is Outcome.VIOLATED)
    if not names:
        return []
    said = f"{counted(len(names), 'claim')} of privacy {_is(len(names))} violated by measurement"
    return [f"{said} ({', '.join(names)})."]


def _learnt(result: AuditResult) -> list[str]:
    """A federation that is worth nothing leaks little, and that is no merit."""
    nothing = [one.defence for one in result.as_configured if one.learnt_nothing]
    if not nothing:
        return []
    names = ["undefended" if one == UNDEFENDED else f"under {one}" for one in nothing]
    named = " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
    return [f"{named[:1].upper()}{named[1:]}, it has learnt nothing that its clients would not have without it."]


def _omissions(result: AuditResult, brief: bool = False) -> list[str]:
    """What has no place here: counted, so that silence is not taken for safety."""
    places: dict[str, list[str]] = {}
    for one in result.left_out:
        if one.defence and not one.failed:
            places.setdefault(one.defence, []).append(one.family)
    count = sum(len(families) for families in places.values())
    said = "; ".join(f"{defence} in {', '.join(families)}" for defence, families in places.items())
    parts = [f"{counted(count, 'combination')} {_was(count)} left out{'' if brief else f': {said}'}."] if count else []
    kinds = [one.family for one in result.left_out if not one.defence and not one.failed]
    if kinds:
        named = "" if brief else f" ({', '.join(kinds)})"
        parts.append(f"{counted(len(kinds), 'kind')} of attack {_was(len(kinds))} not run{named}.")
    return parts


def _listed(names: Collection[str], brief: bool) -> str:
    more = len(names) - FEW if brief else 0
    shown = list(names)[: FEW if more > 0 else None]
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _under(defence: str) -> str:
    return "without a defence" if defence == UNDEFENDED else f"under {defence}"


def _families(findings: Sequence[Finding]) -> list[str]:
    return [one.family for one in findings]


def _those(found: dict[str, Finding], verdict: Verdict) -> dict[str, Finding]:
    return {family: one for family, one in found.items() if one.verdict is verdict}


def _kinds(families: dict[str, Finding]) -> str:
    return f"{counted(len(families), 'kind')} of attack"


def _they(things: Sequence[object]) -> str:
    return "it" if len(things) == 1 else "they"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
