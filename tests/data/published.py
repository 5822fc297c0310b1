"""Small files in the formats in which data sets are published."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

DRAW = np.random.default_rng(0)


def idx(values: NDArray[np.uint8]) -> bytes:
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_mnist(folder: Path, train: int = 30, test: int = 10, packed: bool = True) -> NDArray[np.uint8]:
    """Returns all pictures, training first; label i is i % 10."""
    folder.mkdir(parents=True, exist_ok=True)
    images = DRAW.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = (np.arange(train + test) % 10).astype(np.uint8)
    for part, rows in (("train", slice(0, train)), ("t10k", slice(train, None))):
        for name, values in ((f"{part}-images-idx3-ubyte", images[rows]), (f"{part}-labels-idx1-ubyte", labels[rows])):
            path = folder / (name + ".gz" if packed else name)
            path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return images


def write_cifar10(folder: Path, each: int = 4) -> NDArray[np.uint8]:
    """Returns all pictures (n, 3, 32, 32), the test batch last. Keys are bytes, as Python 2 wrote them."""
    home = folder / "cifar-10-batches-py"
    home.mkdir(parents=True)
    images = DRAW.integers(0, 256, (6 * each, 3072), dtype=np.uint8)
    for number, name in enumerate([*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]):
        rows = slice(number * each, (number + 1) * each)
        content = {b"data": images[rows], b"labels": [number % 10] * each, b"batch_label": name.encode()}
        (home / name).write_bytes(pickle.dumps(content, protocol=2))
    names = [f"class {number}".encode() for number in range(10)]
    (home / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))
    return images.reshape(-1, 3, 32, 32)


def write_cifar100(archive: Path) -> None:
    """The whole as the published archive: six training and four test pictures."""
    with tarfile.open(archive, "w:gz") as packed:
        for name, count in (("train", 6), ("test", 4)):
            content = {
                b"data": DRAW.integers(0, 256, (count, 3072), dtype=np.uint8),
                b"fine_labels": [90 + row for row in range(count)],
                b"coarse_labels": list(range(count)),
            }
            add(packed, f"cifar-100-python/{name}", pickle.dumps(content, protocol=2))
        names = {b"fine_label_names": [f"thing {number}".encode() for number in range(100)]}
        add(packed, "cifar-100-python/meta", pickle.dumps(names, protocol=2))


def add(packed: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    packed.addfile(member, io.BytesIO(content))


def write_picture(path: Path, rows: int, columns: int, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (columns, rows), colour).save(path, quality=95)


LFW_PEOPLE = (("Aaron Eckhart", 1), ("Aaron Eckhart", 2), ("Aung San Suu Kyi", 1))
LFW_NAMES = ("Male", "Asian", "White", "Black", "Smiling", "Sunglasses")
LFW_SCORES = ((1.5, -2.0, 0.7, -1.0, -0.3, -2), (1.2, -2.0, 0.9, -1.5, 0.4, 1.0), (-1.0, 1.8, -0.9, -1.1, 2.0, -3))


def write_lfw(folder: Path, pictures: str = "lfw_funneled") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# lfw_attributes.txt - attribute values", "#\tperson\timagenum\t" + "\t".join(LFW_NAMES)]
    for (person, number), scores in zip(LFW_PEOPLE, LFW_SCORES, strict=True):
        lines.append("\t".join([person, str(number), *map(str, scores)]))
        stem = person.replace(" ", "_")
        write_picture(folder / pictures / stem / f"{stem}_{number:04d}.jpg", 250, 250, (40 * number, 80, 200))
    (folder / "lfw_attributes.txt").write_text("\n".join(lines) + "\n")


def write_celeba(folder: Path, count: int = 5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = [f"{number:06d}.jpg" for number in range(1, count + 1)]
    attributes = [f"{count}", "Eyeglasses Male Smiling "]
    for number, file in enumerate(files):
        attributes.append(f"{file} {1 if number == 0 else -1}  1 {1 if number % 2 else -1}")
        write_picture(folder / "img_align_celeba" / file, 218, 178, (50 * number, 100, 150))
    (folder / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    (folder / "identity_CelebA.txt").write_text("".join(f"{file} {2880 + n}\n" for n, file in enumerate(files)))


def write_chinese(folder: Path) -> None:
    """Two writers, two samples each, codes 1 and 15."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["suite_id,sample_id,code,value,character"]
    for suite in (1, 2):
        for sample in (1, 2):
            for code, value, character in ((1, 0, "零"), (15, 100000000, "亿")):
                lines.append(f"{suite},{sample},{code},{value},{character}")
                write_picture(folder / f"data/data/input_{suite}_{sample}_{code}.jpg", 64, 64, (100 * suite,) * 3)
    (folder / "chinese_mnist.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def bits(rows: int, columns: int) -> NDArray[np.uint8]:
    return DRAW.integers(0, 2, (rows, columns), dtype=np.uint8)


def write_purchase(folder: Path, rows: int = 7) -> NDArray[np.uint8]:
    values = bits(rows, 600)
    lines = [f"{row * 15 + 1}," + ",".join(map(str, values[row])) for row in range(rows)]
    (folder / "dataset_purchase").write_text("\n".join(lines) + "\n")
    return values


def write_location(folder: Path, rows: int = 6) -> NDArray[np.uint8]:
    """As it is published: labels from 1 to 30 in quotation marks."""
    features = bits(rows, 446)
    lines = [f'"{5 * row + 1}",{",".join(map(str, values))}' for row, values in enumerate(features)]
    (folder / "bangkok").write_text("\n".join(lines) + "\n")
    return features


def write_texas(folder: Path, rows: int = 5) -> NDArray[np.uint8]:
    home = folder / "texas" / "100"
    home.mkdir(parents=True)
    values = bits(rows, 6169)
    (home / "feats").write_text("".join(",".join(map(str, row)) + "\n" for row in values))
    (home / "labels").write_text("".join(f"{100 - row}\n" for row in range(rows)))
    return values
