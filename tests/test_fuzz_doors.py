"""Damaged and made-up files at the doors for users: an error of ours that says what is wrong, or a value that is whole.

Together with ``tests/wire/test_fuzz.py``: codec, recordings, configurations, tables, arrays, pictures and run folders.
"""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.wire.test_fuzz import damaged

from coterie.audit.case import read as read_subject
from coterie.audit.starter import Wishes, fitted
from coterie.commands.training import _told
from coterie.config.schema import parse, read
from coterie.data.sources.own import Arrays, ImageFolder, Table
from coterie.errors import CoterieError
from coterie.run.folder import CHECKPOINT, METRICS, RECORD, Checkpoint, RunFolder, list_runs
from coterie.wire.codec import encode

TOML = b"""name = "run"
seed = 3
delta = 1e-5
[data]
kind = "digits"
[partition]
kind = "label_sets"
clients = 10
sets = 5
[model]
kind = "fcnn"
hidden = 16
[trainer]
kind = "ifca"
clusters = 2
rounds = 3
local = { steps = 2, batch_size = 8, lr = 0.1 }
[defence]
kind = "dpsgd"
clip = 1.0
[audit]
seeds = 2
families = ["poisoning"]
property = { tag = "a", value = 1 }
[limits]
max_epsilon = 3
stress.max_property_auc = 0.7
"""
CSV = b"id;age;name;city;label\n" + b"".join(b"%d;%d,5;n%d;K\xf6ln;%d\n" % (i, i % 7, i % 3, i % 2) for i in range(20))
TEXTS = [
    b";",
    b",",
    b"\t",
    b"\n",
    b'"',
    b"nan",
    b"inf",
    b"1e999",
    b"\xff",
    b"",
    b"-1",
    b"0",
    b"[",
    b"]",
    b"{",
    b"=",
    b"#",
]
NUMBERS = [b"-1", b"1e309", b"true", b'"x"', b"[]", b"{}", b"nan", b"9999999999999999999999", b"0", b"''"]


def survives(door: Callable[[], object]) -> bool:
    """Whether it let something in; anything but an error of ours, or one without words, fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            door()
    except CoterieError as error:
        told = str(error)
    else:
        return True
    assert len(told) > 10
    return False


def changed(whole: bytes, draws: random.Random, words: list[bytes]) -> bytes:
    """Bytes damaged, or a value exchanged for another."""
    if draws.random() < 0.5:
        return damaged(whole, draws)
    parts = whole.split(b"\n")
    line = draws.randrange(len(parts))
    key, mark, _ = parts[line].partition(draws.choice([b"=", b";"]))
    parts[line] = key + mark + draws.choice(words)
    return b"\n".join(parts)


def test_configurations(tmp_path: Path) -> None:
    draws, path = random.Random(0), tmp_path / "c.toml"
    let_in = 0
    for _ in range(2000):
        path.write_bytes(changed(TOML, draws, NUMBERS))
        let_in += survives(lambda: read(path)) + survives(lambda: read_subject(path))
    assert 0 < let_in < 4000


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TABLES = ("name", "seed", "evaluate_every", "delta", "data", "public", "partition", "model", "trainer", "defence")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(st.dictionaries(st.sampled_from(TABLES), PLAIN, max_size=4))
def test_configurations_of_any_form(values: dict[str, Any]) -> None:
    survives(lambda: parse(values, "made up"))


def test_options_of_every_kind_of_value() -> None:
    """Words to objects: partitions, trainers and defences with options of wrong types."""
    draws = random.Random(3)
    odd: list[Any] = [-1, 0, 10**30, 0.5, float("nan"), "x", [], {}, None, True, [1, 2], {"a": 1}]
    kinds = {
        "trainer": ["ifca", "fedavg", "sattler"],
        "defence": ["dpsgd", "robust", "mingling", "noisy_sums", "stack"],
    }
    names = ["rounds", "local", "clusters", "clip", "rate", "rule", "bound", "members", "participation", "epsilon"]
    for _ in range(500):
        table = draws.choice(list(kinds))
        chosen = {"kind": draws.choice(kinds[table]), draws.choice(names): draws.choice(odd)}
        survives(partial(built, {table: chosen}, table))


def built(said: dict[str, Any], table: str) -> object:
    config = parse(said, "made up")
    protocol = config.protocol(config.trainers[0])
    return protocol if table == "trainer" else config.built_defence(config.defence, protocol)


def test_tables(tmp_path: Path) -> None:
    draws, path = random.Random(1), tmp_path / "t.csv"
    let_in = 0
    for number in range(600):
        path.write_bytes(changed(CSV, draws, TEXTS))
        let_in += survives(lambda: Table(path, "label", drop_gaps=True).load())
        if number % 3 == 0:
            survives(lambda: fitted(path, Wishes("label")))
    assert 0 < let_in < 600


@pytest.mark.parametrize("ending", [".csv.gz", ".csv.zip", ".parquet", ".npz"])
def test_files_that_are_not_what_they_are_called(tmp_path: Path, ending: str) -> None:
    draws, path = random.Random(2), tmp_path / f"t{ending}"
    whole = io.BytesIO()
    np.savez(whole, x=np.zeros((4, 2)), y=np.arange(4))
    for _ in range(100):
        path.write_bytes(draws.choice([damaged(whole.getvalue(), draws), draws.randbytes(200), CSV, b""]))
        survives(lambda: (Arrays(path) if ending == ".npz" else Table(path, "label")).load())


def test_pictures(tmp_path: Path) -> None:
    draws = random.Random(4)
    whole = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(whole, "png")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(whole.getvalue())
    for _ in range(200):
        (tmp_path / "a" / "0.png").write_bytes(damaged(whole.getvalue(), draws))
        survives(lambda: ImageFolder(tmp_path, rows=8, columns=8).load())


def test_run_folders(tmp_path: Path) -> None:
    draws = random.Random(5)
    run = RunFolder.create(tmp_path / "r", {"config": parse({}, "").model_dump(mode="json")})
    run.save(Checkpoint(None, {}, [{"round": 1, "accuracy": 0.5, "sizes": [1]}]))
    whole = {name: (run.path / name).read_bytes() for name in (RECORD, CHECKPOINT, METRICS)}
    whole[CHECKPOINT] = encode(Checkpoint(None, {}, [{"round": 1}]))
    for _ in range(400):
        for name, content in whole.items():
            (run.path / name).write_bytes(damaged(content, draws) if draws.random() < 0.5 else content)
        for found in list_runs(tmp_path):
            assert len(_told(found)) == 4
        survives(run.load)
        survives(lambda: parse(run.record["config"], "run.json"))


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"a,label\n" + b"1,1\n" * 40_000_000, 1))
    with pytest.raises(CoterieError, match="is too much for its size"):
        Table(tmp_path / "bomb.csv.gz", "label").load()
    (tmp_path / "wide.csv").write_text(",".join(f"c{i}" for i in range(30_000)) + "\n")
    with pytest.raises(CoterieError, match="must be at most 20000"):
        Table(tmp_path / "wide.csv", "label").load()
    (tmp_path / "large.toml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(CoterieError, match="must be at most 1048576"):
        read(tmp_path / "large.toml")
