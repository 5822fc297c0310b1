"""Reading picture files into one array."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.errors import InvalidInput

Box = tuple[int, int, int, int]  # left, top, right, bottom
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp", ".tif", ".tiff")


def read_pictures(
    paths: Sequence[Path], size: tuple[int, int], crop: Box | None = None, grey: bool = False
) -> NDArray[np.uint8]:
    """(pictures, rows, columns[, 3]): each cut to the box, then scaled to ``size`` = (rows, columns)."""
    from PIL import Image, UnidentifiedImageError

    shape = (len(paths), *size) if grey else (len(paths), *size, 3)
    out = np.empty(shape, np.uint8)
    for number, path in enumerate(paths):
        try:
            with Image.open(path) as opened:
                picture = opened.convert("L" if grey else "RGB")
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise InvalidInput(f"picture {path} cannot be read ({error}); replace or remove it") from error
        picture = picture if crop is None else picture.crop(crop)
        if picture.size != (size[1], size[0]):
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, reducing_gap=2.0)
        out[number] = np.asarray(picture)
    return out
