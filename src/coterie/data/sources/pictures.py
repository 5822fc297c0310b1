"""Reading picture files into one array."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coterie.errors import InvalidInput
from coterie.files import require_room, room

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Box = tuple[int, int, int, int]  # left, top, right, bottom
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp", ".tif", ".tiff")
PIXEL = 8  # bytes: as it was read, and as it is wanted
BLOCK = 4096  # bytes that a file takes on a disk at least


def read_pictures(
    paths: Sequence[Path], size: tuple[int, int], crop: Box | None = None, grey: bool = False
) -> NDArray[np.uint8]:
    """(pictures, rows, columns[, 3]): each cut to the box, then scaled to ``size`` = (rows, columns)."""
    from PIL import Image, UnidentifiedImageError

    shape = (len(paths), *size) if grey else (len(paths), *size, 3)
    held = sum(max(path.stat().st_size, BLOCK) for path in paths)
    taken = 5 * int(np.prod(shape))  # as bytes, and then as numbers of four
    require_room(f"{len(paths)} pictures", held, taken, "scale them to fewer rows and columns, or to grey")
    out = np.empty(shape, np.uint8)
    for number, path in enumerate(paths):
        try:
            with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
                opened = Image.open(path)
            with opened:
                _require_small(opened, path, None if crop else size)
                picture = opened.convert("L" if grey else "RGB")
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
            raise InvalidInput(f"picture {path} cannot be read ({error}); replace or remove it") from error
        picture = picture if crop is None else picture.crop(crop)
        if picture.size != (size[1], size[0]):
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR, reducing_gap=2.0)
        out[number] = np.asarray(picture)
    return out


def _require_small(opened: Picture, path: Path, size: tuple[int, int] | None) -> None:
    """A few bytes can promise many pixels. Photographs that would take too much are read smaller, if they can be."""
    length = path.stat().st_size
    if size is not None and PIXEL * opened.width * opened.height > room(length):
        opened.draft(None, (size[1], size[0]))
    pixels = opened.width * opened.height
    require_room(f"picture {path}", length, PIXEL * pixels, f"it has {pixels:,} pixels; scale it down")
