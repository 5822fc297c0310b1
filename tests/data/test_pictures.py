from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import published

from coterie.data.sources.base import Readiness, Source
from coterie.data.sources.celeba import Celeba
from coterie.data.sources.chinese_mnist import ChineseMnist
from coterie.data.sources.cifar import Cifar10, Cifar100
from coterie.data.sources.lfw import Lfw
from coterie.data.sources.mnist import FashionMnist, Mnist
from coterie.errors import DataMissing, InvalidInput


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_keeps_pictures_labels_and_split(tmp_path: Path, packed: bool) -> None:
    images = published.write_mnist(tmp_path, packed=packed)
    examples = Mnist().load(tmp_path)
    assert torch.equal(examples.x, torch.from_numpy(images.astype(np.float32) / 255)[:, None])
    assert examples.y.tolist() == [row % 10 for row in range(40)]
    assert examples.tags["split"].tolist() == [0] * 30 + [1] * 10


def test_mnist_and_fashion_are_told_apart_by_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published.write_mnist(tmp_path / "mnist", train=5)
    published.write_mnist(tmp_path / "fashion_mnist", train=6)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert len(Mnist().load()) == 15
    assert len(FashionMnist().load()) == 16
    published.write_mnist(tmp_path / "loose")
    assert Mnist().state(tmp_path / "loose").readiness is Readiness.READY
    assert FashionMnist().state(tmp_path / "loose").readiness is Readiness.MISSING
    assert FashionMnist().state(tmp_path / "fashion_mnist").readiness is Readiness.READY


def test_no_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with pytest.raises(DataMissing, match="COTERIE_DATA"):
        Mnist().load()
    with pytest.raises(DataMissing, match="does not exist"):
        Mnist().load(tmp_path / "nowhere")


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    published.write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    damages = {
        "cannot be read": whole[:-500],
        "starts with 6e6f": gzip.compress(b"no idx file"),
        "cut short": gzip.compress(gzip.decompress(whole)[:-1]),
        "has 1 axes": gzip.compress(published.idx(np.zeros(30, np.uint8))),
        "do not belong together": gzip.compress(published.idx(np.zeros((29, 28, 28), np.uint8))),
    }
    for message, content in damages.items():
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=message):
            Mnist().load(tmp_path)
        assert Mnist().state(tmp_path).readiness is Readiness.DAMAGED
    path.unlink()
    state = Mnist().state(tmp_path)
    assert state.readiness is Readiness.MISSING
    assert "train-images-idx3-ubyte" in state.reason


def test_cifar10_from_python_batches(tmp_path: Path) -> None:
    images = published.write_cifar10(tmp_path / "cifar10")
    examples = Cifar10().load(tmp_path)
    assert torch.equal(examples.x, torch.from_numpy(images.astype(np.float32)).div(255))
    assert examples.y.bincount().tolist() == [4] * 6
    assert examples.tags["split"].tolist() == [0] * 20 + [1] * 4
    assert examples.label_names[3] == "class 3"


def test_cifar100_from_the_archive(tmp_path: Path) -> None:
    published.write_cifar100(tmp_path / "cifar-100-python.tar.gz")
    examples = Cifar100().load(tmp_path)
    assert examples.y.tolist() == [90, 91, 92, 93, 94, 95, 90, 91, 92, 93]
    assert examples.tags["coarse"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert examples.tags["split"].sum() == 4
    assert (examples.classes, len(examples.label_names)) == (100, 100)


class Mischief:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit",))


def test_a_batch_cannot_run_code_and_must_have_pictures(tmp_path: Path) -> None:
    published.write_cifar10(tmp_path)
    batch = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    batch.write_bytes(pickle.dumps({b"data": Mischief(), b"labels": []}))
    with pytest.raises(InvalidInput, match="exec"):
        Cifar10().load(tmp_path)
    batch.write_bytes(pickle.dumps({b"data": np.zeros((2, 100), np.uint8), b"labels": [0, 0]}))
    with pytest.raises(InvalidInput, match=r"data_batch_2 has data \(2, 100\)"):
        Cifar10().load(tmp_path)
    batch.unlink()
    with pytest.raises(DataMissing, match="data_batch_2"):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize(("home", "pictures"), [(".", "lfw"), ("lfw", "lfw-deepfunneled"), ("lfw", "."), (".", ".")])
def test_lfw_attributes_and_pictures(tmp_path: Path, home: str, pictures: str) -> None:
    published.write_lfw(tmp_path / home, pictures)
    examples = Lfw().load(tmp_path)
    assert examples.x.shape == (3, 3, 62, 47)
    assert torch.allclose(examples.x[0, :, 30, 20], torch.tensor([40, 80, 200]) / 255, atol=0.03)
    assert examples.y.tolist() == [0, 1, 1]
    assert examples.tags["Sunglasses"].tolist() == [0, 1, 0]
    assert examples.tags["identity"].tolist() == [0, 0, 1]
    race = Lfw(label="Race").load(tmp_path)
    assert (race.y.tolist(), race.label_names) == ([1, 1, 0], ("Asian", "White", "Black"))
    assert Lfw().state(tmp_path).readiness is Readiness.READY
    with pytest.raises(InvalidInput, match="did you mean 'Smiling'"):
        Lfw(label="Smile").load(tmp_path)


def test_lfw_without_pictures_or_with_a_cut_list(tmp_path: Path) -> None:
    published.write_lfw(tmp_path)
    listing = tmp_path / "lfw_attributes.txt"
    listing.write_text(listing.read_text().rstrip().rsplit("\t", 1)[0])
    with pytest.raises(InvalidInput, match="picture 3 has 7 columns; 8 are due"):
        Lfw().load(tmp_path)
    listing.write_text("Aaron\t1\t2\n")
    with pytest.raises(InvalidInput, match="not the attribute list"):
        Lfw().load(tmp_path)
    listing.write_text("#\tperson\timagenum\tSmiling\nNobody Known\t7\t1.0\n")
    with pytest.raises(DataMissing, match=r"Nobody_Known_0007\.jpg"):
        Lfw().load(tmp_path)


def test_celeba_from_lists_and_pictures(tmp_path: Path) -> None:
    published.write_celeba(tmp_path / "celeba")
    examples = Celeba(size=24).load(tmp_path)
    assert examples.x.shape == (5, 3, 24, 24)
    assert torch.allclose(examples.x[2, :, 5, 5], torch.tensor([100, 100, 150]) / 255, atol=0.03)
    assert examples.y.tolist() == [0, 1, 0, 1, 0]
    assert examples.tags["Eyeglasses"].tolist() == [1, 0, 0, 0, 0]
    assert examples.tags["identity"].tolist() == [2880, 2881, 2882, 2883, 2884]
    assert "split" not in examples.tags
    parts = "".join(f"{number:06d}.jpg {number % 3}\n" for number in range(1, 6))
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text(parts)
    assert Celeba(limit=3).load(tmp_path).tags["split"].tolist() == [0, 1, 0]


def test_celeba_from_npz(tmp_path: Path) -> None:
    images = published.DRAW.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(
        tmp_path / "celeba_4_8.npz",
        images=images,
        identity=np.array([7, 7, 8, 9], np.int16),
        attributes=np.array([[0, 1], [1, 1], [0, 0], [1, 0]], bool),
        attribute_names=np.array(["Smiling", "Male"]),
    )
    examples = Celeba(label="Male").load(tmp_path)
    assert torch.equal(examples.x[1, 2], torch.from_numpy(images[1, :, :, 2].astype(np.float32)).div(255))
    assert examples.y.tolist() == [1, 1, 0, 0]
    assert examples.tags["Smiling"].tolist() == [0, 1, 0, 1]


def test_celeba_lists_that_do_not_fit(tmp_path: Path) -> None:
    published.write_celeba(tmp_path)
    (tmp_path / "identity_CelebA.txt").write_text("000001.jpg 5\n")
    with pytest.raises(InvalidInput, match=r"says nothing about 000002\.jpg"):
        Celeba().load(tmp_path)
    listing = tmp_path / "list_attr_celeba.txt"
    listing.write_text(listing.read_text().rsplit("\n", 2)[0])
    with pytest.raises(InvalidInput, match="announces 5 pictures and lists 4"):
        Celeba().load(tmp_path)


def test_an_unreadable_picture_is_named(tmp_path: Path) -> None:
    published.write_celeba(tmp_path)
    (tmp_path / "img_align_celeba" / "000003.jpg").write_bytes(b"not a picture")
    with pytest.raises(InvalidInput, match=r"000003\.jpg cannot be read"):
        Celeba().load(tmp_path)


def test_chinese_mnist_as_kaggle_has_it(tmp_path: Path) -> None:
    published.write_chinese(tmp_path / "chinese_mnist")
    examples = ChineseMnist().load(tmp_path)
    assert examples.x.shape == (8, 1, 64, 64)
    assert examples.y.tolist() == [0, 14] * 4
    assert examples.tags["writer"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert torch.allclose(examples.x[4], torch.tensor(200 / 255), atol=0.02)
    digits = ChineseMnist(digits_only=True, size=32).load(tmp_path)
    assert (digits.x.shape, digits.y.tolist(), digits.classes) == ((4, 1, 32, 32), [0] * 4, 10)


def test_chinese_mnist_from_npz(tmp_path: Path) -> None:
    images = np.full((3, 64, 64), 51, np.uint8)
    np.savez(tmp_path / "chinese_mnist_64.npz", images=images, label=[3, 11, 9], writer=[5, 6, 5])
    examples = ChineseMnist(digits_only=True, size=16).load(tmp_path)
    assert (examples.y.tolist(), examples.tags["writer"].tolist()) == ([3, 9], [5, 5])
    assert torch.allclose(examples.x, torch.full((2, 1, 16, 16), 0.2))


@pytest.mark.parametrize("source", [Cifar10(), Cifar100(), Lfw(), Celeba(), ChineseMnist()], ids=lambda one: one.name)
def test_an_empty_folder_is_missing_with_place_and_layout(source: Source, tmp_path: Path) -> None:
    state = source.state(tmp_path)
    assert state.readiness is Readiness.MISSING
    assert source.published_at in state.reason
    assert source.layout in state.reason
