"""Where nothing can be stated of a run: what the same defence would prove of another, and what must change for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coterie.data.federation import Federation
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.privacy.guarantee import Attainable
from coterie.protocols.base import AnyTrainer, Trainer
from coterie.protocols.cosine_kmeans import CosineKMeans
from coterie.protocols.fedavg import FedAvg

POISSON = "poisson = true in the trainer's local"
ONE_MODEL = "the trainer fedavg, one model for all"
BY_UPDATES = "the trainer cosine_kmeans, whose clusters follow from what clients send anyway"


def within_reach(defence: Defence, protocol: AnyProtocol, federation: object, delta: float) -> tuple[Attainable, ...]:
    """Nothing where the same defence proves nothing of such a run either, or of what a run may be made of."""
    if not isinstance(protocol, Trainer) or not isinstance(federation, Federation):
        return ()
    local, changes = protocol.local, list[str]()
    if local.epochs is not None or local.whole:
        return ()  # how many steps it would be instead is for its owner to say
    if not local.poisson:
        changes.append(POISSON)
    if shown := federation.examples.elsewhere:
        changes.append(f"rows that show in no other: now each shows in {shown}")
        federation = replace(federation, examples=replace(federation.examples, elsewhere=""))
    found = []
    for trainer, how in _trainers(protocol):
        told = replace(trainer, local=replace(local, poisson=True))
        if defence.fits(told):
            continue
        said = defence.guarantee(told.facts(federation, delta))
        if said is not None and said.proven:
            found.append(Attainable((*how, *changes), replace(said, events=())))
    return tuple(found)


def _trainers(protocol: AnyTrainer) -> Iterator[tuple[AnyTrainer, tuple[str, ...]]]:
    """Itself, or those whose clients tell nothing of their raw data but by what they train."""
    if not protocol.reveals:
        yield protocol, ()
        return
    kept = (protocol.rounds, protocol.local, protocol.participation, protocol.weighting)
    yield FedAvg(*kept), (ONE_MODEL,)
    yield CosineKMeans(*kept, clusters=getattr(protocol, "clusters", CosineKMeans.clusters)), (BY_UPDATES,)
