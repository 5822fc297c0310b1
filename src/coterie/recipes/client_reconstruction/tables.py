"""Which runs stand in each of paper 004's tables and figures, beside which published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from coterie.learn.generative.losses import huber, hybrid
from coterie.measure.exhibits import Chart, Gallery, Series
from coterie.measure.reproduced import Estimate, Key, Row
from coterie.recipes.base import files_of, of_seeds
from coterie.recipes.client_reconstruction import published, runs
from coterie.recipes.client_reconstruction.setups import ANGLES, ATTACKER, VICTIM
from coterie.recipes.settings import Scale, Settings
from coterie.run.jobs import Job, Result
from coterie.wire.view import Entries

BESIDE = ("others", "strangers", "own", "identified", "beyond others", "beyond strangers", "recognised", "collapse")
FORMS = {
    "data": "{}",
    "clients": ", {} clients",
    "method": ", {}",
    "share": ", {:.0%} tapped",
    "entries": " ({})",
    "control": ", {}",
    "phase": ", {}",
    "defence": ", {}",
    "strength": " x {:g}",
    "measure": ": {}",
    "batch": "batch of {}",
    "steps": ", {} local steps",
    "trained": ", after {} rounds",
    "victim": ", victim {}",
}


@dataclass(frozen=True)
class Cell:
    """One kind of run: what tells it from the others, and what its job is told."""

    key: Key
    published: float | None
    arguments: Mapping[str, object]

    @property
    def name(self) -> str:
        said = [f"{name}={value}" for name, value in sorted(self.arguments.items()) if value is not None]
        return ",".join(said).replace(" ", "_")


def cell(key: Key, shown: float | None = None, **more: object) -> Cell:
    told = {name: key[name] for name in ("data", "clients", "method", "share") if name in key}
    return Cell(key, shown, {**told, **more})


ENDS = (("CFL", 0.0), ("CFL", 1.0))
TAPPED = (("FL", 0.0), ("FL", 1.0), *(("CFL", share) for share in published.SHARES))


def table_one(settings: Settings) -> list[Cell]:
    """Quick: 6 clients, and of 8 the two ends; all of it at paper's scale, and Chinese numerals where there are any.

    The paper's FL taps nothing, as Hitaj et al. (2017) do not; with everything tapped it stands beside CFL as an equal.
    """
    quick = settings.scale is Scale.QUICK
    datas = ["MNIST"] + (["CMNIST"] if settings.data else [])
    cells = []
    for data in datas:
        for clients in (6, 8):
            brief = quick and clients == 8
            for method, share in ENDS if brief else TAPPED:
                key = Key.of(data=data, clients=clients, method=method, share=share)
                cells.append(cell(key, published.similarity(data, clients, method, share)))
            if not brief:
                cells.append(cell(key.but(control="nothing of its own"), control=True))
    return cells


def figure_ten(settings: Settings) -> list[Cell]:
    """Each client of the cluster in turn, the phases, and which entries are tapped."""
    base = Key.of(data="MNIST", clients=6, method="CFL", share=1.0)
    told = {"finer": 2 if settings.scale is Scale.QUICK else 1, "to_be_read": True}
    cells = [cell(base.but(victim=number + 1), victim=number, **told) for number in (1, 2)]
    cells.append(cell(base.but(phase="passive"), active=False, **told))
    if settings.scale is Scale.PAPER:
        some = base.but(share=0.4)
        cells += [cell(some.but(entries=one.value), entries=one.name) for one in (Entries.LAYERS, Entries.LAST)]
    return cells


DEFENDED = {"none": (1.0,), "plain": (5.0, 1.0), "adaptive": (8.0, 1.0), "clipped": (1.0,)}
"""Times the noise of ``runs.defences``. Of plain and adaptive noise the first cost about as much accuracy as each other
(on development seeds 600 and 601), and a little more of either ends in nothing being learnt."""


def is_shown(key: Key) -> bool:
    """Whether this is the strength at which defences are compared."""
    return key["strength"] == DEFENDED[str(key["defence"])][0]


def figure_twelve(settings: Settings) -> list[Cell]:
    base = Key.of(data="MNIST", clients=6, method="CFL", share=1.0)
    printed = {"none": published.UNDEFENDED_SIMILARITY, "adaptive": published.DEFENDED_SIMILARITY}
    return [
        cell(
            base.but(defence=name, strength=strength),
            printed.get(name) if strength == strengths[0] else None,
            **({} if name == "none" else {"defence": name, "strength": strength}),  # none is Table I's own run
        )
        for name, strengths in DEFENDED.items()
        for strength in strengths
    ]


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_key(one: Cell, seed: int) -> str:
    return f"{one.name},seed={seed}"


def jobs(cells: Sequence[Cell], settings: Settings) -> list[Job]:
    return [
        Job(
            job_key(one, seed),
            runs.reconstructed,
            {**one.arguments, "seed": seed, "scale": settings.scale.value, "folder": data_folder(one, settings)},
            files_read(one, settings),
        )
        for one in cells
        for seed in settings.seeds
        if settings.wants(one.key.words(FORMS))
    ]


def data_folder(one: Cell, settings: Settings) -> str | None:
    """Quick runs on MNIST take the embedded digits, whatever folder there is."""
    quick = settings.scale is Scale.QUICK and one.arguments.get("data", "MNIST") == "MNIST"
    return None if quick else settings.folder


def files_read(one: Cell, settings: Settings) -> tuple[str, ...]:
    from coterie.data.sources.chinese_mnist import ChineseMnist
    from coterie.data.sources.mnist import Mnist

    if data_folder(one, settings) is None:
        return ()
    chinese = one.arguments.get("data") == "CMNIST"
    return files_of(ChineseMnist() if chinese else Mnist(), settings.data, "chinese_mnist*" if chinese else "*ubyte*")


def found(one: Cell, settings: Settings, results: Mapping[str, Result]) -> dict[int, Result]:
    return of_seeds(results, settings.seeds, partial(job_key, one))


def over(done: Mapping[int, Result], name: str, least: float = -1.0, most: float = 1.0) -> Estimate:
    return Estimate.over({seed: runs.finite(result[name]) for seed, result in done.items()}, least, most)


def rows(cells: Sequence[Cell], settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    made = []
    for one in cells:
        done = found(one, settings, results)
        if done:
            least = {name: -1.0 if name.startswith("beyond") else 0.0 for name in (*BESIDE, "accuracy")}
            beside = {name: over(done, name, lowest) for name, lowest in least.items()}
            if all(result["angle"] is not None for result in done.values()):
                off = {seed: degrees_off(one, result["angle"]) for seed, result in done.items()}
                beside["degrees off"] = Estimate.over(off, 0.0, 180.0)
            apart = sum(not result["cluster"] for result in done.values())
            note = f"attacker and victim were not in one cluster in {apart} of {len(done)} runs" if apart else ""
            epsilons = [result["epsilon"] for result in done.values() if result["epsilon"] is not None]
            if epsilons:
                note = f"({epsilons[0]:.3g}, 1e-05)-DP at client level, local noise, one client's data replaced" + note
            elif one.key.get("defence", "none") != "none":
                note = "no formal guarantee" + note
            made.append(Row(one.key, one.key.words(FORMS), one.published, over(done, "similarity"), beside, note))
    return made


def degrees_off(one: Cell, found: float) -> float:
    """How far the angle that the attacker found is from the victim's against its own."""
    turned = ANGLES[str(one.key["data"]), int(one.key["clients"])]
    victim = one.arguments.get("victim", VICTIM)
    assert isinstance(victim, int)
    return abs((found - turned[victim] + turned[ATTACKER] + 180) % 360 - 180)


# -- figures ----------------------------------------------------------------------------------------------------------


def gallery(cells: Sequence[Cell], title: str, settings: Settings, results: Mapping[str, Result]) -> list[Gallery]:
    """True pictures of the first seed's victim, and below them what each attack drew."""
    lines: list[tuple[str, Sequence[str]]] = []
    for one in cells:
        done = found(one, settings, results)
        if done:
            first = done[min(done)]
            if not lines or lines[0][1] != first["true"]:
                lines.append((f"true: {one.key.words(FORMS)}", first["true"]))
            name = one.key.words(FORMS)
            drawn = [[pictures[number] for pictures in first["drawn"]] for number in range(runs.SHOWN)]
            lines += [(name if number == 0 else "", row) for number, row in enumerate(drawn)]
    caption = (
        "A picture of each class as the victim has it, and what the attacker draws: three of each class, unchosen."
    )
    return [Gallery(title, caption, lines)] if lines else []


def by_share(settings: Settings, results: Mapping[str, Result]) -> list[Chart]:
    """Figure 11: identifiability and difference by how much is tapped."""
    cells = [one for one in table_one(settings) if one.key.has(method="CFL", data="MNIST", clients=6)]
    cells = [one for one in cells if "control" not in one.key]
    points = [(float(one.key["share"]), done) for one in cells if (done := found(one, settings, results))]
    series = []
    for name in ("identified", "similarity", "beyond others", "beyond strangers"):
        values = [over(done, name) for _, done in points]
        series.append(
            Series(
                name,
                [share for share, _ in points],
                [one.value for one in values],
                [one.low if one.is_known else one.value for one in values],
                [one.high if one.is_known else one.value for one in values],
            )
        )
    caption = "Means over seeds with 95 % intervals. Chance of being identified is one over the number of holders."
    return [Chart("By how much is tapped", caption, "share tapped", "score", series)] if points else []


def over_rounds(cells: Sequence[Cell], settings: Settings, results: Mapping[str, Result]) -> list[Gallery]:
    """The same attack after more and more rounds: the first seed's first run."""
    done = next((done for one in cells if (done := found(one, settings, results))), None)
    if done is None:
        return []
    first = done[min(done)]
    lines = [(f"after {round} rounds", pictures) for round, pictures in first["sketches"]]
    lines += [("at the end", [pictures[0] for pictures in first["drawn"]]), ("true", first["true"])]
    caption = "One picture of each class, drawn from the same noise every time, and one that the victim has."
    return [Gallery("Round by round", caption, lines)]


def losses(settings: Settings, results: Mapping[str, Result]) -> list[Chart]:
    """The losses of generator and discriminator, round by round."""
    one = next(one for one in table_one(settings) if one.key.has(method="CFL", data="MNIST", share=1.0))
    done = found(one, settings, results)
    if not done:
        return []
    noted = done[min(done)]["losses"]
    names = ("generator", "discriminator")
    series = [Series(name, [row[0] for row in noted], [row[at] for row in noted]) for at, name in enumerate(names, 1)]
    return [
        Chart("Losses of the attacker's networks", "The first seed, all of the victim tapped.", "round", "loss", series)
    ]


def loss_functions() -> Chart:
    """Figures 4 and 5: the hybrid loss of one pixel's error, and Huber's beside it."""
    errors = torch.linspace(0, 2, 81)
    pixels = errors.reshape(-1, 1, 1, 1)
    by_name = {
        f"hybrid, lambda {weight:g}": [float(hybrid(one[None], torch.zeros(1, 1, 1, 1), 1.0, weight)) for one in pixels]
        for weight in (1.0, 0.1)
    }
    by_name["Huber"] = huber(errors, 1.0).tolist()
    series = [Series(name, errors.tolist(), values) for name, values in by_name.items()]
    caption = "Threshold 1. The hybrid loss is continuous only where lambda is the threshold, here 1."
    return Chart("The hybrid loss (Figures 4 and 5)", caption, "error", "loss", series)


def radar(
    settings: Settings, results: Mapping[str, Result], costs: Mapping[str, Mapping[str, Estimate]]
) -> list[Chart]:
    """Figure 12: accuracy, privacy (one less the similarity), and savings against the dearest."""
    spokes = ("accuracy", "privacy", "memory", "operations")
    series = []
    for one in figure_twelve(settings):
        done = found(one, settings, results)
        name = str(one.key["defence"])
        if not done or not is_shown(one.key) or name not in costs:
            continue
        cheap = [min(other[what].value for other in costs.values()) / costs[name][what].value for what in spokes[2:]]
        values = [over(done, "accuracy", 0.0).value, 1 - over(done, "similarity").value, *cheap]
        series.append(Series(name, list(map(float, range(4))), values))
    caption = "Towards the rim is better. Memory and operations: the cheapest over this one, a client and round."
    return [Chart("Three defences", caption, "", "", series, "radar", spokes=spokes)] if series else []
