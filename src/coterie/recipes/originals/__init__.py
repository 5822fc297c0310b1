"""The trainers beside the papers and the code that they come from: IFCA, Sattler's CFL, FedEM, paper 004's clustering.

``published`` has the authors' values, ``runs`` what the jobs do, ``tables`` which runs stand in each table, and
``claims`` what is said of them. ``malice`` is a table of our own.
"""

from coterie.recipes.base import Recipe
from coterie.recipes.originals import tables
from coterie.recipes.originals.claims import ifca_claims, malice_claims, sattler_claims, start_claims

PAPER = "originals"
NEEDS = "MNIST (with --data); without it 5,000 embedded digits"

RECIPES = (
    Recipe(
        PAPER,
        "IFCA",
        "Ghosh et al. 2020, rotated MNIST, k = 4: test accuracy",
        **tables.parts(tables.ifca),
        claims=ifca_claims,
        needs=NEEDS,
        differs="quick scale: m = 80, n = 200 and 65 rounds (embedded digits: m = 40, n = 50, 40 rounds) in place of "
        "m = 1200 and 300 rounds; accuracy is the clients' mean, of all test pictures in their own angle",
        unit="%",
        shares="ifca",
    ),
    Recipe(
        PAPER,
        "Starts",
        "IFCA on rotated MNIST, k = 4: runs whose clusters are the groups, by start",
        **tables.parts(tables.starts),
        claims=start_claims,
        needs=NEEDS,
        differs="m = 40, n = 100 (embedded digits: 50), 15 rounds of the start that stays; the paper has no such table",
        unit="%",
        shares="ifca",
    ),
    Recipe(
        PAPER,
        "Sattler",
        "Sattler et al. 2020: runs whose clusters are the groups, and IID runs that stay one cluster",
        **tables.parts(tables.sattler),
        claims=sattler_claims,
        needs="MNIST and Fashion-MNIST (with --data); without them 5,000 embedded digits",
        differs="20 clients of 250 pictures, a dense network of 100, 50 rounds; the paper has no such table",
        unit="%",
        shares="sattler",
    ),
    Recipe(
        PAPER,
        "FedEM",
        "Marfoq et al. 2021: clients that are mixtures of three namings of the digits",
        **tables.parts(tables.fedem),
        needs=NEEDS,
        differs="20 clients of 250 pictures, 120 rounds; the paper's data are others",
        unit="%",
        shares="fedem",
    ),
    Recipe(
        PAPER,
        "004",
        "Paper 004, six and eight clients: runs in which Algorithm 1 finds the two halves",
        **tables.parts(tables.paper_004),
        needs=NEEDS,
        differs="1,000 pictures a client, the dense network in place of the paper's, Adam; quick scale runs 10 rounds",
        unit="%",
        shares="paper-004",
    ),
    Recipe(
        PAPER,
        "Malice",
        "One malicious client of twenty: accuracy of the others, by what it sends and how the server adds up",
        **tables.parts(tables.malicious),
        claims=malice_claims,
        needs="nothing",
        differs="1,797 embedded digits, a linear model, FedAvg of 25 rounds; no paper has such a table",
        unit="%",
        enough=5,
    ),
)
