"""Li, Wang and Li's weighted grid (VLDB 2023) as the suite of VertCoHiRF carries it: its own code, from outside."""

from __future__ import annotations

import json
import os
import resource
from typing import Any

import numpy as np
from vertcohirf.models.dpvfl import DPVFL  # type: ignore[import-not-found]

WORK: dict[str, Any] = json.loads(os.environ["COTERIE_PEER_WORK"])


def spent() -> float:
    """Processor seconds of this process and of those that it started: the code makes its sketches in 20."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def main() -> None:
    """Print the processor seconds of each run, and how well each clusters: the mean squared distance that is left."""
    x = np.load(WORK["table"]).astype(np.float64)
    wide = x.shape[1] // WORK["parties"]
    groups = [list(range(at, at + wide)) for at in range(0, x.shape[1], wide)]
    seconds, left = [], []
    for seed in range(WORK["rounds"]):
        start = spent()
        grid = DPVFL(
            WORK["clusters"], len(x) // WORK["sketches"], WORK["epsilon"], random_state=seed, use_server_labels=True
        )
        labels = np.asarray(grid.fit_predict(x, features_groups=groups))
        seconds.append(spent() - start)
        means = [
            x[labels == label].mean(0) if (labels == label).any() else x.mean(0) for label in range(labels.max() + 1)
        ]
        left.append(float(np.square(x - np.stack(means)[labels]).sum(1).mean()))
    print(json.dumps({"seconds": [*seconds, *left]}))
