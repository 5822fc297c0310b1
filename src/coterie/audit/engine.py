"""The audit: every admitted family, under every defence, with every seed; each is a job, and all of them one result."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from coterie.audit import curves, gate, work
from coterie.audit.case import Subject, check_limits, label
from coterie.audit.evidence import Claimed, Evidence, Scored
from coterie.audit.family import Family, all_families, find
from coterie.audit.recorded import Recording
from coterie.config.schema import Choice
from coterie.measure.claims import Outcome
from coterie.measure.findings import (
    AuditResult,
    Chart,
    ClaimVerdict,
    Defended,
    Leak,
    Measured,
    Method,
    Series,
    Suspected,
)
from coterie.measure.judge import t_interval
from coterie.run.folder import versions
from coterie.run.jobs import Progress


def audit(
    subject: Subject,
    folder: Path,
    *,
    command: str = "",
    processes: int | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Train, attack and judge; or attack what was recorded. Jobs whose results the folder holds are not run again."""
    started = time.monotonic()
    chosen, left_out = admitted(subject)
    check_limits(subject.limits, gate.known_limits(all_families()))
    subject.rehearse()
    plan = [(family, choice) for family in chosen for choice in settings(family, subject)]
    shown = work.run(plan, subject, folder, processes=processes, progress=progress)
    found, run = shown.found, list(dict.fromkeys(family for family, _, _ in shown.found))

    def launched(family: Family, choice: Choice) -> bool:
        return choice == work.configured(family, subject)

    return AuditResult(
        title=f"Audit of {subject.name}",
        subject=_words(subject),
        leaks=[leak for family, choice, evidence in found for leak in leaks(family, choice, evidence)],
        defended=[] if subject.recorded else [defended(family, choice, evidence) for family, choice, evidence in found],
        charts=curves.over_rounds(found) + [_chart(row) for _, _, evidence in found for row in evidence[0].charts],
        galleries=curves.galleries(found),
        suspected=[Suspected(**row) for family, choice, evidence in found for row in evidence[0].suspected],
        checks=gate.checks(subject, [(family, rows) for family, choice, rows in found if launched(family, choice)]),
        methods=[Method(family.name, family.paper, family.question, family.threat, family.method) for family in run],
        left_out={**left_out, **shown.refused},
        warned=shown.warned,
        reproduce={
            "command": command,
            "seeds": f"{subject.seed}" + (f" to {subject.seed + subject.seeds - 1}" if subject.seeds > 1 else ""),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "this run took": f"{time.monotonic() - started:.0f} s",
            **versions(),
        },
        recorded=subject.recorded is not None,
    )


def admitted(subject: Subject) -> tuple[list[Family], dict[str, str]]:
    """The families that will be run, and why the others will not."""
    chosen, left_out = [], {}
    recording = Recording(subject) if subject.recorded else None
    wanted = {find(name).name for name in subject.audit.families}
    for family in all_families():
        if wanted and family.name not in wanted:
            left_out[family.name] = "not asked for"
        elif reason := family.admits_recording(recording) if recording else family.admits(subject):
            left_out[family.name] = reason
        else:
            chosen.append(family)
    return chosen, left_out


def settings(family: Family, subject: Subject) -> list[Choice]:
    """No defence first, then the one that is configured, then those to compare with; of a recording, its own."""
    if subject.recorded:
        return [subject.defence]
    compare = [choice for choice in subject.audit.compare if family.accepts(choice)] or family.defences(subject)
    rows = [Choice(kind="none"), work.configured(family, subject), *compare]
    return list(dict.fromkeys(rows))


def leaks(family: Family, choice: Choice, evidence: Sequence[Evidence]) -> list[Leak]:
    rows = []
    for number, first in enumerate(evidence[0].scored):
        same = [one.scored[number] for one in evidence]
        score = score_of(same)
        rows.append(
            Leak(
                family=family.name,
                attack=first.attack,
                adversary=first.adversary,
                defence=label(choice),
                measure=first.measure,
                score=score,
                chance=float(np.mean([one.chance for one in same])),
                perfect=first.perfect,
                seeds=len(same),
                knew=first.knew,
                sentence=_sentence(first, score, label(choice)),
                control=first.control,
                roc=_roc(same),
            )
        )
    return rows


def score_of(same: Sequence[Scored]) -> Measured:
    """One attack's score over seeds; of a single run, with the interval over what was observed in it."""
    first = same[0]
    if len(same) == 1 and first.interval is not None:
        return Measured(first.score, *first.interval)
    least = 0.0 if first.chance > 0 else -first.perfect
    return measured([one.score for one in same], least, first.perfect)


def measured(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Measured:
    """The mean with Student's interval, which knows no bounds, cut to what such a score can be."""
    low, high = t_interval(values)
    return Measured(float(np.mean(values)), max(low, least), min(high, most))


def _sentence(row: Scored, score: Measured, defence: str) -> str:
    under = "without a defence" if defence == "none" else f"under {defence}"
    if math.isnan(score.value):
        return f"{capital(row.attack)} by {a(row.adversary)} was run {under} and not scored: no truth was given."
    what = f"{row.attack} by {a(row.adversary)} scores {score} ({row.measure}; chance {row.chance:.3f}) {under}"
    if row.control:
        return f"Control, in which there is nothing to find: {what}."
    if not math.isnan(score.low) and score.low > row.chance:
        return f"{capital(what)}: it leaks."
    return f"{capital(what)}: no more than chance explains."


def a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiou" else f"a {noun}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _roc(rows: Sequence[Scored]) -> tuple[list[float], list[float]] | None:
    """One curve over all seeds' observations, thinned to what a chart can show."""
    from sklearn.metrics import roc_curve

    scores = [score for row in rows if row.suspicions for score in row.suspicions[0]]
    answers = [answer for row in rows if row.suspicions for answer in row.suspicions[1]]
    if len(set(answers)) < 2:
        return None
    false_rates, true_rates, _ = roc_curve(answers, scores)
    keep = np.unique(np.linspace(0, len(false_rates) - 1, 100).astype(int))
    return false_rates[keep].tolist(), true_rates[keep].tolist()


def defended(family: Family, choice: Choice, evidence: Sequence[Evidence]) -> Defended:
    claims = [one.claim for one in evidence if one.claim is not None]
    return Defended(
        family=family.name,
        defence=label(choice),
        utility_measure=evidence[0].utility_measure,
        utility=utility_of(evidence),
        seconds=float(np.mean([one.seconds for one in evidence])),
        upload_bytes=float(np.mean([one.upload_bytes for one in evidence])),
        memory_bytes=float(max(one.memory_bytes for one in evidence)),
        claim=_worst(claims),
    )


def utility_of(evidence: Sequence[Evidence]) -> Measured:
    most = 1.0 if evidence[0].utility_measure == "accuracy" else math.inf
    return measured([one.utility for one in evidence], 0.0, most)


def _worst(claims: Sequence[Claimed]) -> ClaimVerdict | None:
    """A claim is violated if any seed violates it; the lower bound is the largest."""
    if not claims:
        return None
    order = [Outcome.HOLDS.value, Outcome.NOT_REFUTED.value, Outcome.VIOLATED.value]
    worst = max(claims, key=lambda claim: (order.index(claim.outcome), claim.epsilon))
    bounds = [claim.lower_bound for claim in claims if claim.lower_bound is not None]
    return ClaimVerdict(
        claim=worst.text,
        epsilon=max(float(claim.epsilon) for claim in claims),
        delta=worst.delta,
        level=worst.level,
        trust=worst.trust,
        lower_bound=max(bounds) if bounds else None,
        outcome=Outcome(worst.outcome),
        evidence=worst.evidence,
        proven=worst.proven,
    )


def _chart(row: dict[str, Any]) -> Chart:
    return Chart(**row | {"series": [Series(**series) for series in row["series"]]})


def _words(subject: Subject) -> dict[str, str]:
    if subject.recorded:
        return {
            "recording": str(subject.recorded.folder),
            "scored by": subject.recorded.truth or "nothing: no truth was given",
            "the adversary's data": label(subject.data),
            "model": label(subject.model),
            "trainer": label(subject.trainers[0]),
            "defence": label(subject.defence),
        }
    return {
        "data": label(subject.data),
        "partition": label(subject.partition),
        "model": label(subject.model),
        "trainer": ", ".join(label(choice) for choice in subject.trainers),
        "defence": label(subject.defence),
    }
