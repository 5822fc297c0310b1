"""The audit: every admitted family, under every defence, with every seed; each is a job, and all of them one result."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel

from coterie.audit import curves, gate, work
from coterie.audit.case import AuditOptions, Subject, label
from coterie.audit.family import Family
from coterie.audit.plugins import all_families, find
from coterie.audit.recorded import Recording
from coterie.config.schema import Choice
from coterie.errors import CoterieError, InvalidInput
from coterie.measure.contradicted import settled
from coterie.measure.findings import AuditResult, LeftOut, Method
from coterie.privacy.guarantee import Level
from coterie.run.folder import versions
from coterie.run.jobs import Progress


def audit(
    subject: Subject,
    folder: Path,
    *,
    command: str = "",
    processes: int | None = None,
    progress: Progress | None = None,
    fresh: bool = False,
) -> AuditResult:
    """Train, attack and judge; or attack what was recorded.

    Jobs whose results the folder holds are not run again, unless ``fresh``.
    """
    started = time.monotonic()
    families = all_families(subject.audit.attacks)
    gate.require_sound(subject.limits, families)
    clients = "" if subject.recorded else subject.rehearse().describe()
    loose = _loose(subject)
    if loose and gate.EPSILON in subject.limits:
        raise InvalidInput(f"limit {gate.EPSILON}: {loose}")
    chosen, not_admitted = admitted(subject)
    wanted = [(family, choice) for family in chosen for choice in settings(family, subject)]
    named = [work.NONE, subject.defence, *subject.audit.compare]
    plan = work.Plan.of(subject, wanted, named, reading(chosen, subject))
    if fresh:  # all of it, what a frontier of the same command sweeps besides, too
        shutil.rmtree(folder / subject.fingerprint, ignore_errors=True)
    shown = work.run(plan, subject, folder, processes=processes, progress=progress)
    tried, run = shown.tried, list(dict.fromkeys(one.family for one in shown.tried))
    launched = [one for one in tried if one.choice == work.configured(one.family, subject)]
    served = [one.defended for one in launched] if subject.recorded else [shown.served[subject.defence]]
    left_out = [*not_admitted, *shown.left_out]
    rows = settled([*shown.served.values(), *(one.defended for one in tried)])
    return AuditResult(
        title=f"Audit of {subject.name}",
        subject=_words(subject, clients),
        findings=[finding for one in tried for finding in one.findings],
        defended=[] if subject.recorded else rows[len(shown.served) :],
        as_configured=rows[: len(shown.served)],
        charts=curves.over_rounds(tried) + [chart for one in tried for chart in one.evidence[0].charts],
        galleries=curves.galleries(tried),
        suspected=[row for one in tried for row in one.evidence[0].suspected],
        checks=gate.checks(gate.limits_of(subject.limits), launched, served, broke=_broke(left_out, families, subject)),
        methods=[_method(family, subject) for family in run],
        left_out=left_out,
        warned={**_cut_off(subject), **_further(subject), **({"delta": loose} if loose else {}), **shown.warned},
        reproduce={
            "command": command,
            "seeds": f"{subject.seed}" + (f" to {subject.seed + subject.seeds - 1}" if subject.seeds > 1 else ""),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "this run took": f"{time.monotonic() - started:.0f} s",
            **({"kept results": shown.kept} if shown.kept else {}),
            **versions(),
        },
        recorded=subject.recorded is not None,
        launched=label(subject.defence),
    )


def _broke(left_out: Sequence[LeftOut], families: Sequence[Family], subject: Subject) -> list[tuple[str, LeftOut]]:
    """Of what is launched, by the limit that is on it."""
    named = {one.name: one for one in families}
    return [
        (gate.leakage_limit(named[one.family], _is_stress(named[one.family], subject)), one)
        for one in left_out
        if one.failed and one.defence in ("", label(subject.defence))
    ]


def _is_stress(family: Family, subject: Subject) -> bool:
    """It broke, and may do so again."""
    try:
        return not subject.recorded and bool(family.differs(subject))
    except Exception:
        return False


def _cut_off(subject: Subject) -> dict[str, str]:
    """What is missing in a recording."""
    missing = Recording(subject).incomplete if subject.recorded else ""
    return {"the recording": missing} if missing else {}


def _loose(subject: Subject) -> str:
    """Why what is claimed says nothing: at such a delta one unit of all may be given away, however small epsilon is."""
    if subject.recorded or subject.delta * len(subject.federation().examples) < 1:
        return ""
    case = subject.case(subject.trainers[0])
    if case.promise is None:
        return ""
    said, held = case.promise.guarantee, case.federation
    units, thing = (held.clients, "client") if said.level is Level.CLIENT else (len(held.examples), "record")
    if said.delta * units < 1:
        return ""
    few = f"delta={said.delta:g} allows to give one {thing} of {units} away, however small epsilon is"
    return f"{few}; set delta to {0.1 / units:.0e} or less"


def _further(subject: Subject) -> dict[str, str]:
    """Trainers that training compares, and an audit passes over."""
    first, *others = subject.trainers
    if subject.recorded or not others:
        return {}
    names = ", ".join(label(one) for one in others)
    return {f"trainer: {names}": f"not audited, as it is not the first; what is said here is of {label(first)} alone"}


def _method(family: Family, subject: Subject) -> Method:
    differs = "" if subject.recorded else family.differs(subject)
    return Method(family.name, family.paper, family.question, family.threat, family.method, differs)


def admitted(subject: Subject) -> tuple[list[Family], list[LeftOut]]:
    """The families that will be run, and why the others will not."""
    chosen, left_out = [], []
    recording = Recording(subject) if subject.recorded else None
    named = subject.audit.attacks
    wanted = {find(name, named).name for name in subject.audit.families}
    for family in all_families(named):
        if wanted and family.name not in wanted:
            left_out.append(LeftOut(family.name, "not asked for"))
        else:
            reason, broke = _why_not(family, subject, recording)
            if reason and wanted and not broke:  # an audit without it would not be what was asked for
                raise InvalidInput(f"family {family.name!r}, which was asked for, has no place here: {reason}")
            if reason:
                left_out.append(LeftOut(family.name, reason, failed=broke))
            else:
                chosen.append(family)
    return chosen, left_out


def _why_not(family: Family, subject: Subject, recording: Recording | None) -> tuple[str, bool]:
    """Why a family has no place here, and whether that is because it broke when it was asked."""
    try:
        if recording:
            return family.admits_recording(recording), False
        if why := family.admits(subject):
            return why, False
        for ask in (family.defences, family.threats, family.differs, family.protocol, family.sweep):
            ask(subject)
    except CoterieError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}", True
    return "", False


def settings(family: Family, subject: Subject) -> list[Choice]:
    """No defence first, then the one that is configured, then those to compare with; of a recording, its own.

    Where none of those that the user names has a place, the family's own few are compared as well.
    """
    if subject.recorded:
        return [subject.defence]
    named = subject.audit.compare
    own = () if any(not family.misfit(subject, choice) for choice in named) else family.defences(subject)
    return list(dict.fromkeys([work.NONE, subject.defence, *named, *own]))


def reading(families: Sequence[Family], subject: Subject) -> list[tuple[Family, Choice]]:
    """Who may read which reference run, in an audit or in its frontier: both keep the same runs of it."""
    if subject.recorded:
        return []
    named = {one.name: [*settings(one, subject), *(choice for choice, _ in one.sweep(subject))] for one in families}
    return [(family, choice) for family in families for choice in named[family.name]]


def _words(subject: Subject, clients: str) -> dict[str, str]:
    asked = {"property that is asked about": subject.asked} if subject.asked else {}
    if subject.recorded:
        return {
            "recording": str(subject.recorded.folder),
            "scored by": subject.recorded.truth or "nothing: no truth was given",
            "the adversary's data": label(subject.data),
            "model": label(subject.model),
            "trainer": label(subject.trainers[0]),
            "defence": label(subject.defence),
            **asked,
            **_other_settings(subject),
        }
    return {
        "data": label(subject.data),
        "clients": clients,
        "partition": label(subject.partition),
        "model": label(subject.model),
        "trainer": label(subject.trainers[0]),
        "defence": label(subject.defence),
        **asked,
        **_other_settings(subject),
    }


def _other_settings(subject: Subject) -> dict[str, str]:
    """Where attacks try harder or less hard than by default: who reads a verdict must know."""
    usual, told = AuditOptions(), []
    for name in AuditOptions.model_fields:
        own, default = getattr(subject.audit, name), getattr(usual, name)
        if isinstance(default, BaseModel) and own != default:
            changed = [f"{key} {value}" for key, value in own if value != getattr(default, key)]
            told.append(f"{name.replace('_', ' ')} ({', '.join(changed)})")
    return {"attacks set otherwise": ", ".join(told)} if told else {}
