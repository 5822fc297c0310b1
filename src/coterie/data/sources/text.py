"""Texts as rows of tokens: our own tokeniser and vocabulary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from coterie.errors import require

PADDING, UNKNOWN = 0, 1
RESERVED = ("<padding>", "<unknown>")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[.,!?]")


def tokens(text: str, length: int) -> list[str]:
    """The first so many lower-case words (with apostrophes), numbers, and marks that end or divide a sentence."""
    return [found.group() for found in islice(WORD.finditer(text.lower()), length)]


@dataclass(frozen=True)
class Vocabulary:
    """Words by number. Number 0 is padding and 1 is any word that is not listed."""

    words: tuple[str, ...]

    @staticmethod
    def of(texts: Iterable[Sequence[str]], size: int) -> Vocabulary:
        """The commonest words, at most ``size`` with the two reserved; ties in alphabetical order."""
        require(size >= 3, "vocabulary", size, "must be at least 3: padding, unknown and a word")
        counts = Counter(word for text in texts for word in text)
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return Vocabulary(RESERVED + tuple(word for word, _ in ranked[: size - len(RESERVED)]))

    def encode(self, texts: Sequence[Sequence[str]], length: int) -> Tensor:
        """(texts, length) int64. Padding stands before the text, so that a recurrent network's last state is the
        one after the last word."""
        require(length >= 1, "length", length, "must be at least 1")
        number = {word: place for place, word in enumerate(self.words)}
        out = np.full((len(texts), length), PADDING, np.int64)
        for row, text in enumerate(texts):
            codes = [number.get(word, UNKNOWN) for word in text[:length]]
            if codes:
                out[row, length - len(codes) :] = codes
        return torch.from_numpy(out)
