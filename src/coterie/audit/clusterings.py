"""What the families that attack a federated clustering share: on which trainer, against which defences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from coterie.audit.case import Subject
from coterie.audit.curves import as_png
from coterie.audit.family import Family
from coterie.config.builders import Place
from coterie.config.schema import Choice
from coterie.data.federation import Examples
from coterie.protocols.clusterings.base import Clusterer

NOISY_SUMS = "noisy_sums"
PLACES: tuple[Place, ...] = ("server", "shared", "client")


class ClusteringFamily(Family):
    """A family that attacks the configured clustering as it ran; its defences are noise, by who adds it."""

    def admits(self, subject: Subject) -> str:
        if isinstance(subject.launched, Clusterer):
            return ""
        return "needs a clustering as trainer (kfed, federated_lloyd, feddp_kmeans)"

    def defences(self, subject: Subject) -> Sequence[Choice]:
        """Where nothing is bounded there is nothing to plan noise for: nobody asked for those."""
        every = [noise(place) for place in PLACES]
        return [choice for choice in every if not subject.why_not(choice, subject.launched)]

    def sweep(self, subject: Subject) -> Sequence[tuple[Choice, float]]:
        every = [(noise("client", epsilon), 1 / epsilon) for epsilon in (10.0, 3.0, 1.0)]
        return [(choice, strength) for choice, strength in every if not subject.why_not(choice, subject.launched)]


def noise(added_by: Place, epsilon: float = 1.0) -> Choice:
    return Choice.of(NOISY_SUMS, added_by=added_by, epsilon=epsilon)


def as_pictures(examples: Examples, vectors: Sequence[Tensor]) -> list[str]:
    """The vectors as pictures; none where the examples are not pictures of one channel or three."""
    shape = tuple(examples.x.shape[1:])
    return [as_png(vector.view(shape)) for vector in vectors] if len(shape) == 3 and shape[0] in (1, 3) else []
