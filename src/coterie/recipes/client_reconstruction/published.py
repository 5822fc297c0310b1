"""What paper 004 (Shi et al.) prints: Table I, and the numbers in the text beside Figures 12 to 14."""

from __future__ import annotations

SHARES = (0.0, 0.2, 0.4, 0.6, 1.0)  # of the victim's parameters that are tapped

SIMILARITY = {  # Table I, by data and clients: FL, then CFL by share
    ("CMNIST", 6): (0.5, 0.727, 0.704, 0.702, 0.719, 0.758),
    ("MNIST", 6): (0.413, 0.553, 0.545, 0.553, 0.562, 0.575),
    ("CMNIST", 8): (0.618, 0.693, 0.677, 0.697, 0.705, 0.728),
    ("MNIST", 8): (0.386, 0.523, 0.532, 0.536, 0.544, 0.572),
}

UNDEFENDED_SIMILARITY, DEFENDED_SIMILARITY = 0.689, 0.491  # Section V-C; the abstract says 27.2 %, the text 28.7 %
UNDEFENDED_ACCURACY, DEFENDED_ACCURACY = 84.6, 81.3

SAVED_OPERATIONS, SAVED_MEMORY, SAVED_TIME = 42.7, 23.4, 45.5  # percent of plain noise's, Figure 14 and the abstract


def similarity(data: str, clients: int, method: str, share: float) -> float | None:
    row = SIMILARITY.get((data, clients))
    if row is None or share not in (SHARES if method == "CFL" else (0.0,)):
        return None
    return row[0] if method == "FL" else row[1 + SHARES.index(share)]
