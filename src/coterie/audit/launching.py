"""What a starting configuration proposes to launch with, and what must be so for an epsilon to be stated of it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import numpy as np

from coterie.audit import toml
from coterie.audit.case import Subject, parse
from coterie.config.registry import Words
from coterie.data.federation import Examples
from coterie.data.sources.base import describe
from coterie.data.sources.own import is_number
from coterie.defences.dpsgd import DpSgd
from coterie.errors import require
from coterie.privacy.accounting import MOST_EPSILON, noise_for
from coterie.privacy.guarantee import DELTA, Neighbours, RunFacts

if TYPE_CHECKING:
    import pandas as pd

MOST_SCALED = 200  # columns of numbers; with more nobody looks at each
CLIP = 1.0
PROVES = "of one row within its client, against whoever sees what clients send, by DP-SGD on FedAvg"
SCALE = """\
# A number is measured from its middle, in widths. These are guesses from all rows: each row shows in all others, and no
# epsilon is stated. Put numbers here that you know without these rows, as normal ranges or those of a census (how well
# models learn hardly depends on them), and delete scale_guessed above."""
LIMITS = """# [limits]
# max_property_auc = 0.6
# max_profiling_accuracy = 0.5
# max_epsilon = 3
# min_accuracy = 0.9"""


@dataclass(frozen=True)
class Fitted:
    """The text of a configuration, and what was chosen for it, each with its reason."""

    text: str
    chosen: Sequence[tuple[str, str]] = field(default_factory=tuple)


@dataclass(frozen=True)
class Spread:
    """How rows come to clients: the table of ``[partition]``, in words, and how many clients and clusters there are."""

    said: str
    clients: int
    clusters: int


@dataclass(frozen=True)
class Written:
    """What is known of a configuration before anything is chosen for it."""

    path: Path
    data: Words
    epsilon: float | None

    def data_text(self) -> str:
        """``scale`` comes last, as a table of its own: a line a column."""
        rest = {name: value for name, value in self.data.items() if name != "scale"}
        if "scale" not in self.data:
            return toml.entries(rest)
        return f"{toml.entries(rest)}\n\n{SCALE}\n[data.scale]\n{toml.entries(self.data['scale'])}"


def template(name: str) -> Template:
    return Template(resources.files("coterie.audit").joinpath(name).read_text().strip())


def guessed_scale(frame: pd.DataFrame, features: Sequence[str]) -> dict[str, list[float]]:
    """By column of numbers its middle and width, coarsely: what somebody might have said who knows what it is."""
    numbers = [name for name in features if is_number(frame[name])]
    if len(numbers) > MOST_SCALED:
        return {}
    return {name: _coarse(frame[name].to_numpy(np.float64)) for name in numbers}


def _coarse(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """The mean and the deviation, to the first digit of the latter."""
    middle, width = float(values.mean()), float(values.std())
    if not 0 < width < math.inf:
        return [middle, 1.0]
    width = float(f"{width:.0e}")
    told = [round(middle, -math.floor(math.log10(width))), width]
    return [int(one) if one.is_integer() and abs(one) < 1e15 else one for one in told]


def require_epsilon(epsilon: float | None) -> None:
    remedy = f"must be above 0 and at most {MOST_EPSILON:g}; leave it out for a configuration without a defence"
    require(epsilon is None or 0 < epsilon <= MOST_EPSILON, "--epsilon", epsilon, remedy)


def delta_for(examples: int) -> float:
    """The usual one, or where a tenth of a record is less, that, as a power of ten."""
    return min(DELTA, 10.0 ** math.floor(math.log10(0.1 / examples)))


def noise_to_prove(epsilon: float, subject: Subject) -> float:
    """The least noise multiplier at which this configuration proves it in every seed, once no row shows in others."""
    found = max(_noise(epsilon, subject.delta, facts) for facts in _facts(subject))
    digits = max(2, 2 - math.floor(math.log10(found)))
    return float(math.ceil(found * 10**digits) / 10**digits)


def _noise(epsilon: float, delta: float, facts: RunFacts) -> float:
    return noise_for(epsilon, delta, lambda noise: DpSgd(CLIP, noise).events(facts), Neighbours.ZERO_OUT)


def _facts(subject: Subject) -> Iterator[RunFacts]:
    known = set[tuple[object, ...]]()
    for seed in range(subject.seed, subject.seed + subject.seeds):
        held = subject.federation(seed)
        facts = subject.launched.facts(replace(held, examples=replace(held.examples, elsewhere="")), subject.delta)
        assert facts is not None  # of a trainer
        if facts.exposures not in known:
            known.add(facts.exposures)
            yield facts


def configuration(
    written: Written, examples: Examples, spread: Spread, asked: str, chosen: list[tuple[str, str]]
) -> Fitted:
    """The text, with what is proposed to be launched."""
    batch, delta = 32 if len(examples) >= 50 * spread.clients else 16, delta_for(len(examples))

    def text(launched: str, limits: str = LIMITS) -> str:
        return (
            template("starter.toml").substitute(
                path=one_line(written.path.name),
                about=describe(examples),
                chosen="\n".join(f"#   {one_line(what)}: {one_line(why)}" for what, why in chosen),
                name=toml.value_of(_run_name(written.path.stem)),
                delta="" if delta == DELTA else f"\ndelta = {delta:g}              # at which epsilons are stated",
                data=written.data_text(),
                partition=spread.said,
                launched=launched,
                property=asked,
                limits=limits,
            )
            + "\n"
        )

    if written.epsilon is None:
        return Fitted(text(template("clustered.toml").substitute(clusters=spread.clusters, batch=batch)), tuple(chosen))
    once = ", once the numbers of [data.scale] are public" if written.data.get("scale_guessed") else ""
    words = {"once": once, "batch": batch, "epsilon": f"{written.epsilon:g}", "said_delta": f"{delta:g}"}
    limits = f"[limits]\nmax_epsilon = {toml.value_of(written.epsilon)}"

    def private(noise: float) -> str:
        return text(template("private.toml").substitute(words, noise=noise), limits)

    noise = noise_to_prove(written.epsilon, parse(tomllib.loads(private(1.0)), "init"))
    chosen.append((f"epsilon {written.epsilon:g} at delta {delta:g}", f"{PROVES}, noise {noise} times the clip{once}"))
    return Fitted(private(noise), tuple(chosen))


def _run_name(stem: str) -> str:
    """A folder is named after it."""
    clean = re.sub(r"[^\w .+,=()-]", "_", stem)[:60].strip()
    return clean if re.match(r"\w", clean) else f"data{clean}"


def one_line(text: str) -> str:
    """As a comment: what a file or a column is called ends no line."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "?")
