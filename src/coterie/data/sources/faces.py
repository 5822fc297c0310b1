"""Small drawn faces with independent attributes, so that every pipeline on faces runs without a download.

The pictures stand in for LFW at 62x47 (paper 000). Pose, size, light, colours, background and noise vary from
face to face, and the ranges of what carries an attribute overlap (a faint smile, pale sunglasses), so that
attributes can be learnt but not read off a pixel. Attributes are drawn independently of one another: what an
attack on one attribute finds is not explained by another. Photographs are not like that, and conclusions
about them need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import integers
from coterie.data.sources.embedded import Generated
from coterie.errors import InvalidInput, nearest, require
from coterie.files import Array
from coterie.rng import Rng

# All float32; numpy's stubs widen arithmetic with Python numbers.
Plane = Array  # (faces, rows, columns)
PerFace = Array  # (faces, 1, 1)

# Faces drawn together. Each chunk has its own random stream, so the first faces do not depend on the count.
CHUNK = 100

# The share of each value of each attribute.
RATES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "smile": (0.5, 0.5),
        "sunglasses": (0.88, 0.12),
        "male": (0.5, 0.5),
        "beard": (0.8, 0.2),
        "hat": (0.9, 0.1),
        "long_hair": (0.5, 0.5),
        "skin": (0.5, 0.25, 0.25),
        "hair": (0.35, 0.3, 0.2, 0.15),
    }
)
VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"skin": ("light", "medium", "dark"), "hair": ("black", "brown", "blond", "grey")}
)
SKIN = np.array([[0.93, 0.75, 0.64], [0.74, 0.54, 0.40], [0.44, 0.29, 0.21]], np.float32)
HAIR = np.array([[0.10, 0.08, 0.08], [0.34, 0.21, 0.13], [0.84, 0.69, 0.41], [0.66, 0.66, 0.66]], np.float32)


@dataclass(frozen=True)
class Faces(Generated):
    """``count`` faces; the label is one attribute, every attribute is a tag."""

    count: int = 5000
    label: str = "smile"
    rows: int = 62
    columns: int = 47
    grey: bool = False
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # instead of the usual ones

    name: ClassVar[str] = "faces"
    about: ClassVar[str] = "drawn faces, 62x47, with attributes: " + ", ".join(RATES)

    def __post_init__(self) -> None:
        require(self.count >= 1, "count", self.count, "must be at least 1")
        require(
            min(self.rows, self.columns) >= 12,
            "rows, columns",
            (self.rows, self.columns),
            "must be at least 12",
        )
        require(self.label in RATES, "label", self.label, nearest(self.label, RATES))
        for attribute, shares in self.rates.items():
            require(attribute in RATES, "rates", attribute, nearest(attribute, RATES))
            if len(shares) != len(RATES[attribute]) or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
                raise InvalidInput(
                    f"rates[{attribute!r}]={shares} must be {len(RATES[attribute])} shares that add up to 1"
                )

    @property
    def numbers(self) -> int:
        return 3 * self.count * self.rows * self.columns

    def make(self, rng: Rng) -> Examples:
        shares = {**RATES, **self.rates}
        x = np.empty((self.count, 3, self.rows, self.columns), np.float32)
        tags = {attribute: np.empty(self.count, np.int64) for attribute in shares}
        for start in range(0, self.count, CHUNK):
            part = slice(start, min(start + CHUNK, self.count))
            stream = rng.child("faces", start // CHUNK)
            drawn = draw_attributes(shares, stream)
            x[part] = Portrait(drawn, self.rows, self.columns, stream.child("looks").numpy()).draw()[
                : part.stop - start
            ]
            for attribute, values in drawn.items():
                tags[attribute][part] = values[: part.stop - start]
        pictures = torch.from_numpy(x)
        if self.grey:
            pictures = (pictures * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        return Examples(
            x=pictures,
            y=integers(tags[self.label]),
            classes=len(RATES[self.label]),
            name=self.name,
            tags={attribute: integers(values) for attribute, values in tags.items()},
            label_names=VALUES.get(self.label, (f"no {self.label}", self.label)),
        )


def draw_attributes(shares: Mapping[str, tuple[float, ...]], rng: Rng) -> dict[str, NDArray[np.int64]]:
    """CHUNK values of each attribute, each from a stream of its own."""
    return {
        attribute: np.searchsorted(np.cumsum(weights)[:-1], rng.child(attribute).numpy().random(CHUNK), side="right")
        for attribute, weights in shares.items()
    }


def clipped(values: Array) -> Array:
    inside: Array = np.clip(values, 0, 1)
    return inside


class Portrait:
    """A chunk of faces on their canvas. v runs down from -1 to 1, u to the right on the same scale."""

    def __init__(
        self, attributes: Mapping[str, NDArray[np.int64]], rows: int, columns: int, draw: np.random.Generator
    ) -> None:
        self.is_ = {name: values.astype(np.float32)[:, None, None] for name, values in attributes.items()}
        self.draw_from = draw
        self.faces = CHUNK
        self.pixel = 2 / rows
        self.skin = self.tinted(SKIN[attributes["skin"]], 0.06)
        self.hair = self.tinted(HAIR[attributes["hair"]], 0.05)
        self.canvas = np.empty((CHUNK, 3, rows, columns), np.float32)
        self.u, self.v = self.place(rows, columns)

    def between(self, low: float, high: float) -> PerFace:
        return self.draw_from.uniform(low, high, (self.faces, 1, 1)).astype(np.float32)

    def around(self, spread: float) -> PerFace:
        return self.draw_from.normal(0, spread, (self.faces, 1, 1)).astype(np.float32)

    def colour(self, low: float, high: float) -> Array:
        return self.draw_from.uniform(low, high, (self.faces, 3)).astype(np.float32)

    def backdrop(self) -> Array:
        """A muted colour: rooms, streets and skies are seldom vivid."""
        colour = self.colour(0.1, 0.95)
        return clipped(0.35 * colour + 0.65 * colour.mean(1, keepdims=True))

    def tinted(self, colour: Array, spread: float) -> Array:
        brightness = self.draw_from.normal(0, spread, (self.faces, 1))
        return np.clip(colour + brightness + self.draw_from.normal(0, spread / 3, (self.faces, 3)), 0.02, 1).astype(
            np.float32
        )

    def place(self, rows: int, columns: int) -> tuple[Plane, Plane]:
        """Where each pixel lies on each face: shift, size and tilt differ."""
        v, u = np.meshgrid(
            (np.arange(rows, dtype=np.float32) + 0.5 - rows / 2) * self.pixel,
            (np.arange(columns, dtype=np.float32) + 0.5 - columns / 2) * self.pixel,
            indexing="ij",
        )
        u, v = u - self.around(0.03), v - self.around(0.03)
        tilt, size = self.around(0.07), 1 + self.around(0.04)
        cos, sin = np.cos(tilt) / size, np.sin(tilt) / size
        return cos * u + sin * v, cos * v - sin * u

    def paint(self, mask: Plane, colour: Array, top: int = 0) -> None:
        """Lays a colour (faces, 3) over the rows from ``top`` on, as opaque as the mask (0..1) says."""
        region = self.canvas[:, :, top : top + mask.shape[1]]
        for channel in range(3):
            region[:, channel] += mask * (colour[:, channel, None, None] - region[:, channel])

    def ellipse(
        self,
        u: Plane,
        v: Plane,
        centre: tuple[PerFace | float, PerFace | float],
        half: tuple[PerFace | float, PerFace | float],
    ) -> Plane:
        """1 inside, 0 outside, with an edge about a pixel wide."""
        a, b = half
        radius = np.sqrt(((u - centre[0]) / a) ** 2 + ((v - centre[1]) / b) ** 2)
        return clipped((1 - radius) * np.asarray(np.minimum(a, b) / self.pixel, np.float32) + 0.5)

    def below(self, v: Plane, line: Plane | PerFace | float) -> Plane:
        return clipped((v - line) / self.pixel + 0.5)

    def rows(self, low: float, high: float) -> slice:
        """The rows of the canvas that can hold what lies between two heights, tilt and shift included."""
        count, margin = self.canvas.shape[2], 0.2
        first = int((low - margin + 1) / self.pixel)
        return slice(max(first, 0), min(int((high + margin + 1) / self.pixel) + 1, count))

    def draw(self) -> Array:
        """(faces, 3, rows, columns) in 0..1"""
        self.background()
        head = (self.between(0.44, 0.5) + 0.03 * self.is_["male"], self.between(0.6, 0.66))
        yaw = self.around(0.035)
        self.hair_behind(head)
        self.shoulders()
        face = self.face(head)
        self.eyes(yaw)
        self.nose(yaw)
        self.beard(face, yaw)
        self.mouth(yaw)
        self.hair_in_front(head)
        self.hat(head)
        self.sunglasses(yaw)
        return self.light()

    def background(self) -> None:
        first, second = self.backdrop(), self.backdrop()
        turn = self.between(0, 2 * np.pi)
        mix = np.clip(0.5 + 0.6 * (np.cos(turn) * self.u + np.sin(turn) * self.v), 0, 1)
        for channel in range(3):
            low, high = first[:, channel, None, None], second[:, channel, None, None]
            self.canvas[:, channel] = low + mix * (high - low)
        for _ in range(2):
            where = (self.between(-0.8, 0.8), self.between(-1, 1))
            self.paint(
                0.6 * self.ellipse(self.u, self.v, where, (self.between(0.1, 0.5), self.between(0.1, 0.5))),
                self.backdrop(),
            )

    def hair_behind(self, head: tuple[PerFace, PerFace]) -> None:
        long = self.is_["long_hair"]
        crown = self.ellipse(
            self.u,
            self.v,
            (0.0, -0.12),
            (head[0] + self.between(0.05, 0.1), head[1] + self.between(0.02, 0.08)),
        )
        crown *= 1 - self.below(self.v, 0.1 + self.around(0.05))
        fall = self.ellipse(self.u, self.v, (0.0, 0.15), (head[0] + self.between(0.06, 0.16), self.between(0.75, 0.95)))
        self.paint(np.maximum(crown, fall * long), self.hair)

    def shoulders(self) -> None:
        region = self.rows(0.4, 1)
        u, v = self.u[:, region], self.v[:, region]
        neck = self.ellipse(u, v, (0.0, 0.75), (0.2 + 0.05 * self.is_["male"], 0.5))
        self.paint(neck, self.skin * 0.82, region.start)
        clothes = self.ellipse(u, v, (0.0, 1.35), (self.between(0.6, 0.85), self.between(0.45, 0.6)))
        self.paint(clothes, self.colour(0.05, 0.9), region.start)

    def face(self, head: tuple[PerFace, PerFace]) -> Plane:
        # A man's jaw is drawn squarer: the sides are let out below the eyes.
        jaw = 1 + (0.35 * self.is_["male"] - 0.1) * np.clip(self.v, 0, 0.45)
        face = self.ellipse(self.u / jaw, self.v, (0.0, 0.02), head)
        for side in (-1, 1):
            self.paint(self.ellipse(self.u, self.v, (side * head[0], 0.0), (0.06, 0.13)), self.skin * 0.85)
        self.paint(face, self.skin)
        shade = face * np.clip((self.u / head[0]) ** 2 + (self.v / head[1]) ** 2 - 0.45, 0, 1) * 0.35
        self.paint(shade, self.skin * 0.55)
        for side in (-1, 1):
            cheek = self.ellipse(self.u, self.v, (side * 0.26, 0.2), (0.13, 0.1)) * self.between(0, 0.25)
            self.paint(cheek, np.clip(self.skin * np.array([1.1, 0.85, 0.85], np.float32), 0, 1))
        return face

    def eyes(self, yaw: PerFace) -> None:
        region = self.rows(-0.35, 0.05)
        u, v = self.u[:, region] - yaw, self.v[:, region]
        apart, height = self.between(0.19, 0.23), -0.1 + self.around(0.015)
        iris = self.tinted(np.repeat(np.array([[0.22, 0.17, 0.14]], np.float32), self.faces, 0), 0.12)
        open_ = self.between(0.035, 0.06)
        gaze = self.around(0.012)
        brow_height, brow_thick = (
            height - self.between(0.12, 0.16),
            0.016 + 0.024 * self.is_["male"] + self.around(0.004),
        )
        for side in (-1, 1):
            self.paint(
                0.35 * self.ellipse(u, v, (side * apart, height), (0.13, open_ + 0.05)),
                self.skin * 0.5,
                region.start,
            )
            eye = self.ellipse(u, v, (side * apart, height), (0.085, open_))
            self.paint(eye, np.full((self.faces, 3), 0.92, np.float32), region.start)
            self.paint(eye * self.ellipse(u, v, (side * apart + gaze, height), (0.042, 0.05)), iris, region.start)
            arch = brow_height + 1.2 * (u - side * apart) ** 2
            brow = self.ellipse(u, v - arch, (side * apart, 0.0), (0.13, np.maximum(brow_thick, 0.01)))
            self.paint(0.85 * brow, self.hair * 0.7, region.start)

    def nose(self, yaw: PerFace) -> None:
        region = self.rows(-0.1, 0.3)
        u, v = self.u[:, region] - 1.4 * yaw, self.v[:, region]
        length, side = self.between(0.14, 0.2), np.sign(self.around(1.0))
        self.paint(0.3 * self.ellipse(u, v, (side * 0.045, 0.06), (0.03, length)), self.skin * 0.55, region.start)
        tip = 0.06 + length
        self.paint(0.35 * self.ellipse(u, v, (0.0, tip), (0.09, 0.035)), self.skin * 0.5, region.start)
        self.paint(
            0.3 * self.ellipse(u, v, (0.0, tip - 0.04), (0.045, 0.05)),
            np.clip(self.skin * 1.15, 0, 1),
            region.start,
        )

    def mouth(self, yaw: PerFace) -> None:
        region = self.rows(0.2, 0.6)
        u, v = self.u[:, region] - yaw, self.v[:, region]
        smile, male = self.is_["smile"], self.is_["male"]
        # Corners up (smaller v) when smiling. The two ranges meet: a faint smile is nearly a straight mouth.
        bend = smile * self.between(0.6, 2.0) + (1 - smile) * self.between(-0.9, 0.5)
        width = self.between(0.14, 0.18) + smile * self.between(0.02, 0.09)
        # Most of those who smile show their teeth, and a few of the others have their mouths open.
        opened = (self.between(0, 1) < 0.1 + 0.6 * smile).astype(np.float32)
        thick = self.between(0.035, 0.05) - 0.01 * male + opened * self.between(0.01, 0.04)
        curve = 0.38 + self.around(0.02) - bend * (u**2 - 0.3 * width**2)
        red = np.array([0.9, 0.5, 0.5], np.float32) - 0.12 * male[:, :, 0] * np.array([1, -0.6, -0.6], np.float32)
        lips = self.tinted(self.skin * red, 0.03)
        self.paint(0.95 * self.ellipse(u, v - curve, (0.0, 0.0), (width, thick)), lips, region.start)
        gap = self.ellipse(u, v - curve, (0.0, 0.0), (0.82 * width, 0.62 * thick))
        self.paint(gap * opened, np.full((self.faces, 3), 0.94, np.float32), region.start)
        line = self.ellipse(u, v - curve, (0.0, 0.0), (0.9 * width, 0.012))
        self.paint(line * (1 - opened) * 0.7, lips * 0.4, region.start)
        # A smile lifts the cheeks, which casts a fold from the nose to the corners of the mouth.
        for side in (-1, 1):
            fold = self.ellipse(u - side * 0.25 * (v - 0.2), v, (side * 0.17, 0.26), (0.02, 0.1))
            self.paint(fold * (0.1 + 0.35 * smile) * self.between(0.3, 1), self.skin * 0.55, region.start)

    def beard(self, face: Plane, yaw: PerFace) -> None:
        region = self.rows(0.1, 0.75)
        u, v = self.u[:, region] - yaw, self.v[:, region]
        line = self.between(0.2, 0.3) - 0.9 * u**2
        grown = face[:, region] * self.below(v, line) * self.is_["beard"] * self.between(0.45, 0.9)
        grown *= 1 - 0.8 * self.ellipse(u, v, (0.0, 0.38), (0.17, 0.05))
        self.paint(grown, self.hair * 0.8, region.start)

    def hair_in_front(self, head: tuple[PerFace, PerFace]) -> None:
        region = self.rows(-0.9, -0.05)
        u, v = self.u[:, region], self.v[:, region]
        parting, slope = self.around(0.15), self.around(0.15)
        line = -0.42 + self.around(0.06) + 0.9 * (u - parting) ** 2 + slope * u
        cap = self.ellipse(u, v, (0.0, -0.05), (head[0] + 0.04, head[1] + 0.04))
        self.paint(cap * (1 - self.below(v, line)), self.hair, region.start)
        gloss = self.ellipse(u, v, (parting, -0.55), (0.25, 0.06)) * self.between(0, 0.35)
        self.paint(gloss * (1 - self.below(v, line)), np.clip(self.hair * 1.4 + 0.05, 0, 1), region.start)

    def hat(self, head: tuple[PerFace, PerFace]) -> None:
        region = self.rows(-1, -0.2)
        u, v = self.u[:, region], self.v[:, region]
        line, cloth = self.between(-0.5, -0.36), self.colour(0.03, 0.9)
        crown = self.ellipse(u, v, (0.0, -0.38), (head[0] + 0.07, self.between(0.4, 0.55)))
        self.paint(crown * (1 - self.below(v, line)) * self.is_["hat"], cloth, region.start)
        brim = self.ellipse(u, v, (self.around(0.06), line), (head[0] + self.between(0, 0.15), 0.05))
        self.paint(brim * self.is_["hat"], cloth * 0.75, region.start)

    def sunglasses(self, yaw: PerFace) -> None:
        region = self.rows(-0.3, 0.1)
        u, v = self.u[:, region] - yaw, self.v[:, region]
        worn = self.is_["sunglasses"]
        size, drop = (self.between(0.14, 0.19), self.between(0.09, 0.14)), -0.07 + self.around(0.035)
        tint = self.colour(0.02, 0.2)
        lenses = np.zeros_like(u)
        for side in (-1, 1):
            lenses = np.maximum(lenses, self.ellipse(u, v, (side * 0.21, drop), size))
        bar = self.ellipse(u, v, (0.0, drop - 0.03), (0.4, 0.02))
        self.paint(np.maximum(lenses * self.between(0.3, 0.95), 0.9 * bar) * worn, tint, region.start)
        glint = self.ellipse(u, v, (0.16 + self.around(0.03), drop - 0.04), (0.03, 0.02)) * self.between(0, 0.5)
        self.paint(glint * worn, np.ones((self.faces, 3), np.float32), region.start)

    def light(self) -> Array:
        lit = (1 + self.around(0.18) * self.u + self.around(0.12) * self.v) * self.between(0.7, 1.15)
        picture = self.canvas * lit[:, None]
        picture += self.draw_from.normal(0, 0.03, (self.faces, 3))[:, :, None, None].astype(np.float32)
        grain = self.draw_from.standard_normal(picture.shape, dtype=np.float32)
        picture += grain * self.between(0.005, 0.035)[:, None]
        return clipped(picture)
