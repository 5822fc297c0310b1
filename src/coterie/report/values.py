"""How numbers are written, in the report and in the terminal alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.claims import Promise
from coterie.measure.findings import UNDEFENDED, Check, Finding
from coterie.measure.intervals import Interval
from coterie.measure.verdicts import SIZE, Verdict

MISSING = "not measured"

HEAT_LEVELS = 7
GLYPHS = {Verdict.LEAKS: "▲", Verdict.BOUNDED: "○", Verdict.UNDECIDED: "◌", Verdict.NOT_SCORED: "·"}
MEANINGS = {
    Verdict.LEAKS: "the whole interval lies above chance",
    Verdict.BOUNDED: f"the whole interval lies under {SIZE:.0%} of the way from chance to a complete leak",
    Verdict.UNDECIDED: "the interval is too wide to say either",
}


def number(value: float) -> str:
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size >= 0.001 or size == 0:
        text = f"{value:.3f}"
    elif size >= 1e-5:
        text = f"{value:.{-math.floor(math.log10(size))}f}"
    else:
        text = f"{value:.1e}"
    return text.replace("-", "−")


def ends(interval: Interval) -> str:
    if math.isnan(interval.estimate):
        return ""
    return f"[{number(interval.low)}, {number(interval.high)}]" if interval.is_known else "no interval"


def with_interval(interval: Interval) -> str:
    return f"{number(interval.estimate)} {ends(interval)}".strip()


def seconds(value: float) -> str:
    if not math.isfinite(value):
        return number(value)
    if value < 1:
        return f"{value * 1000:.0f}\u00a0ms" if value >= 0.001 else f"{value * 1000:.2g}\u00a0ms"
    if value < 60:
        return f"{value:.1f}\u00a0s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}\u00a0min {rest}\u00a0s"


def size(value: float) -> str:
    """Bytes with decimal prefixes, as networks are billed."""
    if not math.isfinite(value):
        return number(value)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f}\u00a0{unit}" if unit == "B" or value >= 100 else f"{value:.1f}\u00a0{unit}"
        value /= 1000
    return f"{value:.1f}\u00a0TB"


def capital(text: str) -> str:
    """For headings; names such as t-SNE, k-means or cGAN stay as they are."""
    first = text.split(" ")[0].rstrip(",:;")
    return text[:1].upper() + text[1:] if first.isalpha() and first.islower() else text


def attack_name(one: Finding) -> str:
    return f"{one.attack} by {one.adversary}" if one.adversary else one.attack


def defence_name(defence: str) -> str:
    return "undefended" if defence == UNDEFENDED else defence


def heat_level(leakage: float) -> int | None:
    """Which of the colours: the first for chance, the last for a complete leak; None without a measurement."""
    if math.isnan(leakage):
        return None
    return min(HEAT_LEVELS - 1, int(leakage * HEAT_LEVELS))


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(value: float) -> str:
    """A small probability, such as 10⁻⁵ or 2·10⁻⁶."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else number(value)
    digits, _, exponent = f"{value:.0e}".partition("e")
    ten = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return ten if digits == "1" else f"{digits}·{ten}"


def more_needed(finding: Finding) -> str:
    """What would decide, in few letters; empty where it is decided. Seeds of the same units would not."""
    found = finding.decision
    if finding.verdict is not Verdict.UNDECIDED or math.isnan(found.more_units):
        return ""
    if math.isinf(found.more_units):
        return "out of reach"
    more = int(found.more_units if found.repeated else found.more_seeds)
    unit = finding.unit.removesuffix("s") if found.repeated else "seed"
    return f"≈ {more:,} more {unit}{'' if more == 1 else 's'}"


def chance_of(found: Sequence[Finding]) -> str:
    """What guessing scores, which may differ from run to run where it depends on how many clusters came about."""
    low, high = min(one.chance for one in found), max(one.chance for one in found)
    return f"chance {number(low)}" + (f" to {number(high)}" if high - low > 5e-4 else "")


def guarantee(promise: Promise) -> str:
    """The formal statement in short; or that there is none."""
    if math.isinf(promise.epsilon):
        return "no formal guarantee"
    stated = promise.guarantee
    return f"{_priced(promise.epsilon, stated.delta, stated.level.value)}, {stated.neighbours.value}; {_trust(promise)}"


def _priced(epsilon: float, delta: float, level: str) -> str:
    return f"({number(epsilon)}, {power(delta)})-DP, {level} level"


def _trust(promise: Promise) -> str:
    return promise.guarantee.trust.name.lower().replace("_", " ")


def attainable(promise: Promise) -> str:
    """What would be proven with other settings, in short: the least of it, if anything."""
    found = promise.guarantee.attainable
    if not found:
        return ""
    least = min((one.guarantee for one in found), key=lambda one: one.epsilon)
    price = f"{_priced(least.epsilon, least.delta, least.level.value)}, {least.neighbours.value}"
    return f"{price}, against whoever sees what clients send" if least.against else price


def lower_bound(promise: Promise | None) -> str:
    if promise is None or promise.lower_bound is None:
        return "not audited"
    return f"ε ≥ {number(promise.lower_bound)}"


def ledger(spent: float) -> str:
    return f"ledger: ε = {number(spent)} spent"


def limit_value(check: Check) -> str:
    """What was measured; an epsilon is exact, and has no interval to show."""
    exact = check.measured.low == check.measured.high
    return number(check.measured.estimate) if exact else with_interval(check.measured)
