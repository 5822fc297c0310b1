"""What paper 002 (Scott et al.) gives of its figures, whose points are not printed: in its text or public code."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.recipes.federated_kmeans.runs.costs import AS_PUBLISHED, KFED, PRIVATE, TUNED

REFERENCE = "published: the public code, seed 0"


@dataclass(frozen=True)
class Printed:
    """The cost and the accuracy in percent of one method, and where they stand."""

    cost: float | None
    accuracy: float | None
    source: str


NOTHING = Printed(None, None, "")

RECORD = {  # Figure 1, by method and epsilon
    (PRIVATE, 3.1326): Printed(49.9554, 98.47, REFERENCE),
    (AS_PUBLISHED, 3.1326): Printed(49.9554, 98.47, REFERENCE),
    (KFED, math.inf): Printed(54.6385, 58.27, f"{REFERENCE}; it sends raw records, see the notes"),
}
CLIENT = {  # Figure 2
    (PRIVATE, 2.5558): Printed(
        50.5728, 97.62, f"{REFERENCE}; Section 4.1 prints this 97.62 % among its record-level results"
    )
}

BEST_RECORD = {(TUNED, 3.0): Printed(49.9554, 98.47, f"{REFERENCE}, at epsilon 3.133")}
BEST_CLIENT = {(TUNED, 3.0): Printed(50.5728, 97.62, f"{REFERENCE}, at epsilon 2.556")}

COSINES = {"no noise": 1.0, "local noise": 0.0}  # Figures 5 to 7, by who adds the noise
