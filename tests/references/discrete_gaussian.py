"""The discrete Gaussian by rejection, in whole numbers and fractions alone (Canonne, Kamath and Steinke 2020)."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from math import isqrt

from coterie.rng import Keystream, Secrets


class Coins:
    def __init__(self, secrets: Secrets) -> None:
        self.stream: Keystream = secrets.stream()

    def below(self, bound: int) -> int:
        """Uniform in 0 .. bound - 1: 64-bit words, those beyond the last whole multiple of the bound thrown away."""
        while True:
            word = int(self.stream.words(1)[0])
            if word < 2**64 // bound * bound:
                return word % bound

    def shows(self, probability: Fraction) -> bool:
        return self.below(probability.denominator) < probability.numerator

    def shows_exp(self, gamma: Fraction) -> bool:
        """Heads with probability exp(-gamma)."""
        while gamma > 1:
            if not self.shows_exp(Fraction(1)):
                return False
            gamma -= 1
        k = 1
        while self.shows(gamma / k):
            k += 1
        return k % 2 == 1

    def laplace(self, t: int) -> int:
        """The discrete Laplace: P(x) ~ exp(-|x| / t)."""
        while True:
            u = self.below(t)
            if not self.shows_exp(Fraction(u, t)):
                continue
            v = 0
            while self.shows_exp(Fraction(1)):
                v += 1
            size, negative = u + t * v, self.below(2) == 1
            if negative and size == 0:
                continue
            return -size if negative else size

    def gaussian(self, variance: int) -> int:
        t = isqrt(variance) + 1
        while True:
            y = self.laplace(t)
            if self.shows_exp(Fraction((abs(y) * t - variance) ** 2, 2 * variance * t * t)):
                return y


def probabilities(sigma: float, reach: int, digits: int = 60) -> list[Decimal]:
    """P(x) for x = -reach .. reach to so many digits, one exponential at a time; the tails beyond are left out."""
    with localcontext() as context:
        context.prec = digits
        variance = 2 * Decimal(sigma) ** 2
        weights = [(-Decimal(x * x) / variance).exp() for x in range(-reach, reach + 1)]
        whole = sum(weights)
        return [weight / whole for weight in weights]
