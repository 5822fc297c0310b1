"""The audit: every admitted family, under every defence, with every seed; each is a job, and all of them one result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from coterie.audit import gate
from coterie.audit.family import Claimed, Evidence, Family, Scored, all_families, find
from coterie.audit.result import (
    AuditResult,
    Chart,
    ClaimVerdict,
    Defended,
    Gallery,
    Leak,
    Measured,
    Method,
    Series,
)
from coterie.audit.subject import Subject, check_limits, label
from coterie.measure.claims import Outcome
from coterie.measure.judge import t_interval
from coterie.run.config import Choice
from coterie.run.folder import versions
from coterie.run.jobs import Job, Progress, Result, run_jobs


def audit(
    subject: Subject,
    folder: Path,
    *,
    command: str = "",
    processes: int | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Train, attack and judge. Jobs whose results the folder holds are not run again."""
    started = time.monotonic()
    chosen, left_out = admitted(subject)
    check_limits(subject.limits, gate.known_limits(all_families()))
    plan = {family.name: settings(family, subject) for family in chosen}
    jobs = [
        Job(key_of(name, choice, seed), run_one, arguments(name, subject, choice, seed))
        for name, choices in plan.items()
        for choice in choices
        for seed in range(subject.audit.seeds)
    ]
    results = run_jobs(jobs, folder, processes=processes, progress=progress)
    found = [
        (family, choice, evidence_of(family.name, choice, subject.audit.seeds, results))
        for family in chosen
        for choice in plan[family.name]
    ]

    def launched(family: Family, choice: Choice) -> bool:
        return label(choice) == label(configured(family, subject))

    return AuditResult(
        title=f"Audit of {subject.name}",
        subject=_words(subject),
        leaks=[leak for family, choice, evidence in found for leak in leaks(family, choice, evidence)],
        defended=[defended(family, choice, evidence) for family, choice, evidence in found],
        charts=[_chart(row) for family, choice, evidence in found for row in evidence[0].charts],
        galleries=[Gallery(**row) for family, choice, evidence in found for row in evidence[0].galleries],
        checks=gate.checks(subject, [(family, rows) for family, choice, rows in found if launched(family, choice)]),
        methods=[Method(family.name, family.paper, family.question, family.threat, family.method) for family in chosen],
        left_out=left_out,
        reproduce={
            "command": command,
            "seeds": f"{subject.seed} to {subject.seed + subject.audit.seeds - 1}",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "duration": f"{time.monotonic() - started:.0f} s",
            **versions(),
        },
    )


def admitted(subject: Subject) -> tuple[list[Family], dict[str, str]]:
    """The families that will be run, and why the others will not."""
    chosen, left_out = [], {}
    wanted = {find(name).name for name in subject.audit.families}
    for family in all_families():
        if wanted and family.name not in wanted:
            left_out[family.name] = "not asked for"
        elif reason := family.admits(subject):
            left_out[family.name] = reason
        else:
            chosen.append(family)
    return chosen, left_out


def settings(family: Family, subject: Subject) -> list[Choice]:
    """No defence first, then the one that is configured, then those to compare with."""
    compare = [choice for choice in subject.audit.compare if family.accepts(choice)] or family.defences(subject)
    rows = [Choice(kind="none"), configured(family, subject), *compare]
    return list({label(choice): choice for choice in rows}.values())


def configured(family: Family, subject: Subject) -> Choice:
    """The defence that is to be launched with, where it has a place in this family; else none."""
    return subject.defence if family.accepts(subject.defence) else Choice(kind="none")


def run_one(family: str, subject: dict[str, Any], defence: dict[str, Any], seed: int) -> Result:
    """One job, from plain values, in a process of its own."""
    return find(family).measure(Subject.model_validate(subject), Choice.model_validate(defence), seed).plain()


def arguments(name: str, subject: Subject, choice: Choice, seed: int) -> dict[str, Any]:
    return {
        "family": name,
        "subject": subject.model_dump(),
        "defence": choice.model_dump(),
        "seed": subject.seed + seed,
    }


def key_of(family: str, choice: Choice, seed: int) -> str:
    text = f"{family}/{label(choice)}-seed{seed}"
    return "".join(letter if letter.isalnum() or letter in "/.=+,-_" else "_" for letter in text)


def evidence_of(family: str, choice: Choice, seeds: int, results: Mapping[str, Result]) -> list[Evidence]:
    return [evidence_from(results[key_of(family, choice, seed)]) for seed in range(seeds)]


def evidence_from(row: Result) -> Evidence:
    claim = row["claim"]
    scored = [Scored(**one) for one in row["scored"]]
    return Evidence(**row | {"scored": scored, "claim": None if claim is None else Claimed(**claim)})


def leaks(family: Family, choice: Choice, evidence: Sequence[Evidence]) -> list[Leak]:
    rows = []
    for number, first in enumerate(evidence[0].scored):
        same = [one.scored[number] for one in evidence]
        score = measured([one.score for one in same])
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


def measured(values: Sequence[float]) -> Measured:
    return Measured(float(np.mean(values)), *t_interval(values))


def _sentence(row: Scored, score: Measured, defence: str) -> str:
    under = "without a defence" if defence == "none" else f"under {defence}"
    what = f"{row.attack} by a {row.adversary} scores {score} ({row.measure}; chance {row.chance:.3f}) {under}"
    if row.control:
        return f"Control, in which there is nothing to find: {what}."
    if not math.isnan(score.low) and score.low > row.chance:
        return f"{what[0].upper()}{what[1:]}: it leaks."
    return f"{what[0].upper()}{what[1:]}: no more than chance explains."


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
        utility=measured([one.utility for one in evidence]),
        seconds=float(np.mean([one.seconds for one in evidence])),
        upload_bytes=float(np.mean([one.upload_bytes for one in evidence])),
        memory_bytes=float(max(one.memory_bytes for one in evidence)),
        claim=_worst(claims),
    )


def _worst(claims: Sequence[Claimed]) -> ClaimVerdict | None:
    """A claim is violated if any seed violates it; the lower bound is the largest."""
    if not claims:
        return None
    order = [Outcome.HOLDS.value, Outcome.NOT_REFUTED.value, Outcome.VIOLATED.value]
    worst = max(claims, key=lambda claim: order.index(claim.outcome))
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
    )


def _chart(row: dict[str, Any]) -> Chart:
    return Chart(**row | {"series": [Series(**series) for series in row["series"]]})


def _words(subject: Subject) -> dict[str, str]:
    return {
        "data": label(subject.data),
        "partition": label(subject.partition),
        "model": label(subject.model),
        "trainer": ", ".join(label(choice) for choice in subject.trainers),
        "defence": label(subject.defence),
    }
