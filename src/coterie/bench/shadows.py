"""Shadow federations computed together, beside one by one: what an adversary's rehearsals cost."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import resources

from coterie.audit.case import Subject, parse
from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.bench.ring import threads
from coterie.data.federation import Examples
from coterie.flow.ring import AnyRing, Ring
from coterie.flow.together import run_together
from coterie.flow.turn import Roots

SHADOWS = 64
LEAST_RATIO, MOST_SECONDS = 5.0, 120.0


def example() -> Subject:
    """The federation that ``coterie audit`` audits if nobody names another."""
    return parse(tomllib.loads(resources.files("coterie.audit").joinpath("example.toml").read_text()), "example")


def shadows(options: Options, count: int = SHADOWS, subject: Subject | None = None) -> Iterator[Ratio]:
    asked = subject or example()
    examples = asked.examples(options.seed)

    def rings() -> list[AnyRing]:
        return [rehearsal(asked, examples, options.seed + number) for number in range(count)]

    times = interleaved(
        {
            "together": lambda: run_together(rings()),
            "apart": lambda: [ring.run() for ring in rings()],
        },
        options.repeats,
    )
    setup = f"the same rings, one after the other, {threads()}"
    name = f"{count} shadow federations of {asked.name}"
    yield Ratio(name, times["together"].best, "s", times["apart"].best, LEAST_RATIO, setup=setup)
    yield Ratio(f"{name}: in all", times["together"].best, "s", None, MOST_SECONDS, bound_on_ratio=False)


def rehearsal(asked: Subject, examples: Examples, seed: int) -> AnyRing:
    """The federation, dealt anew."""
    protocol = asked.protocol(asked.trainers[0])
    dealt = asked.partitioned(examples, seed)
    return Ring(protocol, dealt, asked.built_model(examples), roots=Roots.seeded(seed), processes=0)
