"""Files that anybody may have written."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coterie.errors import InvalidInput
from coterie.files import PUBLISHED, read_npz


def test_what_numpy_wrote_is_read(tmp_path: Path) -> None:
    path, turned = tmp_path / "a.npz", np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez(path, x=turned, empty=np.zeros((0, 4)), word=np.array("train"))
    found = read_npz(path)
    assert np.array_equal(found["x"], turned)
    assert (found["empty"].shape, str(found["word"])) == ((0, 4), "train")
    found["x"] += 1  # one's own


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(InvalidInput, match="Python objects"):
        read_npz(tmp_path / "a.npz")


def test_what_unfolds_without_end_is_refused_before_it_does(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(9 << 20) // 4096 * 1.0)
    with pytest.raises(InvalidInput, match=r"would take 75,\d+,\d+ of memory, more than 10 times"):
        read_npz(path)
    assert len(read_npz(path, PUBLISHED)["x"]) == 9 << 20


def test_a_shape_that_is_not_there_takes_no_memory(tmp_path: Path) -> None:
    written = io.BytesIO()
    np.save(written, np.zeros(4))
    lying = written.getvalue().replace(b"(4,), }         ", b"(4000000000000,)}")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", lying)
    with pytest.raises(InvalidInput, match="is not what its file holds"):
        read_npz(tmp_path / "a.npz")


def test_a_single_array_and_rubbish_are_no_archives(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 and no more")
    for name in ("a.npy", "b.npz"):
        with pytest.raises(InvalidInput, match=r"cannot be read as an \.npz"):
            read_npz(tmp_path / name)
