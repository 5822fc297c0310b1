"""How torch's threads wait for each other."""

from __future__ import annotations

import threading
from functools import cache

import torch

import coterie


@cache
def wait_without_spinning() -> bool:
    """Make them sleep where they would spin, if torch was loaded before we could ask for that; whether it was needed.

    GNU's OpenMP reads OMP_WAIT_POLICY once, when it is loaded, and by default waits some milliseconds in a loop: with
    one of two cores taken by others, a round then takes several times as long. But it spins a thousandth of that as
    soon as there are more threads than cores, so a second team is made and left asleep for as long as the process
    lives. Numbers of threads stay as they are, and with them every result.
    """
    if not coterie.TORCH_CAME_FIRST or torch.get_num_threads() == 1:
        return False
    asleep = threading.Event()
    threading.Thread(target=_keep_a_team, args=(asleep,), name="coterie-asleep", daemon=True).start()
    asleep.wait()
    return True


def _keep_a_team(asleep: threading.Event) -> None:
    torch.ones(1 << 18).add_(1)  # large enough that torch gives every thread a part
    asleep.set()
    threading.Event().wait()
