"""Families under defences with seeds, as jobs: what each of them showed, and what did not fit this federation."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.audit.case import Subject, label
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family, find
from coterie.audit.recorded import Recording
from coterie.audit.tried import Tried
from coterie.config.schema import Choice
from coterie.errors import Diverged, InvalidInput
from coterie.measure.plain import from_plain, to_plain
from coterie.run.fingerprint import digest
from coterie.run.jobs import Job, Progress, Result, run_jobs

EVIDENCE, REFUSED, WARNED = "evidence", "refused", "warned"
BESIDE: dict[str, bool | set[str]] = {"name": True, "limits": True, "audit": {"seeds", "families", "compare"}}
"""What a subject says that no single measurement depends on: results are kept when it changes."""


@dataclass(frozen=True)
class Shown:
    """What was tried, what was left out because it does not fit, and warnings on the way, by what they concern."""

    tried: Sequence[Tried] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    warned: Mapping[str, str] = field(default_factory=dict)


def run(
    plan: Sequence[tuple[Family, Choice]],
    subject: Subject,
    folder: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Shown:
    """Jobs whose results the folder holds for these very settings are not run again."""
    jobs = jobs_of(plan, subject)
    results = run_jobs(jobs, folder / subject.fingerprint, processes=processes, progress=progress)
    refused: dict[str, str] = {}
    warned: dict[str, str] = {}
    tried: list[Tried] = []
    for family, choice in plan:
        rows = [results[key_of(family.name, choice, seed)] for seed in range(subject.seeds)]
        name = family.name if choice.kind == "none" else f"{family.name} under {label(choice)}"
        reasons = [row[REFUSED] for row in rows if REFUSED in row]
        told = list(dict.fromkeys(text for row in rows for text in row.get(WARNED, ())))
        if family.name in refused:  # nothing to compare a defence with
            continue
        if reasons:
            refused[name] = reasons[0]
            continue
        if told:
            warned[name] = told[0] + (f" (and {len(told) - 1} more of the kind)" if len(told) > 1 else "")
        tried.append(Tried(family, choice, [evidence_from(row) for row in rows]))
    if plan and not tried:
        raise InvalidInput(f"no attack could be run: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")
    return Shown(tried, refused, warned)


def jobs_of(plan: Iterable[tuple[Family, Choice]], subject: Subject) -> list[Job]:
    """One job a family, defence and seed. What is configured to be launched with matters to recordings alone."""
    said = subject.model_dump(exclude=BESIDE if subject.recorded else {**BESIDE, "defence": True})
    return [
        Job(
            key_of(family.name, choice, seed),
            run_one,
            {
                "family": family.name,
                "subject": said,
                "defence": choice.model_dump(),
                "seed": subject.seed + seed,
                "needed": needed(family, choice, subject),
            },
        )
        for family, choice in plan
        for seed in range(subject.seeds)
    ]


def needed(family: Family, choice: Choice, subject: Subject) -> bool:
    """Whether the user asked for this by name, so that it must not be left out in silence."""
    if subject.recorded or family.name in subject.audit.families:
        return choice.kind == "none" or choice == subject.defence
    return choice.kind != "none" and choice == configured(family, subject)


def configured(family: Family, subject: Subject) -> Choice:
    """The defence that is to be launched with, where it has a place in this family; else none."""
    return subject.defence if subject.recorded or family.accepts(subject.defence) else Choice(kind="none")


def run_one(family: str, subject: dict[str, Any], defence: dict[str, Any], seed: int, needed: bool) -> Result:
    """One job, from plain values, in a process of its own."""
    asked, choice, chosen = Subject.model_validate(subject), Choice.model_validate(defence), find(family)
    forget_peak()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            evidence = chosen.replay(Recording(asked), seed) if asked.recorded else chosen.measure(asked, choice, seed)
        except (InvalidInput, Diverged) as error:
            if needed or (isinstance(error, Diverged) and choice.kind == "none"):
                raise
            return {REFUSED: str(error)}
    return {EVIDENCE: to_plain(evidence), WARNED: [f"{one.category.__name__}: {one.message}" for one in told]}


def forget_peak() -> None:
    """Let the peak of memory count from here on, where the system can: a process runs many jobs."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def key_of(family: str, choice: Choice, seed: int) -> str:
    """The words are for people; what tells two settings apart is the digest of the settings themselves."""
    settings = digest([json.dumps(choice.model_dump(mode="json"), sort_keys=True)])[:6]
    text = f"{family}/{label(choice)}-{settings}-seed{seed}"
    return "".join(letter if letter.isalnum() or letter in "/.=+,-_" else "_" for letter in text)


def evidence_from(row: Result) -> Evidence:
    return from_plain(Evidence, row[EVIDENCE])
