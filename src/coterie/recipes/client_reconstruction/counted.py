"""Figure 14's costs, and inversion by batch and local steps: tables whose rows are no reconstructions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from coterie.measure.exhibits import Gallery
from coterie.measure.reproduced import Claim, Decision, Estimate, Key, Row, Rows
from coterie.recipes.base import of_seeds
from coterie.recipes.client_reconstruction import inversions, published, runs
from coterie.recipes.client_reconstruction.tables import FORMS, over
from coterie.recipes.settings import Settings
from coterie.run.jobs import Job, Result

DEFENCES = ("none", "plain", "adaptive", "clipped")
MEASURES = {"operations": 1e-9, "seconds": 1.0, "memory": 1e-6, "bytes": 1e-6, "noised": 1.0}
UNITS = {"operations": "G operations", "seconds": "CPU seconds", "memory": "MB", "bytes": "MB sent", "noised": "share"}


def cost_key(defence: str, seed: int) -> str:
    return f"cost/{defence},seed={seed}"


def cost_jobs(settings: Settings) -> list[Job]:
    return [
        Job(cost_key(name, seed), runs.cost, {"defence": name, "seed": seed, "scale": settings.scale.value})
        for name in DEFENCES
        for seed in settings.seeds
    ]


def costs(settings: Settings, results: Mapping[str, Result]) -> dict[str, dict[str, Estimate]]:
    """By defence and measure, a client and round."""
    found: dict[str, dict[str, Estimate]] = {}
    for name in DEFENCES:
        done = of_seeds(results, settings.seeds, partial(cost_key, name))
        if done:
            scaled = {
                what: {seed: factor * float(result[what]) for seed, result in done.items()}
                for what, factor in MEASURES.items()
            }
            found[name] = {what: Estimate.over(values, 0.0) for what, values in scaled.items()}
    return found


def cost_rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    return [
        Row(
            Key.of(defence=name, measure=what),
            f"{name}: {UNITS[what]}",
            None,
            value,
            note="the share of parameters with noise of full strength" if what == "noised" else "",
        )
        for name, by_measure in costs(settings, results).items()
        for what, value in by_measure.items()
    ]


def cost_claims(rows: Rows) -> list[Claim]:
    """The paper's savings over plain noise, with the local generator that its own algorithm needs."""
    claims = []
    for what, saved in (("operations", published.SAVED_OPERATIONS), ("memory", published.SAVED_MEMORY)):
        plain, adaptive = (rows.get(Key.of(defence=name, measure=what)) for name in ("plain", "adaptive"))
        if plain is not None and adaptive is not None:
            text = f"adaptive noise takes {saved:g} % fewer {what} than plain noise"
            less = 100 * (1 - adaptive.ours.value / plain.ours.value)
            claims.append(Claim(text, Decision.of(less >= saved), f"{less:.1f} % fewer, the local generator counted"))
    return claims


# -- inversion --------------------------------------------------------------------------------------------------------

REGIMES = (*((batch, steps, 0) for steps in (1, 2, 5) for batch in (1, 2, 4, 8)), (1, 1, 20), (4, 1, 20))
"""Batch, local steps, and rounds of training before it."""


def inversion_key(batch: int, steps: int, trained: int, seed: int) -> str:
    return f"inversion/batch={batch},steps={steps},trained={trained},seed={seed}"


def inversion_jobs(settings: Settings) -> list[Job]:
    return [
        Job(
            inversion_key(batch, steps, trained, seed),
            inversions.inverted,
            {"batch": batch, "steps": steps, "trained": trained, "seed": seed, "scale": settings.scale.value},
        )
        for batch, steps, trained in REGIMES
        for seed in settings.seeds
        if settings.wants(Key.of(batch=batch, steps=steps, trained=trained).words(FORMS))
    ]


def _done(settings: Settings, results: Mapping[str, Result], regime: tuple[int, int, int]) -> dict[int, Result]:
    return of_seeds(results, settings.seeds, partial(inversion_key, *regime))


def inversion_rows(settings: Settings, results: Mapping[str, Result]) -> list[Row]:
    rows = []
    for regime in REGIMES:
        done = _done(settings, results, regime)
        if done:
            key = Key.of(batch=regime[0], steps=regime[1], trained=regime[2])
            beside = {"another client's": over(done, "control"), "PSNR": over(done, "psnr", 0.0, 60.0)}
            rows.append(Row(key, key.words(FORMS), None, over(done, "ssim"), beside))
    return rows


def inversion_claims(rows: Rows) -> list[Claim]:
    first = rows.get(Key.of(batch=1, steps=1, trained=0))
    if first is None:
        return []
    least = min(first.ours.by_seed.values())
    text = "a batch of one comes back from the first step, for every seed (SSIM above 0.9)"
    said = f"{least:.4f} at the least of {len(first.ours.by_seed)} seeds"
    return [Claim(text, Decision.of(least > 0.9), said)]


def inversion_gallery(settings: Settings, results: Mapping[str, Result]) -> list[Gallery]:
    lines = []
    for regime in REGIMES:
        done = _done(settings, results, regime)
        if done:
            name = Key.of(batch=regime[0], steps=regime[1], trained=regime[2]).words(FORMS)
            true = [picture for result in done.values() for picture in result["true"]][:8]
            drawn = [picture for result in done.values() for picture in result["drawn"]][:8]
            lines += [(f"true: {name}", true), ("rebuilt", drawn)]
    caption = "What a client trained on in one round, and what whoever has a recording of its upload makes of that."
    return [Gallery("Gradient inversion", caption, lines)] if lines else []
