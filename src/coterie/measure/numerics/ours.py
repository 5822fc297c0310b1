"""Our own defences as mechanisms, from the key of their secrets to what leaves, for the numerics audit to try.

A noisy sum is that of one cluster about the origin with a bound of 1: at the level of records all of them are one
client's, at that of clients each is a client of its own. DP-SGD takes one step of a small dense model, and what is
released is the noisy sum of clipped gradients over the clipping norm. Of clipped LDP it is the sum of clients' updates
over the clip: one moves that by 1, and another in its place, for which its epsilon is stated, by 2.

Not tried: ``PrivateGrid`` (its sums are of whole columns, and its sketches no sums), channels of randomised response
(no floats pass them), what a stack's other members do, and more than one release.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from dp_accounting import GaussianDpEvent

from coterie.defences.adaptive_ldp import strengths
from coterie.defences.clipped_ldp import ClippedLdp, grid_of
from coterie.defences.dpsgd import DpSgd
from coterie.defences.noisy_sums.distributed import DistributedNoise
from coterie.defences.noisy_sums.plan import NoisySums
from coterie.files import Array
from coterie.flow.ask import Ask, Replies, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import Defence
from coterie.flow.stack import Stack
from coterie.flow.turn import Roots, Step, Turn
from coterie.learn.clusters.clipping import ClientClip, RecordClip
from coterie.learn.clusters.points import Points
from coterie.learn.clusters.statistics import statistics
from coterie.learn.models.dense import Dense
from coterie.learn.models.model import Batch
from coterie.learn.params import Params, flatten, stack
from coterie.learn.whole import step_of, whole_rows
from coterie.measure.intervals import CONFIDENCE
from coterie.measure.numerics.audit import NumericsAudit, audit_numerics
from coterie.measure.numerics.mechanism import Mechanism
from coterie.privacy.accounting import guarantee_of
from coterie.privacy.guarantee import Level, Trust
from coterie.rng import KEY_BYTES, Rng, Secrets
from coterie.wire.messages import Contributions, Kind, Published

KIND, RELEASE = Kind("lloyd", 1), "lloyd 1/sums"
FEATURES = 24
MOST_RECORDS = 5000
MOST_EXAMPLES = 48
"""DP-SGD may have to build each example's gradient alone; so many show any rounding of sums above the tolerance."""


def _keyed(seed: int) -> Secrets:
    return Secrets(seed.to_bytes(KEY_BYTES, "little"), reproducible=False)  # as where noise is to hide something


def noisy_sums(defence: NoisySums, features: int = FEATURES, level: Level = Level.RECORD) -> Mechanism:
    """One noisy sum as this defence makes it, with the largest deviation that it plans.

    Of clients, all of them are added up before one party puts noise on: what is tried is that sum and that noise.
    """
    deviation = max(defence.noise.values())
    one = replace(defence, noise={RELEASE: deviation})
    clients = one.clients if isinstance(one, DistributedNoise) else 1
    one = replace(one, masks=None) if isinstance(one, DistributedNoise) else one  # a stand-in, with the same bits

    def answers(records: Array) -> Contributions:
        public = {"centres": torch.zeros(1, features), "bound": torch.ones(())}
        ones = torch.ones(clients)
        if level is Level.CLIENT:
            sums = torch.zeros(clients, 1, features, dtype=torch.float64)
            if len(records):
                each = Points(torch.from_numpy(records), torch.arange(len(records) + 1))
                sums[0] = statistics(str(KIND), public, each, ClientClip)["sums"].sum(0)
            return Contributions(torch.arange(clients), {"sums": sums.unsqueeze(1)}, ones, ones.unsqueeze(1))
        points = Points(torch.from_numpy(records), torch.tensor([0] + [len(records)] * clients))
        sums = statistics(str(KIND), public, points, RecordClip)["sums"]
        return Contributions(torch.arange(clients), {"sums": sums.unsqueeze(1)}, ones, ones.unsqueeze(1))

    def release(records: Array, source: Secrets) -> Array:
        turn = Turn(0, Roots(Rng.seeded(0), source), KIND)
        sent = one.client.contribute(answers(records), Cohort(torch.arange(clients), turn))
        steps = one.server.collect(Ask(KIND, 0, sent.ids, Published({}), None), turn)
        next(steps)
        try:
            steps.send(Replies(iter([sent])))
        except StopIteration as done:
            return np.asarray(one.server.release(done.value, turn).values["sums"].flatten().numpy())
        raise AssertionError("one request is all there is")

    def exact(records: Array) -> Array:
        return Sums.of(answers(records)).values["sums"].flatten().numpy()

    most = MOST_RECORDS if level is Level.CLIENT else Mechanism.most_records
    return Mechanism(release, exact, _keyed, 8 * KEY_BYTES, deviation, most_records=most)


def dpsgd(defence: DpSgd, features: int = FEATURES) -> Mechanism:
    """One step's sum of clipped gradients over the clipping norm; every record is in the batch."""
    model = Dense((features, 3))
    params, guard = stack([model.init(0)]), defence.client

    def batch(records: Array) -> Batch:
        width = 1 if len(records) < 2 else MOST_EXAMPLES * -(-len(records) // MOST_EXAMPLES)  # one more fits in
        x, there = torch.zeros(1, width, features), torch.zeros(1, width)
        x[0, : len(records)], there[0, : len(records)] = torch.from_numpy(records.astype(np.float32)), 1.0
        return Batch(x, torch.zeros(1, width, dtype=torch.int64), there, torch.ones(1), torch.ones(1, dtype=torch.bool))

    def release(records: Array, source: Secrets) -> Array:
        given, turn = batch(records), Turn(0, Roots(Rng.seeded(0), source))
        client, rate, width = torch.zeros(1, dtype=torch.int64), torch.ones(1), given.x.shape[1]
        step = Step(client, 0, given.divisors, rate, given.active, True, turn, width)
        return _flat(guard.gradients(model, params, given, step)) / defence.clip

    def exact(records: Array) -> Array:
        given = batch(records)
        width = min(given.x.shape[1], MOST_EXAMPLES)
        _, most = model.units(width, 3 * features + 3)
        sums = model.whole_gradients(params, given, defence.clip, most, width)
        return next(sums.totals) / most  # in what one example may have, to which the noise is scaled

    return Mechanism(release, exact, _keyed, 8 * KEY_BYTES, defence.noise_multiplier, most_records=MOST_EXAMPLES)


def clipped_ldp(defence: ClippedLdp, features: int = FEATURES) -> Mechanism:
    """Clients' updates in the first round, added up; the model that they set out from is zeros."""
    guard, multiplier = defence.client, defence.multiplier_at(0)
    given, units = {"weight": torch.zeros(1, 1, features)}, grid_of(multiplier).units
    part = strengths({"weight": given["weight"][0]}, defence.layers, defence.lighter)["weight"]
    unit = units * step_of(defence.clip, units, features, torch.float64)  # what no update is longer than

    def updates(records: Array) -> torch.Tensor:
        """(clients, features), in the measure in which they are clipped; of nobody: one that is zeros."""
        rows = records if len(records) else np.zeros((1, features))
        return torch.from_numpy(rows.astype(np.float32)) * defence.clip

    def release(records: Array, source: Secrets) -> Array:
        sent = (updates(records) * part).view(-1, 1, 1, features)
        clients, turn = torch.arange(len(sent)), Turn(0, Roots(Rng.seeded(0), source), Kind("train"))
        told = Contributions(clients, {"weight": sent}, torch.ones(len(sent)), torch.ones(len(sent), 1))
        left = guard.contribute(told, Cohort(clients, turn, given=given)).values["weight"]
        return np.asarray((left.double().sum(0).flatten() / part / unit).numpy())

    def exact(records: Array) -> Array:
        rows = updates(records).double()
        rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)  # as the guard has it
        return np.asarray((whole_rows(rows, defence.clip, units).sum(0) / units).numpy())

    return Mechanism(release, exact, _keyed, 8 * KEY_BYTES, multiplier, most_records=MOST_RECORDS)


def _flat(leaves: Params) -> Array:
    return flatten({name: leaf.double() for name, leaf in leaves.items()})[0].numpy()


def mechanism_of(defence: Defence, level: Level = Level.RECORD) -> Mechanism | None:
    """Of the first member that adds noise; None: there is none. ``level``: whom noise on sums is to hide."""
    match defence:
        case Stack(members=members):
            return next((found for member in members if (found := mechanism_of(member, level)) is not None), None)
        case DpSgd(noise_multiplier=multiplier) if multiplier > 0:
            return dpsgd(defence)
        case NoisySums(noise=noise) if noise and max(noise.values()) > 0:
            return noisy_sums(defence, level=level)
        case ClippedLdp() if not defence.is_neutral and defence.noise_multiplier > 0:
            return clipped_ldp(defence)
        case _:
            return None


def audit_defence(
    defence: Defence,
    rng: Rng,
    delta: float = 1e-6,
    trials: int = 300,
    draws: int = 256,
    confidence: float = CONFIDENCE,
    level: Level = Level.RECORD,
) -> NumericsAudit | None:
    """The numerics audit of what a defence releases once; None if it adds no noise, or nobody knows how to try it.

    ``level``: whose share in a noisy sum is bounded, as the protocol has it; other defences have one level.
    """
    mechanism = mechanism_of(defence, level)
    if mechanism is None:
        return None
    record = rng.child("record").numpy().normal(size=(1, FEATURES)).astype(np.float32)
    record /= np.float32(1.0001 * np.linalg.norm(record))
    event = GaussianDpEvent(mechanism.deviation / mechanism.sensitivity)
    claim = guarantee_of([event], delta, level, Trust.LOCAL_NOISE, mechanism.sensitivity)
    most = min(MOST_RECORDS, mechanism.most_records)
    return audit_numerics(
        mechanism, record, record[:0], claim, rng, trials, draws, most, clips=True, confidence=confidence
    )
