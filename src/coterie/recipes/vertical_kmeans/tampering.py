"""Table 2 as something that can be measured: five attacks, each under four protections, and a monitor that looks on.

A monitor is calibrated on honest runs of other seeds under the same protection. An active attack gains the part of its
chosen records that ends in its target and would not have; nothing, if the first message that it changed is flagged, for
then the server stops. A passive one gains the correlation of what it reads. The effect of a protection is what is left
of 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import CURIOUS_SERVER, DISTANCES, DistanceGeometry, Seen
from coterie.attacks.steering import Steering, Way, colluding, on_the_link
from coterie.data.federation import VerticalFederation
from coterie.defences.secure_sums import SecureSums
from coterie.errors import NotPermitted
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.measure.columns import correlations
from coterie.measure.recognition import TOTAL, Alarm, Look, Monitor, Recognised, looks, out_of_range
from coterie.protocols.clusterings.vertical_kmeans import LABELS, VerticalKMeans
from coterie.recipes.vertical_kmeans.runs import GAP_LEVELS, MASKED, NONE, defence_for, examples, known_records, split
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape
from coterie.wire.view import ThreatModel, View

PARTIES, CLUSTERS, STEPS, RECORDS = 3, 5, 12, 1000
BEGINS = CLUSTERS - 1 + 4  # the first steps are honest: a monitor needs a past
CALIBRATION = range(1000, 1012)  # seeds of honest runs that nothing is reported of
SAMPLED = 64  # values of a message whose range is proven
MODELS = {"DP": "laplace", "HE": MASKED, "ZKP": NONE, "RSM-DP": "gap_rr", "monitor alone": NONE}
ACTIVE = {
    "impersonation": (Way.IMPERSONATE, on_the_link(1)),
    "modification": (Way.MODIFY, on_the_link(1)),
    "collusion": (Way.MODIFY, colluding(frozenset({0, 1}))),
}
PASSIVE = {
    "profiling": CURIOUS_SERVER,
    "reading a link": replace(on_the_link(1), knows="some records, the columns of that party"),
}


@dataclass(frozen=True)
class Watched:
    federation: VerticalFederation
    view: View
    overheard: View  # of whoever reads the link of party 1
    labels: Tensor


@lru_cache(maxsize=4)
def _honest(name: str, model: str, seed: int) -> Watched:
    return _run(name, model, seed, None)


def _run(name: str, model: str, seed: int, adversary: Steering | None) -> Watched:
    federation = split(examples(name, seed, None, RECORDS), PARTIES, seed)
    link = PASSIVE["reading a link"]
    tape = Tape([CURIOUS_SERVER, link, *([adversary.threat] if adversary else [])])
    defence: Defence = SecureSums() if model == "HE" else defence_for(MODELS[model], 1.0, GAP_LEVELS, 0.5, federation)
    seated = [adversary] if adversary else []
    protocol, roots = VerticalKMeans(CLUSTERS, STEPS), Roots.seeded(seed)
    with Ring(protocol, federation, None, defence, roots, tape, processes=0, adversaries=seated) as ring:
        state = ring.run()
        labels = ring.models(state)[LABELS][0].long()
        return Watched(federation, ring.view(CURIOUS_SERVER), ring.view(link), labels)


def _widths(run: Watched, model: str) -> dict[int, int]:
    each = {party: len(own) for party, own in enumerate(run.federation.columns)}
    return {TOTAL: sum(each.values())} if model == "HE" else each


@lru_cache(maxsize=8)
def _monitor(name: str, model: str) -> Monitor:
    seen: list[Look] = []
    for seed in CALIBRATION:
        run = _run(name, model, seed, None)
        seen += looks(run.view, _widths(run, model))
    return Monitor.calibrated(seen)


def _alarms(run: Watched, name: str, model: str, seed: int) -> tuple[list[Alarm], list[tuple[int, int]]]:
    """What is flagged, and the messages that were looked at."""
    widths, monitor = _widths(run, model), _monitor(name, "monitor alone" if model == "ZKP" else model)
    watched = [(look.round, look.party) for look in looks(run.view, widths, monitor.limits)]
    if model == "ZKP":
        bound = float(max(widths.values()))
        found = out_of_range(run.view, widths, bound, SAMPLED, Rng.seeded(seed).child("sampled"))
        return [alarm for alarm in found if (alarm.round, alarm.party) in watched], watched
    return monitor.watch(run.view, widths), watched


def active(name: str, attack: str, model: str, strength: float, seed: int, data: str | None = None) -> Result:
    """Recognition of messages, and what the attacker gains with and without it."""
    way, threat = ACTIVE[attack]
    steering = Steering(threat, way, strength, BEGINS)
    honest, run = _honest(name, model, seed), _run(name, model, seed, steering)
    alarms, watched = _alarms(run, name, model, seed)
    reached = model != "HE" or bool(threat.clients)  # masked words on a link are nothing that it could steer by
    blamed = {TOTAL} if model == "HE" else threat.parties
    rounds = [round for round in run.view.rounds(DISTANCES) if round >= BEGINS]
    tampered = frozenset((round, party) for round in rounds for party in blamed) if reached else frozenset()
    counts = Recognised.of(alarms, watched, tampered)
    first = min(rounds) if rounds else BEGINS
    stopped = any(alarm.round == first and (alarm.round, alarm.party) in tampered for alarm in alarms)
    gain = _gain(steering, run.labels, honest.labels)
    untouched = Recognised.of(*_alarms(honest, name, model, seed), frozenset())
    right = [alarm.kind.startswith(attack[:5]) for alarm in alarms if (alarm.round, alarm.party) in tampered]
    return {
        "recall": counts.recall if tampered else None,
        "precision": counts.precision if counts.caught + counts.false else None,
        "f": counts.f if tampered else None,
        "recognised": float(counts.caught > 0) if tampered else None,
        "kind": sum(right) / len(right) if right else None,
        "false": float(untouched.false / max(1, untouched.false + untouched.passed)),
        "gain": gain,
        "effect": 1.0 if stopped else 1.0 - gain,
    }


def _gain(steering: Steering, found: Tensor, honest: Tensor) -> float:
    """Of the chosen records, or under impersonation of all, the part that ends elsewhere because of the attack."""
    if steering.way is Way.IMPERSONATE:
        return float((found != honest).double().mean())
    chosen = steering.chosen(len(found))
    there, before = ((labels[chosen] == steering.target).double().mean() for labels in (found, honest))
    return max(0.0, float(there - before))


def passive(name: str, attack: str, model: str, seed: int) -> Result:
    """What is read; whatever is flagged is a false alarm, for nothing was changed."""
    run = _honest(name, model, seed)
    threat = PASSIVE[attack]
    alarms, watched = _alarms(run, name, model, seed)
    counts = Recognised.of(alarms, watched, frozenset())
    false = counts.false / max(1, counts.false + counts.passed)
    read = max(_read(run, threat, seen, seed) for seen in (Seen.PARTY, Seen.TOTALS))
    return {"gain": read, "effect": 1.0 - max(0.0, read), "false": float(false), "recognised": float(counts.false > 0)}


def _read(run: Watched, threat: ThreatModel, seen: Seen, seed: int) -> float:
    """Party 1's columns, by the correlation of what is read: from its distances, or from the totals."""
    if threat is not CURIOUS_SERVER and seen is Seen.TOTALS:
        return 0.0
    view = run.view if threat is CURIOUS_SERVER else run.overheard
    own = run.federation.columns[1]
    truth = run.federation.part(1) if seen is Seen.PARTY else run.federation.examples.x
    attack = DistanceGeometry(seen, 1 if seen is Seen.PARTY else None)
    try:
        guess = attack.infer(view, known_records(truth, truth.shape[1] + 3, seed), Rng.seeded(seed))
    except NotPermitted:  # masked: nothing of it can be read there
        return 0.0
    found = correlations(guess, truth)
    mine = found if seen is Seen.PARTY else found[own]
    return float(torch.nanmean(mine))


def protected(name: str, attack: str, model: str, seed: int, data: str | None = None) -> Result:
    """Any of the five, the active ones at half their strength."""
    return passive(name, attack, model, seed) if attack in PASSIVE else active(name, attack, model, 0.5, seed)
