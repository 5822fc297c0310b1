"""How numbers are written, in the report and in the terminal alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.measure.findings import Check, ClaimVerdict, Leak, Measured

MISSING = "not measured"
UNDEFENDED = "none"

HEAT_LEVELS = 7
GLYPHS = {"leaks": "▲", "no leak found": "○", "below chance": "▽", "one seed only": "◌"}


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
    else:
        text = f"{value:.1e}"
    return text.replace("-", "−") if size < 0.001 and size else text.replace("-", "−", 1)


def interval(measured: Measured) -> str:
    if math.isnan(measured.value):
        return ""
    if math.isnan(measured.low) or math.isnan(measured.high):
        return "one seed, no interval"
    return f"[{number(measured.low)}, {number(measured.high)}]"


def with_interval(measured: Measured) -> str:
    return f"{number(measured.value)} {interval(measured)}".strip()


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


def verdict(leak: Leak) -> str:
    return MISSING if math.isnan(leak.score.value) else leak.verdict


def chance_of(found: Sequence[Leak]) -> str:
    """What guessing scores, which may differ from run to run where it depends on how many clusters came about."""
    low, high = min(leak.chance for leak in found), max(leak.chance for leak in found)
    return f"chance {number(low)}" + (f" to {number(high)}" if high - low > 5e-4 else "")


def guarantee(claim: ClaimVerdict | None) -> str:
    """The formal statement in short; or that there is none."""
    if claim is None or not claim.proven or math.isinf(claim.epsilon):
        return "no formal guarantee"
    return f"({number(claim.epsilon)}, {power(claim.delta)})-DP, {claim.level} level"


def lower_bound(claim: ClaimVerdict | None) -> str:
    if claim is None or claim.lower_bound is None:
        return "not audited"
    return f"ε ≥ {number(claim.lower_bound)}"


def limit_value(check: Check) -> str:
    return number(check.value)
