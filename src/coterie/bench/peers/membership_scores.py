"""LiRA's and RMIA's own code on given signals: reads an npz file, writes the scores of every target beside it.

Arguments: the file, the folder with LiRA's ``plot.py`` (tensorflow/privacy, research/mi_lira_2021) or "-", and the
folder with Privacy Meter's ``attacks.py`` or "-".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Signals = Mapping[str, NDArray[Any]]  # truth values and numbers
Scores = dict[str, NDArray[np.float64]]


def lira(folder: str, given: Signals, target: int) -> Scores:
    sys.path.insert(0, folder)
    import matplotlib

    matplotlib.use("Agg")
    import plot  # type: ignore[import-not-found]

    others = np.arange(len(given["keep"])) != target
    keep, signals = given["keep"], given["confidences"][:, :, None]
    arguments = (keep[others], signals[others], keep[[target]], signals[[target]])
    online, _ = plot.generate_ours(*arguments, fix_variance=True)
    offline, _ = plot.generate_ours_offline(*arguments, fix_variance=True)
    return {"LiRA, online": -np.array(online), "LiRA, offline": -np.array(offline)}


def rmia(folder: str, given: Signals, target: int) -> Scores:
    sys.path.insert(0, folder)
    import attacks  # type: ignore[import-not-found]

    probabilities = 1 / (1 + np.exp(-given["confidences"].T))
    population = 1 / (1 + np.exp(-given["population"].T))
    references = (len(given["keep"]) - 2) // 2
    found = attacks.run_rmia(target, probabilities, population, given["keep"].T, references, float(given["offline_a"]))
    return {"RMIA": found}


def main() -> None:
    path, *folders = sys.argv[1:]
    given = np.load(path)
    scores: dict[str, list[NDArray[np.float64]]] = {}
    for target in given["targets"].tolist():
        for make, folder in zip((lira, rmia), folders, strict=True):
            for name, found in (make(folder, given, target) if folder != "-" else {}).items():
                scores.setdefault(name, []).append(found)
    np.savez(Path(path).with_suffix(".scores.npz"), **{name: np.array(found) for name, found in scores.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
