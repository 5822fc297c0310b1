"""MingledPie (Zhang et al., NDSS 2025): its tables and figures, ours beside the published values.

``published`` has the paper's values, ``setups`` its data sets, ``runs`` what the jobs do, ``tables`` which runs stand
in each table, and ``claims`` what is said of them.
"""

from collections.abc import Mapping
from typing import Any

from coterie.recipes.base import AS_PUBLISHED, ROUNDS, Recipe
from coterie.recipes.mingledpie import claims
from coterie.recipes.mingledpie.published import FIGURE_6, FIGURE_7, FIGURE_8
from coterie.recipes.mingledpie.tables import accuracy, attacks, costs, curves, participation
from coterie.recipes.mingledpie.tables.accuracy import Change
from coterie.recipes.mingledpie.tables.entries import SHARED, Entries, jobs_of, rows_of

PAPER = "mingledpie"
TAKES = frozenset({AS_PUBLISHED, ROUNDS})
NEEDS = "MNIST, Fashion-MNIST, ... (with --data; what is there is used); else 5,000 embedded digits, 40 clients"
CIFAR_100 = "CIFAR-100 (with --data)"
DIFFERS = (
    "batches of 50 and homogeneous sets of consecutive classes, neither of which the paper gives; losses are compared "
    "on 50 examples; IFCA starts from models that clients have voted on; ciphertexts are CKKS's mock, which opens to "
    "the same bits; with --as-published the start is pre-trained by the server and every step is on all of a client's "
    "data, as in the public code; quick scale runs 30 rounds; for CIFAR-10 and Texas100 5 with 40 clients, for "
    "CIFAR-100 2 with 10, which shows that they run: at the paper's learning rate they need hundreds"
)


def _recipe(table: str, title: str, entries: Entries, **more: Any) -> Recipe:
    defaults = {"needs": NEEDS, "differs": DIFFERS, "unit": "%", "shares": SHARED, "takes": TAKES}
    parts = {"jobs": jobs_of(entries), "rows": rows_of(entries)}
    return Recipe(PAPER, table, title, **{**defaults, **parts, **more})


def _contrast(table: str, title: str, published: Mapping[tuple[str, str], float], change: Change) -> Recipe:
    entries = accuracy.contrast(change)
    return _recipe(table, title, entries, rows=accuracy.with_differences(entries, published))


RECIPES = (
    Recipe(
        PAPER,
        "Fig 3",
        "How often a server guesses a client's true cluster from its identity set",
        attacks.figure_3_jobs,
        attacks.figure_3_rows,
        claims.figure_3_claims,
        needs="nothing",
        differs="the axes of the heat maps are ours; intervals hold for all cells together; quick scale draws 2,000 "
        "sets a cell, paper scale 20,000",
        unit="%",
        shares=SHARED,
    ),
    _recipe(
        "II",
        "Preference profiling in the first five rounds, p=0.5, T=2, k=5",
        attacks.table_2,
        claims=claims.table_2_claims,
        differs="the start is pre-trained and every step on all of a client's data, as in the public code, and "
        "clusters are right from the first round; identity sets hold T identities, and in a row of its own T decoys; "
        "ciphertexts are CKKS's mock; secure sums with 40 clients",
        takes=frozenset(),
    ),
    _recipe(
        "counting",
        "A server that counts over 30 rounds: clients placed alone, knowing sizes, and with one client's key",
        attacks.counting,
        claims=claims.counting_claims,
        needs="scikit-learn's digits",
        differs="not in the paper; a tenth of the clients joins half-way, a twentieth of a round's drops out; where "
        "sizes are known, the closed form is what sets that are drawn anew give to whoever knows them",
        takes=frozenset(),
    ),
    _recipe(
        "participation",
        "Sealed training beside IFCA where some clients take part in a round",
        participation.participation,
        claims=participation.participation_claims,
        needs="scikit-learn's digits",
        differs="not in the paper; 100 clients with two classes each, 30 rounds, 20 neighbours",
        takes=frozenset(),
    ),
    Recipe(
        PAPER,
        "III baselines",
        "Mean test accuracy of the undefended trainers on MNIST, homogeneous clusters",
        accuracy.baseline_jobs,
        accuracy.baseline_rows,
        claims.baseline_claims,
        needs="MNIST (with --data); without it 5,000 embedded digits, 40 clients and 50 rounds",
        differs="FedEM is Marfoq et al.'s, with three components; the paper's cites another method of that name",
        unit="%",
    ),
    _recipe("III", "Mean test accuracy, p=0.5, T=2, k=5, N=120", accuracy.table_3, claims=claims.table_3_claims),
    _recipe("V", "What rebuilding does", accuracy.table_5, claims=claims.table_5_claims),
    _recipe(
        "VI",
        "Each cluster's accuracy on CIFAR-100",
        accuracy.table_6,
        claims=claims.table_6_claims,
        needs=CIFAR_100,
    ),
    _recipe(
        "VII", "Clients that are less alike", accuracy.table_7, needs="Fashion-MNIST (with --data), or embedded digits"
    ),
    _recipe(
        "VIII",
        "Ten clients join every ten rounds",
        accuracy.table_8,
        claims=claims.table_8_claims,
        needs="MNIST (with --data), or embedded digits",
    ),
    _recipe(
        "Fig 4",
        "How accuracy grows",
        accuracy.figure_4,
        charts=curves.drawn(accuracy.figure_4, "data", curves.over_all, "Mean test accuracy, first seed."),
    ),
    _recipe("Fig 5", "More clusters", accuracy.figure_5),
    _contrast("Fig 6", "Twice the clients", FIGURE_6, lambda usual: {"clients": 2 * usual["clients"]}),
    _contrast("Fig 7", "p = 0.25", FIGURE_7, lambda usual: {"rate": 0.25}),
    _contrast("Fig 8", "T = 3", FIGURE_8, lambda usual: {"threshold": 3}),
    _recipe(
        "Fig 9",
        "Each cluster's accuracy on CIFAR-100, by model",
        accuracy.table_6,
        claims=claims.table_6_claims,
        needs=CIFAR_100,
        charts=curves.drawn(accuracy.table_6, "model", curves.in_each, "By the label set that a cluster serves."),
    ),
    _recipe(
        "variants",
        "What each variant costs a round, on the FCNN (159,010 parameters)",
        costs.variants,
        needs="5,000 embedded digits",
        differs="not in the paper; 20 clients, real ciphertexts; seconds are of one process that computes all clients; "
        "bytes are those of the encoded messages, the previous sums that travel along included",
        unit="",
        takes=frozenset(),
    ),
    _recipe(
        "IV",
        "Seconds for an identity set, for the server's sums and for rebuilding",
        costs.table_4,
        needs="nothing",
        differs="another machine; the paper uses Texas100's model, quick scale MNIST's (159,010 parameters)",
        unit="s",
        takes=frozenset(),
    ),
    _recipe(
        "IX",
        "Seconds to encrypt and to decrypt a model",
        costs.table_9,
        claims=claims.table_9_claims,
        needs="nothing",
        differs="another machine; beside the public code's settings (moduli of 60, 40, 40 and 60 bits) ours, with one "
        "modulus of 60; the CNN is the public code's (1.76 M parameters)",
        takes=frozenset(),
        unit="s",
    ),
)
