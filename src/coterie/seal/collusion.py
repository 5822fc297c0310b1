"""How many clients may help the server before secure sums say more than sums: what follows from the settings.

A client's answer is read by whoever has both its seed, which survivors reveal, and its mask key. The latter takes as
many colluding holders as a secret needs; or, where the server tells two halves two stories, so many that with them each
half is enough. The same holds of those who add up a tally. An answer is read as well where colluders, and others that
dropped out, cut the ring of a sum in two (Bell et al., CCS 2020). Who they are is settled before the ring's order is
drawn, so each neighbourhood is a sample of the clients; the chances are added up over all of them. Whoever does not
follow the protocol can draw its own keys anew until the order suits it: all orders that it can try are charged.
"""

from __future__ import annotations

from scipy.stats import hypergeom

from coterie.seal.roster import COMMITTEE, HOLDERS, two_thirds

RISK = 2.0**-40  # that a round's ring is drawn so that some client can be read
TRIES = 2.0**40  # at the order of a ring


def most_colluders(
    clients: int, neighbours: int | None, *, asks_once: bool = True, gone: int | None = None, tallied: bool = False
) -> int:
    """The largest number of colluding clients at which the risk stays below 2^-40, for a sum over all of a round.

    ``asks_once``: the server follows the protocol. Where it may not, clients must compare what they were told.
    ``gone``: how many may drop out before sums open (None: a third); ``tallied``: whether true sizes are added up.
    """
    lost = clients - two_thirds(clients) if gone is None else gone
    most = 0
    for colluders in range(1, max(clients - 1, 0)):
        if risk(clients, neighbours, colluders, asks_once=asks_once, gone=lost, tallied=tallied) > RISK:
            break
        most = colluders
    return most


def risk(
    clients: int,
    neighbours: int | None,
    colluders: int,
    *,
    asks_once: bool = True,
    gone: int = 0,
    tallied: bool = False,
) -> float:
    """At most how likely it is that a round's ring lets these read a client."""
    if neighbours is None or max(neighbours, HOLDERS) >= clients - 1:
        shared = float(colluders >= _enough(clients, asks_once))
    else:
        reach = max(neighbours, HOLDERS)  # a client keeps a share of its own secrets, and gives it to nobody
        shared = clients * _drawn(_enough(reach + 1, asks_once), clients - 1, colluders, reach)
    if tallied and neighbours is not None:
        committee = min(COMMITTEE, clients)
        shared += _drawn(_enough(committee, asks_once), clients, colluders, committee)
    cut = 0.0
    if neighbours is not None and neighbours < clients - 1:
        # Two runs of half the neighbours each, somewhere: together as many places, none of them an honest survivor's.
        missing = min(colluders + gone, clients)
        cut = clients**2 / 2 * _drawn(neighbours, clients, missing, neighbours)
    tries = 1.0 if asks_once or neighbours is None else TRIES
    return min(1.0, tries * (shared + cut))


def _enough(holders: int, asks_once: bool) -> int:
    """How many colluders among so many holders are enough."""
    return two_thirds(holders) if asks_once else 2 * two_thirds(holders) - holders


def _drawn(least: int, clients: int, colluders: int, places: int) -> float:
    """How likely so many places, drawn from the clients, hold at least ``least`` colluders."""
    return float(hypergeom.sf(least - 1, clients, min(colluders, clients), places))
