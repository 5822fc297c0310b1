"""How many clients may help the server before secure sums say more than sums: what follows from the settings.

A client's answer is read by whoever has both its seed, which survivors reveal, and its mask key. The latter takes as
many colluding holders as a secret needs; or, where the server tells two halves two stories, so many that with them each
half is enough. It is read as well where colluders cut the ring of a sum in two. Colluders are chosen before the ring's
order is drawn, so each neighbourhood is a sample of the clients; the chances are added up over all of them.
"""

from __future__ import annotations

from scipy.stats import hypergeom

from coterie.seal.roster import HOLDERS, two_thirds

RISK = 2.0**-40  # that a round's ring is drawn so that some client can be read


def most_colluders(clients: int, neighbours: int | None, *, asks_once: bool = True, risk: float = RISK) -> int:
    """The largest number of colluding clients at which the risk stays below this, for a sum over all clients.

    ``asks_once``: the server follows the protocol. Where it may not, clients must compare what they were told.
    """
    most = -1
    for colluders in range(max(clients - 1, 0)):
        if _risk(clients, neighbours, colluders, asks_once) > risk:
            break
        most = colluders
    return max(most, 0)


def _risk(clients: int, neighbours: int | None, colluders: int, asks_once: bool) -> float:
    every = neighbours is None or max(neighbours, HOLDERS) >= clients - 1
    holders = clients if every or neighbours is None else max(neighbours, HOLDERS) + 1
    needed = two_thirds(holders) if asks_once else 2 * two_thirds(holders) - holders
    others = holders - 1  # a client keeps a share of its own secrets, and gives it to nobody it should not
    shared = float(hypergeom.sf(needed - 1, clients - 1, colluders, others)) if colluders >= needed else 0.0
    cut = 0.0
    if neighbours is not None and neighbours < clients - 1 and colluders >= neighbours:
        # Two runs of half the neighbours each, somewhere: together as many places, all of colluders.
        cut = clients**2 / 2 * float(hypergeom.pmf(neighbours, clients, colluders, neighbours))
    return min(1.0, clients * shared + cut)
