"""Records that are read exactly because they moved (Yang, Luo and Li 2025), from federated and vertical k-means."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.attacks.distance_geometry import assignments
from coterie.attacks.successive_centres import CURIOUS_SERVER, SHOWN, Exposed, MovedRecords, ShownCentres
from coterie.data.auxiliary import Auxiliary
from coterie.data.federation import Examples, Federation, Shards
from coterie.defences.secure_sums import SecureSums
from coterie.flow.guard import Defence
from coterie.flow.ring import Ring
from coterie.flow.turn import Roots
from coterie.learn.clusters.columns import means_by_label
from coterie.measure.exposed import exact
from coterie.protocols.clusterings.federated_lloyd import FederatedLloyd
from coterie.protocols.clusterings.vertical_kmeans import VerticalKMeans
from coterie.recipes.vertical_kmeans.runs import examples, split
from coterie.rng import Rng
from coterie.run.jobs import Result
from coterie.wire.tape import Tape

OPEN, SUMS, SHOWN_CENTRES = "federated Lloyd, clients in the open", "federated Lloyd, secure sums", "vertical, centres"
RECORDS, CLIENTS, CLUSTERS, STEPS = 2000, 10, 10, 40


def successive(name: str, seen: str, seed: int, data: str | None = None) -> Result:
    """How many of all records were read, and of what was taken for a record, how much was one."""
    found = examples(name, seed, data, RECORDS)
    if seen == SHOWN_CENTRES:
        guess, truth = _vertical(found, seed)
    else:
        guess, truth = _by_rows(found, seed, SecureSums() if seen == SUMS else Defence()), found.x
    read = exact(guess, truth)
    claimed = len(guess.columns)
    right = sum(bool(exact(Exposed(one.unsqueeze(0), guess.whose[:1]), truth).any()) for one in guess.columns)
    return {
        "read": float(read.double().mean()),
        "records": int(read.sum()),
        "claimed": claimed,
        "right": right / claimed if claimed else None,
    }


def _by_rows(found: Examples, seed: int, defence: Defence) -> Exposed:
    order = torch.randperm(len(found), generator=Rng.seeded(seed).child("clients").torch())
    own = list(order.tensor_split(CLIENTS))
    nothing = [own[0][:0]] * CLIENTS
    federation = Federation(found, Shards.of(own), Shards.of(nothing), torch.zeros(CLIENTS, dtype=torch.int64))
    start = found.x[order[:CLUSTERS]]
    protocol = FederatedLloyd(CLUSTERS, centres=start, steps=STEPS)
    tape = Tape([CURIOUS_SERVER])
    with Ring(protocol, federation, None, defence, Roots.seeded(seed), tape, processes=0) as ring:
        ring.run()
        return MovedRecords().infer(ring.view(CURIOUS_SERVER), Auxiliary(), Rng.seeded(seed))


def _vertical(found: Examples, seed: int) -> tuple[Exposed, Tensor]:
    """Of the first of two parties, which shows its centres in every step."""
    federation = split(found, 2, seed)
    tape = Tape([CURIOUS_SERVER])
    protocol, roots = VerticalKMeans(CLUSTERS, STEPS), Roots.seeded(seed)
    with Ring(protocol, federation, None, Defence(), roots, tape, processes=0) as ring:
        ring.run()
        view = ring.view(CURIOUS_SERVER)
    own = federation.part(0)
    shown = [means_by_label(own, labels, torch.zeros(CLUSTERS, own.shape[1])) for labels in assignments(view)]
    rows = torch.cat(shown)
    held = Examples(rows, torch.zeros(len(rows), dtype=torch.int64), 1, "centres")
    return ShownCentres().infer(view, Auxiliary(parts={SHOWN: held}), Rng.seeded(seed)), own
