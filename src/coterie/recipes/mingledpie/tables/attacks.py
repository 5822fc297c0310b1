"""Figure 3 and Table II: what a curious server learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.defences.mingling.fuzzy_tags import Counting, TagRule
from coterie.measure.intervals import proportion
from coterie.measure.judge import wilson
from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.mingledpie.published import FIGURE_3, TABLE_2
from coterie.recipes.mingledpie.runs.attacks import READINGS, guessed, profiled
from coterie.recipes.mingledpie.runs.counting import ALONE, KNOWING, TOGETHER_WITH, VARIANTS, counted, uneven
from coterie.recipes.mingledpie.setups import SETUPS, WITH_THE_CNN, present, printed
from coterie.recipes.mingledpie.tables.entries import Entry, files_read, label
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Arguments, Job, Result

CLOSED_FORM, CHANCE = "closed form", "chance"
PRINTED = "1 / mean(|set|)"  # what the public code draws in Figure 3


# -- Figure 3 --------------------------------------------------------------------------------------------------------

RATES = (0.0625, 0.125, 0.25, 0.5)
CLUSTERS = (5, 6, 7, 8, 9, 10)
THRESHOLDS = (1, 2, 3, 4, 5)
CELLS = sorted(
    {(p, k, 2) for p in RATES for k in CLUSTERS}
    | {(p, 5, T) for p in RATES for T in THRESHOLDS}
    | {(0.5, k, T) for k in CLUSTERS for T in range(2, k + 1)}
)


@dataclass(frozen=True)
class HeatCell:
    """One cell of the heat maps, with sets that are drawn or made in the group itself."""

    p: float
    k: int
    T: int
    reading: str
    group: bool

    @property
    def key(self) -> Key:
        key = Key.of(p=self.p, k=self.k, T=self.T, reading=self.reading)
        return key.but(sets="real group") if self.group else key

    @property
    def job_key(self) -> str:
        return "guessed/" + label(self.key).replace(", ", ",").replace(" ", "_")

    def job(self, sets: int, seed: int) -> Job:
        arguments = {
            "rate": self.p,
            "clusters": self.k,
            "threshold": self.T,
            "counting": self.reading,
            "sets": sets,
            "group": self.group,
            "seed": seed,
        }
        return Job(self.job_key, guessed, arguments)


def heat_cells(settings: Settings) -> Iterator[HeatCell]:
    for reading, counting in READINGS.items():
        for p, k, T in CELLS:
            most = k if counting is Counting.IDENTITIES else k - 1
            if most < T:
                continue  # grey in the figure
            for group in (False, True) if (p, k, T) == (0.5, 5, 2) else (False,):
                cell = HeatCell(p, k, T, reading, group)
                if settings.wants(label(cell.key)):
                    yield cell


def figure_3_jobs(settings: Settings) -> Sequence[Job]:
    sets = 20_000 if settings.scale is Scale.PAPER else 2_000
    return [cell.job(sets, settings.seeds[0]) for cell in heat_cells(settings)]


KNOWN = {CLOSED_FORM: "expected", PRINTED: "printed"}


def figure_3_rows(settings: Settings, results: Mapping[str, Result]) -> Sequence[Row]:
    """Intervals hold all together with 95 %: each has its share of the error."""
    cells, rows = list(heat_cells(settings)), []
    for cell in cells:
        found = results[cell.job_key]
        share = proportion(found["right"], found["sets"], 1 - 0.05 / len(cells))
        ours = Estimate(100 * share.estimate, 100 * share.low, 100 * share.high)
        values = {name: Estimate.exactly(100 * found[key]) for name, key in KNOWN.items()}
        rows.append(Row(cell.key, label(cell.key), FIGURE_3.get((cell.p, cell.k, cell.T)), ours, values))
    return rows


# -- Table II --------------------------------------------------------------------------------------------------------

METHODS = ("IFCA", "MingledPie", "MingledPie, T counts decoys", "exact", "secure sums", "default")
EPOCHS = ("epoch 1", "epoch 3", "epoch 5")
BY_MODEL = "A2, top-1"
PLACED = "placed"
FURTHER = (
    "intersection",
    PLACED,
    "with a client",
    "placed with a client",
    BY_MODEL,
    "A2, top-k",
    "A2 with a client, top-1",
)
RULES = {
    "MingledPie": TagRule(5, 0.5, 2),
    "MingledPie, T counts decoys": TagRule(5, 0.5, 2, Counting.DECOYS),
    "secure sums": TagRule(5, 0.5, 2, partition=True),
    "default": TagRule(5, threshold=5),
}


def table_2(settings: Settings) -> Sequence[Entry]:
    entries = []
    for name in SETUPS:
        if not present(name, settings.data) or name == WITH_THE_CNN:
            continue
        clients = 120 if settings.scale is Scale.PAPER and settings.data else SETUPS[name].quick_clients
        for method in METHODS:
            masked = method in ("secure sums", "default")
            count = min(clients, 40) if masked else clients  # every vector is sent |CI| times there
            arguments = {"name": name, "method": method, "clients": count, "data": settings.folder}
            published = dict(zip(EPOCHS, TABLE_2.get((printed(name), method), (None,) * 3), strict=True))
            entries += [
                profile(arguments, what, published.get(what), files_read(name, settings.data))
                for what in (*EPOCHS, *FURTHER)
            ]
    return entries


def profile(arguments: Arguments, what: str, published: float | None, files: tuple[str, ...] = ()) -> Entry:
    """What one attack gets right, as a share of all clients."""
    clients = arguments["clients"]

    def share(result: Result) -> float:
        return float(result[what][0])

    def pooled(results: Sequence[Result]) -> tuple[float, float]:
        low, high = wilson(sum(share(result) / 100 * clients for result in results), clients * len(results))
        return 100 * low, 100 * high

    rule = RULES.get(arguments["method"])
    by_set = what in (*EPOCHS, PLACED, BY_MODEL)  # A2 names a class of the likeliest cluster
    known = {CLOSED_FORM: 100 * rule.blind_guess()} if rule is not None and by_set else {}
    known |= {CHANCE: 20.0} if what == BY_MODEL else {}
    key = Key.of(data=arguments["name"], method=arguments["method"], what=what)
    return Entry(key, published, profiled, arguments, share, pooled=pooled, known=known, files=files)


# -- a server that counts --------------------------------------------------------------------------------------------

ADVERSARIES = (ALONE, KNOWING, TOGETHER_WITH)
UNEVEN = "sets alone, clusters of different sizes"


def counting(settings: Settings) -> Sequence[Entry]:
    """Not in the paper: thirty rounds, clients that come late and drop out, and everybody now and then."""
    sizes = (20, 40, 120)
    entries = [
        counting_entry(counted, who, {"method": method, "clients": clients, "participation": share, "rounds": 30})
        for method in VARIANTS
        for clients in (sizes if method == "default" else sizes[:2])
        for share in (0.25, 0.5, 1.0)
        for who in ADVERSARIES
    ]
    return [*entries, *(counting_entry(uneven, ALONE, {"clients": clients}) for clients in sizes[1:])]


def counting_entry(work: Callable[..., Result], who: str, arguments: Arguments) -> Entry:
    def percent(result: Result) -> float:
        return 100 * float(result[who]) / float(result["units"])

    def pooled(results: Sequence[Result]) -> tuple[float, float]:
        low, high = wilson(sum(result[who] for result in results), sum(result["units"] for result in results))
        return 100 * low, 100 * high

    key = Key.of(method=arguments.get("method", UNEVEN), N=arguments["clients"])
    key = key.but(**{name: arguments[name] for name in ("participation",) if name in arguments}, who=who)
    values = {CLOSED_FORM: lambda result: 100 * float(result["expected"][who])}
    return Entry(key, None, work, arguments, percent, pooled=pooled, values=values, apart=True)
