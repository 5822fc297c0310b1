"""Property inference on clustered federations (Kim et al., RAID 2023): its tables and figures.

``published`` has the paper's values, ``tasks`` its data, ``runs`` and ``acquisition`` what the jobs do, ``tables``
which runs stand in each table, ``entries`` how results become rows, and ``claims`` what is said of them.
"""

from functools import partial
from typing import Any

from coterie.recipes.base import AS_PUBLISHED, ROUNDS, Recipe
from coterie.recipes.property_inference import acquisition, published, tables
from coterie.recipes.property_inference.claims import (
    active_claims,
    figure_claims,
    own_claims,
    passive_claims,
    private_claims,
    regularised_claims,
)
from coterie.recipes.property_inference.entries import jobs, recipe_parts
from coterie.recipes.property_inference.tables import FACES, PUBLISHED_CLIENTS, QUICK_CLIENTS, REVIEWS

PAPER = "property-inference"
DIFFERS = (
    "labels of the victim's two kinds of batch are matched, IFCA starts from models that clients have voted on, and "
    "they choose on a batch of their own (not so with --as-published); 2 clusters (the paper gives no number); DP-SGD "
    "clips at 1. Quick: pictures of 16x16 or texts of 30 words, 150 rounds of warm-up and 75 scored, learning rate "
    "0.02 (reviews 0.2), a property batch every 3rd round. The contrast is ours; scores within "
    "clusters leave out what telling clusters apart gives. Tables 5 to 8 quick: 3 clients, beside the paper's 5; "
    "controls on CFL with 3, 5 and 10 clients"
)
TAKES = frozenset({AS_PUBLISHED, ROUNDS})
NEEDS = "CelebA or LFW (--data); without it faces are drawn"


def recipe(table: str, title: str, **parts: Any) -> Recipe:
    return Recipe(
        PAPER, table, title, **({"needs": NEEDS, "differs": DIFFERS, "shares": "jobs", "takes": TAKES} | parts)
    )


RECIPES = (
    recipe(
        "3", "Passive attack, FL against CFL, faces (quick: C with 5, 10 and 20 clients)",
        **recipe_parts(partial(tables.passive, FACES, QUICK_CLIENTS[1:], PUBLISHED_CLIENTS, quick_tasks="C")),
        claims=passive_claims,
    ),
    recipe(
        "9", "Passive attack for 3 to 20 clients (quick: C with 3, 5, 10 and 20), faces",
        **recipe_parts(partial(tables.passive, FACES, QUICK_CLIENTS, tuple(published.PASSIVE), quick_tasks="C")),
        claims=passive_claims,
    ),
    recipe(
        "9 tasks", "Passive attack with 3 clients, all tasks on faces",
        **recipe_parts(partial(tables.passive, FACES, (3,), (3,))), claims=passive_claims,
    ),
    recipe(
        "9 reviews", "Passive attack for 3 to 20 clients (quick: 3), reviews",
        **recipe_parts(partial(tables.passive, REVIEWS, (3,), tuple(published.PASSIVE))), claims=passive_claims,
        needs="the four critics or Yelp (--data)",
    ),
    recipe("4", "Active and scaled-up attacks", **recipe_parts(tables.active), claims=active_claims),
    recipe(
        "5", "Passive attack on CFL under dropout and L2",
        **recipe_parts(partial(tables.regularised, False)), claims=regularised_claims,
    ),
    recipe(
        "6", "Scaled-up attack on CFL under dropout and L2",
        **recipe_parts(partial(tables.regularised, True)), claims=regularised_claims,
    ),
    recipe(
        "7 and 8", "Attack and utility under DP-SGD",
        jobs=partial(jobs, tables.private), rows=tables.private_rows, claims=private_claims,
    ),
    recipe(
        "Fig 2-4", "t-SNE of aggregate updates, and their similarity from round to round",
        jobs=partial(jobs, tables.pictured), rows=tables.figure_rows, claims=figure_claims,
        charts=tables.figure_charts,
    ),
    recipe(
        "own upload", "The adversary's own upload taken out of the aggregate, or left in it: not in the paper",
        **recipe_parts(tables.compared), claims=own_claims,
    ),
    recipe(
        "beyond", "By cluster size, share of property data, and time: not in the paper",
        jobs=partial(jobs, tables.beyond), rows=tables.beyond_rows,
    ),
    recipe(
        "App A", "Models obtained from Sattler's server by antiparallel newcomers, and property inference on them",
        jobs=tables.siege_jobs, rows=tables.siege_rows, shares="", takes=frozenset(),
        differs=f"{DIFFERS}. The paper prints no figures; here {acquisition.CLIENTS} clients in at most "
        f"{acquisition.CLUSTERS} clusters",
    ),
)  # fmt: skip
