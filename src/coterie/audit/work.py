"""Families under defences with seeds, as jobs, and the reference runs beside them: what each of them showed, and what
did not fit this federation."""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from coterie.audit import reference
from coterie.audit.case import Subject, label
from coterie.audit.evidence import Evidence
from coterie.audit.family import Family
from coterie.audit.objects import subject_from
from coterie.audit.plugins import code_of, find
from coterie.audit.recorded import Recording
from coterie.audit.reference import AS_CONFIGURED
from coterie.audit.tried import Tried, defended
from coterie.config.registry import Words
from coterie.config.schema import Choice
from coterie.errors import Diverged, InvalidInput
from coterie.measure.cost import forget_peak
from coterie.measure.findings import Defended, LeftOut
from coterie.measure.plain import from_plain, to_plain
from coterie.run.fingerprint import digest
from coterie.run.jobs import Job, Progress, Result, forget, run_jobs

EVIDENCE, REFUSED, BROKE, WARNED, READ = "evidence", "refused", "broke", "warned", "read"
NONE = Choice(kind="none")
BESIDE: dict[str, bool | set[str]] = {
    "name": True,
    "limits": True,
    "audit": {"seeds", "families", "compare", "attacks"},
}
"""What a subject says that no single measurement depends on: results are kept when it changes."""


@dataclass(frozen=True)
class Plan:
    """What will be run, and what has no place: known before anything is."""

    tries: Sequence[tuple[Family, Choice]] = ()
    references: Sequence[Choice] = ()  # the federation as configured, under these defences
    left_out: Sequence[LeftOut] = ()
    reads: Sequence[tuple[Family, Choice]] | None = None  # who reads which reference run; None: those that are tried

    @staticmethod
    def of(
        subject: Subject,
        wanted: Iterable[tuple[Family, Choice]],
        references: Iterable[Choice],
        reading: Iterable[tuple[Family, Choice]] | None = None,
    ) -> Plan:
        """Every defence is asked whether it fits what is really run; a recording was run already.

        What a family reads off the reference run needs that run, whoever named the defence. ``reading``: all that read
        one, in this plan or in another on the same subject, so that one kept run serves both.
        """
        if subject.recorded:
            return Plan(list(wanted))
        tries: list[tuple[Family, Choice]] = []
        left_out: list[LeftOut] = []
        trained, named = subject.launched, list(references)
        for family, choice in wanted:
            if why := family.misfit(subject, choice):
                left_out.append(LeftOut(family.name, why, label(choice)))
            else:
                tries.append((family, choice))
                named += [choice] if family.threats(subject) else []
        runs = []
        for choice in dict.fromkeys(named):
            if why := subject.why_not(choice, trained):
                left_out.append(LeftOut(AS_CONFIGURED, why, label(choice)))
            else:
                runs.append(choice)
        if reading is None:
            return Plan(tries, runs, left_out)
        here = [one for one in dict.fromkeys(reading) if one[1] in runs and one[0].threats(subject)]
        return Plan(tries, runs, left_out, [one for one in here if not one[0].misfit(subject, one[1])])

    def readers(self, subject: Subject, choice: Choice) -> list[Family]:
        """Those who read the reference run under this defence."""
        reads = self.tries if self.reads is None else self.reads
        return [family for family, tried in reads if tried == choice and family.threats(subject)]


@dataclass(frozen=True)
class Shown:
    """What was tried, what was left out because it does not fit, and warnings on the way, by what they concern."""

    tried: Sequence[Tried] = ()
    served: Mapping[Choice, Defended] = field(default_factory=dict)  # the federation as configured, by defence
    left_out: Sequence[LeftOut] = ()
    warned: Mapping[str, str] = field(default_factory=dict)
    kept: str = ""  # how many results are from before, in words


def run(
    plan: Plan,
    subject: Subject,
    folder: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Shown:
    """Jobs whose results the folder holds for these very settings are not run again."""
    jobs, said = list(jobs_of(plan, subject)), list[str]()

    def tell(done: int, total: int, key: str) -> None:
        said.append(key)
        if progress is not None:
            progress(done, total, key)

    place = folder / subject.fingerprint
    results = run_jobs(jobs, place, processes=processes, progress=tell)
    for key, row in results.items():
        if any(BROKE in one for one in (row, *row.get(READ, {}).values())):
            forget(place, key)  # what broke is tried again
    read = _Reading(subject, results, list(plan.left_out))
    served = read.served(plan.references)
    tried = read.tried(plan.tries)
    if plan.tries and not tried:
        raise InvalidInput(f"no attack could be run: {'; '.join(f'{one}: {one.reason}' for one in read.left_out)}")
    return Shown(tried, served, read.left_out, read.warned, said[0])


@dataclass
class _Reading:
    """What jobs handed back, by key. What was refused, or broke, is left out with its reason."""

    subject: Subject
    results: Mapping[str, Result]
    left_out: list[LeftOut]
    warned: dict[str, str] = field(default_factory=dict)

    @cached_property
    def repeated(self) -> frozenset[str]:
        return frozenset() if self.subject.recorded else self.subject.repeated_units

    def served(self, references: Sequence[Choice]) -> dict[Choice, Defended]:
        """How the federation as configured serves its clients, by defence."""
        found: dict[Choice, Defended] = {}
        undefended = self._evidence(AS_CONFIGURED, NONE) if NONE in references else []
        for choice in references:
            if evidence := undefended if choice == NONE else self._evidence(AS_CONFIGURED, choice):
                repeated = "clients" in self.repeated
                found[choice] = defended(AS_CONFIGURED, label(choice), evidence, undefended, repeated)
        return found

    def tried(self, tries: Sequence[tuple[Family, Choice]]) -> list[Tried]:
        found, subject = list[Tried](), self.subject
        for family, choice in tries:
            if family.name in [one.family for one in self.left_out if not one.defence]:
                continue  # nothing to compare a defence with
            reads = not subject.recorded and bool(family.threats(subject))
            if evidence := self._evidence(family.name, choice, reads):
                stress = "" if subject.recorded else family.differs(subject)
                units = {one.unit for each in evidence for one in each.findings}
                once = frozenset(units) if subject.recorded else self.repeated
                found.append(Tried(family, choice, evidence, bool(stress), once))
        return found

    def _evidence(self, family: str, choice: Choice, reads: bool = False) -> list[Evidence]:
        """One a seed; none where one of them was refused, or broke."""
        seeds = range(self.subject.seeds)
        rows = [self.results[key_of(AS_CONFIGURED if reads else family, choice, seed)] for seed in seeds]
        if reads and not any(REFUSED in row for row in rows):
            rows = [row[READ][family] for row in rows]
        one = LeftOut(family, "", "" if choice == NONE else label(choice))
        for what in (BROKE, REFUSED):
            if reasons := [row[what] for row in rows if what in row]:
                self.left_out.append(replace(one, reason=reasons[0], failed=what == BROKE))
                return []
        found = [evidence_from(row) for row in rows]
        if why := "" if family == AS_CONFIGURED else _inconsistent(found):
            self.left_out.append(replace(one, reason=why, failed=True))
            return []
        if told := list(dict.fromkeys(text for row in rows for text in row.get(WARNED, ()))):
            self.warned[str(one)] = told[0] + (f" (and {len(told) - 1} more of the kind)" if len(told) > 1 else "")
        return found


def jobs_of(plan: Plan, subject: Subject) -> Iterator[Job]:
    """One job a reference run, with all that is read off it, and one a family that runs something of its own."""
    said = subject.model_dump(exclude=BESIDE if subject.recorded else {**BESIDE, "defence": True})
    for seed in range(subject.seeds):
        for choice in plan.references:
            readers = plan.readers(subject, choice)
            arguments = {
                "subject": said if readers else {name: value for name, value in said.items() if name != "audit"},
                "defence": choice.model_dump(),
                "seed": subject.seed + seed,
                "needed": choice in (NONE, subject.defence),
                "families": {family.name: choice == NONE and asked_for(family, subject) for family in readers},
                "own": _own(readers),
            }
            yield Job(key_of(AS_CONFIGURED, choice, seed), run_reference, arguments)
    for family, choice in plan.tries:
        if not subject.recorded and family.threats(subject):
            continue
        needed = choice == (subject.defence if subject.recorded else NONE) and asked_for(family, subject)
        for seed in range(subject.seeds):
            arguments = {"subject": said, "defence": choice.model_dump(), "seed": subject.seed + seed}
            named = {"family": family.name, **arguments, "needed": needed, "own": _own([family])}
            yield Job(key_of(family.name, choice, seed), run_one, named)


def _own(families: Iterable[Family]) -> dict[str, str]:
    """Where families that are not ours are found, with a digest of their code: an edited attack is another one."""
    return {family.target: code_of(family) for family in families if family.target}


def asked_for(family: Family, subject: Subject) -> bool:
    """Whether the user named it, so that an audit without it would not be what was asked for."""
    return subject.recorded is not None or family.name in subject.audit.families


def configured(family: Family, subject: Subject) -> Choice:
    """The defence that is to be launched with, where it has a place in this family; else none."""
    return NONE if not subject.recorded and family.misfit(subject, subject.defence) else subject.defence


def run_one(family: str, subject: Words, defence: Words, seed: int, needed: bool, own: dict[str, str]) -> Result:
    """One family, from plain values, in a process of its own; ``own``: where it is found if it is not ours."""
    forget_peak()
    asked, choice, chosen = subject_from(subject), Choice.model_validate(defence), find(family, list(own))

    def measure() -> Evidence:
        return chosen.replay(Recording(asked), seed) if asked.recorded else chosen.measure(asked, choice, seed)

    return _told(measure, choice, needed, attack=True)


def run_reference(
    subject: Words,
    defence: Words,
    seed: int,
    needed: bool,
    families: dict[str, bool],
    own: dict[str, str],
) -> Result:
    """The federation as configured, from plain values, in a process of its own; and what each family reads off it.

    ``families``: by name, whether the user asked for it.
    """
    forget_peak()
    asked, choice = subject_from(subject), Choice.model_validate(defence)
    readers = {name: find(name, list(own)) for name in families}
    threats = [threat for family in readers.values() for threat in family.threats(asked)]
    read: dict[str, Result] = {}

    def measure() -> Evidence:
        with reference.run(asked, choice, seed, threats) as run:
            for name, family in readers.items():
                read[name] = _told(lambda family=family: family.read(run), choice, families[name], True)  # type: ignore[misc]
            return run.evidence()

    return {**_told(measure, choice, needed), READ: read}


def _told(measure: Callable[[], Evidence], choice: Choice, needed: bool, attack: bool = False) -> Result:
    """What was measured, or why it was not; what is needed, and undefended training that diverges, raises.

    An attack that breaks for whatever reason takes nothing else with it: it is told that it did, and not kept.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            plain = to_plain(_checked(measure()))
        except (InvalidInput, Diverged) as error:
            if needed or (isinstance(error, Diverged) and choice == NONE):
                raise
            return {REFUSED: str(error)}
        except Exception as error:
            if not attack:
                raise
            return {BROKE: _where(error)}
    return {EVIDENCE: plain, WARNED: [f"{one.category.__name__}: {one.message}" for one in told]}


def _checked(evidence: object) -> Evidence:
    if not isinstance(evidence, Evidence):
        raise TypeError(f"it returned {type(evidence).__name__} in the place of Evidence")
    return evidence


def _where(error: Exception) -> str:
    """What went wrong and where, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})".replace("\n", " ")


def _inconsistent(found: Sequence[Evidence]) -> str:
    """Why what a family says of several seeds cannot be told together; empty if it can."""
    named = [[(one.attack, one.adversary, one.measure, one.control) for one in each.findings] for each in found]
    if not all(any(not control for *_, control in each) for each in named):
        return "it returned no finding of an attack; a score that is not known is Finding.unscored"
    if any(each != named[0] for each in named):
        return "its findings are others in every seed; return the same attacks in the same order"
    return ""


def key_of(family: str, choice: Choice, seed: int) -> str:
    """The words are for people; what tells two settings apart is the digest of the settings themselves."""
    settings = digest([json.dumps(choice.model_dump(mode="json"), sort_keys=True)])[:6]
    text = f"{family}/{label(choice)}-{settings}-seed{seed}"
    return "".join(letter if letter.isalnum() or letter in "/.=+,-_" else "_" for letter in text)


def evidence_from(row: Result) -> Evidence:
    return from_plain(Evidence, row[EVIDENCE])
