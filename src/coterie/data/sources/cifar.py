"""CIFAR-10 and CIFAR-100 in their Python batches, unpacked or as the published archive."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.federation import Examples
from coterie.data.sources.base import SPLIT, Source, integers, official, pixels
from coterie.errors import InvalidInput

ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}

Content = dict[bytes, Any]
"""Of a batch, as it was pickled."""


class ArraysOnly(pickle.Unpickler):
    """A pickle may name any function to call; a batch of pictures needs these five and gets no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"the batch asks for {module}.{name}, which no published batch does")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


@dataclass(frozen=True)
class Cifar10(Source):
    """50,000 and 10,000 pictures of things, 32x32 in colour, ten classes."""

    name: ClassVar[str] = "cifar10"
    about: ClassVar[str] = "60,000 colour pictures, 32x32, 10 classes"
    published_at: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html (python version)"
    layout: ClassVar[str] = "cifar-10-batches-py/{data_batch_1..5,test_batch,batches.meta} or cifar-10-python.tar.gz"
    inside: ClassVar[str] = "cifar-10-batches-py"
    archive: ClassVar[str] = "cifar-10-python.tar.gz"
    parts: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{number}" for number in range(1, 6))
    test_part: ClassVar[str] = "test_batch"
    meta: ClassVar[str] = "batches.meta"
    label_key: ClassVar[bytes] = b"labels"
    names_key: ClassVar[bytes] = b"label_names"
    classes: ClassVar[int] = 10

    def read(self, folder: Path) -> Examples:
        batch = self.opener(folder)
        images: list[NDArray[np.uint8]] = []
        labels: list[int] = []
        tags: dict[bytes, list[int]] = {}
        for part in (*self.parts, self.test_part):
            content = batch(part)
            images.append(self.pictures(part, content))
            labels += content[self.label_key]
            for key in self.further():
                tags.setdefault(key, []).extend(content[key])
        test = len(images[-1])
        return Examples(
            x=pixels(*images),
            y=integers(labels),
            classes=self.classes,
            name=self.name,
            tags={SPLIT: official(len(labels) - test, test)}
            | {key.decode().removesuffix("_labels"): integers(values) for key, values in tags.items()},
            label_names=tuple(name.decode() for name in batch(self.meta)[self.names_key]),
        )

    def further(self) -> tuple[bytes, ...]:
        return ()

    def pictures(self, part: str, content: Content) -> NDArray[np.uint8]:
        data = np.asarray(content[b"data"], np.uint8)
        if data.ndim != 2 or data.shape[1] != 3072 or len(data) != len(content[self.label_key]):
            raise InvalidInput(
                f"{self.name}: {part} has data {data.shape} and {len(content[self.label_key])} labels; "
                "(n, 3072) and n are due"
            )
        return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)

    def opener(self, folder: Path) -> Callable[[str], Content]:
        """Reads a batch by name, from the unpacked folder or from the archive."""
        home = self.find(folder, self.inside, self.parts[0])
        if home is not None:
            batches = home if home.is_dir() else home.parent
            return lambda part: unpickle(self.need(batches, part).read_bytes())
        archive = self.need(folder, self.inside, self.archive)
        with tarfile.open(archive) as packed:
            held = {Path(member.name).name: packed.extractfile(member) for member in packed if member.isfile()}
            content = {name: file.read() for name, file in held.items() if file is not None}
        for part in (*self.parts, self.test_part, self.meta):
            if part not in content:
                raise InvalidInput(f"{archive} has no {part}; it is not the python version")
        return lambda part: unpickle(content[part])


def unpickle(raw: bytes) -> Content:
    content = ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
    if not isinstance(content, dict):
        raise InvalidInput(f"a batch holds a {type(content).__name__}; a dictionary is due")
    return {key.encode() if isinstance(key, str) else key: value for key, value in content.items()}


@dataclass(frozen=True)
class Cifar100(Cifar10):
    """50,000 and 10,000 pictures of things, 32x32 in colour, 100 classes in 20 groups (tag ``coarse``)."""

    name: ClassVar[str] = "cifar100"
    about: ClassVar[str] = "60,000 colour pictures, 32x32, 100 classes"
    layout: ClassVar[str] = "cifar-100-python/{train,test,meta} or cifar-100-python.tar.gz"
    inside: ClassVar[str] = "cifar-100-python"
    archive: ClassVar[str] = "cifar-100-python.tar.gz"
    parts: ClassVar[tuple[str, ...]] = ("train",)
    test_part: ClassVar[str] = "test"
    meta: ClassVar[str] = "meta"
    label_key: ClassVar[bytes] = b"fine_labels"
    names_key: ClassVar[bytes] = b"fine_label_names"
    classes: ClassVar[int] = 100

    def further(self) -> tuple[bytes, ...]:
        return (b"coarse_labels",)
