"""Families under defences with seeds, as jobs, and the reference runs beside them: what each of them showed, and what
did not fit this federation."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.audit import fitting, reference
from coterie.audit.case import Subject, label
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family, find
from coterie.audit.recorded import Recording
from coterie.audit.reference import AS_CONFIGURED
from coterie.audit.tried import Tried, defended
from coterie.config.schema import Choice
from coterie.errors import Diverged, InvalidInput
from coterie.measure.cost import forget_peak
from coterie.measure.findings import Defended, LeftOut
from coterie.measure.plain import from_plain, to_plain
from coterie.run.fingerprint import digest
from coterie.run.jobs import Job, Progress, Result, run_jobs

EVIDENCE, REFUSED, WARNED = "evidence", "refused", "warned"
NONE = Choice(kind="none")
BESIDE: dict[str, bool | set[str]] = {"name": True, "limits": True, "audit": {"seeds", "families", "compare"}}
"""What a subject says that no single measurement depends on: results are kept when it changes."""


@dataclass(frozen=True)
class Plan:
    """What will be run, and what has no place: known before anything is."""

    tries: Sequence[tuple[Family, Choice]] = ()
    references: Sequence[Choice] = ()  # the federation as configured, under these defences
    left_out: Sequence[LeftOut] = ()

    @staticmethod
    def of(subject: Subject, wanted: Iterable[tuple[Family, Choice]], references: Iterable[Choice]) -> Plan:
        """Every defence is asked whether it fits what is really run; a recording was run already."""
        if subject.recorded:
            return Plan(list(wanted))
        tries, runs, left_out = [], [], []
        trained = subject.protocol(subject.trainers[0])
        for choice in dict.fromkeys(references):
            if why := fitting.why_not(choice, trained):
                left_out.append(LeftOut(AS_CONFIGURED, why, label(choice)))
            else:
                runs.append(choice)
        for family, choice in wanted:
            if why := family.misfit(subject, choice):
                left_out.append(LeftOut(family.name, why, label(choice)))
            else:
                tries.append((family, choice))
        return Plan(tries, runs, left_out)


@dataclass(frozen=True)
class Shown:
    """What was tried, what was left out because it does not fit, and warnings on the way, by what they concern."""

    tried: Sequence[Tried] = ()
    served: Mapping[Choice, Defended] = field(default_factory=dict)  # the federation as configured, by defence
    left_out: Sequence[LeftOut] = ()
    warned: Mapping[str, str] = field(default_factory=dict)


def run(
    plan: Plan, subject: Subject, folder: Path, *, processes: int | None = None, progress: Progress | None = None
) -> Shown:
    """Jobs whose results the folder holds for these very settings are not run again."""
    jobs = list(jobs_of(plan, subject))
    results = run_jobs(jobs, folder / subject.fingerprint, processes=processes, progress=progress)
    left_out, warned = list(plan.left_out), dict[str, str]()
    tried: list[Tried] = []
    served: dict[Choice, Defended] = {}

    def shown(family: str, choice: Choice) -> list[Evidence]:
        """One a seed; none where one of them was refused."""
        rows = [results[key_of(family, choice, seed)] for seed in range(subject.seeds)]
        one = LeftOut(family, "", "" if choice == NONE else label(choice))
        if reasons := [row[REFUSED] for row in rows if REFUSED in row]:
            left_out.append(LeftOut(one.family, reasons[0], one.defence))
            return []
        if told := list(dict.fromkeys(text for row in rows for text in row.get(WARNED, ()))):
            warned[str(one)] = told[0] + (f" (and {len(told) - 1} more of the kind)" if len(told) > 1 else "")
        return [evidence_from(row) for row in rows]

    for choice in plan.references:
        if found := shown(AS_CONFIGURED, choice):
            served[choice] = defended(AS_CONFIGURED, label(choice), found)
    for family, choice in plan.tries:
        if family.name in [one.family for one in left_out if not one.defence]:
            continue  # nothing to compare a defence with
        if found := shown(family.name, choice):
            tried.append(Tried(family, choice, found))
    if plan.tries and not tried:
        raise InvalidInput(f"no attack could be run: {'; '.join(f'{one}: {one.reason}' for one in left_out)}")
    return Shown(tried, served, left_out, warned)


def jobs_of(plan: Plan, subject: Subject) -> Iterator[Job]:
    """One job a family, defence and seed. What is configured to be launched with matters to recordings alone."""
    said = subject.model_dump(exclude=BESIDE if subject.recorded else {**BESIDE, "defence": True})
    trained = {name: value for name, value in said.items() if name != "audit"}
    for seed in range(subject.seeds):
        for choice in plan.references:
            needed = choice in (NONE, subject.defence)
            arguments = {"subject": trained, "defence": choice.model_dump(), "seed": subject.seed + seed}
            yield Job(key_of(AS_CONFIGURED, choice, seed), run_reference, {**arguments, "needed": needed})
    for family, choice in plan.tries:
        needed = choice == (subject.defence if subject.recorded else NONE) and asked_for(family, subject)
        for seed in range(subject.seeds):
            arguments = {"subject": said, "defence": choice.model_dump(), "seed": subject.seed + seed}
            named = {"family": family.name, **arguments, "needed": needed}
            yield Job(key_of(family.name, choice, seed), run_one, named)


def asked_for(family: Family, subject: Subject) -> bool:
    """Whether the user named it, so that an audit without it would not be what was asked for."""
    return subject.recorded is not None or family.name in subject.audit.families


def configured(family: Family, subject: Subject) -> Choice:
    """The defence that is to be launched with, where it has a place in this family; else none."""
    return NONE if not subject.recorded and family.misfit(subject, subject.defence) else subject.defence


def run_one(family: str, subject: dict[str, Any], defence: dict[str, Any], seed: int, needed: bool) -> Result:
    """One family, from plain values, in a process of its own."""
    asked, choice, chosen = Subject.model_validate(subject), Choice.model_validate(defence), find(family)

    def measure() -> Evidence:
        return chosen.replay(Recording(asked), seed) if asked.recorded else chosen.measure(asked, choice, seed)

    return _told(measure, choice, needed)


def run_reference(subject: dict[str, Any], defence: dict[str, Any], seed: int, needed: bool) -> Result:
    """The federation as configured, from plain values, in a process of its own."""
    asked, choice = Subject.model_validate(subject), Choice.model_validate(defence)
    return _told(lambda: reference.measure(asked, choice, seed), choice, needed)


def _told(measure: Callable[[], Evidence], choice: Choice, needed: bool) -> Result:
    """What was measured, or why it was not; what is needed, and undefended training that diverges, raises."""
    forget_peak()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            evidence = measure()
        except (InvalidInput, Diverged) as error:
            if needed or (isinstance(error, Diverged) and choice == NONE):
                raise
            return {REFUSED: str(error)}
    return {EVIDENCE: to_plain(evidence), WARNED: [f"{one.category.__name__}: {one.message}" for one in told]}


def key_of(family: str, choice: Choice, seed: int) -> str:
    """The words are for people; what tells two settings apart is the digest of the settings themselves."""
    settings = digest([json.dumps(choice.model_dump(mode="json"), sort_keys=True)])[:6]
    text = f"{family}/{label(choice)}-{settings}-seed{seed}"
    return "".join(letter if letter.isalnum() or letter in "/.=+,-_" else "_" for letter in text)


def evidence_from(row: Result) -> Evidence:
    return from_plain(Evidence, row[EVIDENCE])
