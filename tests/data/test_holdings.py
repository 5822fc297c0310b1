"""Who holds which row, whatever users have; and what is public about the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.data.holdings import LARGEST, Holdings, as_floats, holdings
from coterie.data.units import Units
from coterie.errors import InvalidInput

X = np.arange(10.0).reshape(5, 2)
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "who": ["y", "x", "y", "z", "x"]}, index=[3, 1, 4, 15, 9])


def held(found: Holdings) -> dict[Any, list[list[float]]]:
    """The rows of each client."""
    federation = found.federation(as_floats(np.asarray(found.table)), None, "weight")
    x = federation.examples.x
    return {client: x[federation.train[at]].tolist() for at, client in enumerate(found.clients)}


BY_NAME = {"y": [[0, 1], [4, 5]], "x": [[2, 3], [8, 9]], "z": [[6, 7]]}


@pytest.mark.parametrize(
    "found",
    [
        lambda: holdings(FRAME, "who"),
        lambda: holdings(FRAME[["a", "b"]], FRAME["who"]),
        lambda: holdings(X, FRAME["who"]),
        lambda: holdings(X, FRAME["who"].tolist()),
        lambda: holdings(X.tolist(), tuple(FRAME["who"])),
        lambda: holdings(X, np.array(FRAME["who"])),
        lambda: holdings(FRAME.groupby("who")),
        lambda: holdings(FRAME.groupby("who", sort=False)),
        lambda: holdings(FRAME[["a", "b"]].groupby(FRAME["who"])),
        lambda: holdings({"y": X[[0, 2]], "x": X[[1, 4]], "z": X[[3]]}),
        lambda: holdings({"y": FRAME[["a", "b"]].iloc[[0, 2]], "x": X[[1, 4]], "z": X[[3]]}),
    ],
)
def test_the_same_clients_from_everything(found: Any) -> None:
    assert held(found()) == BY_NAME


def test_rows_stay_in_the_order_in_which_they_came() -> None:
    for found in (holdings(FRAME, "who"), holdings(FRAME.groupby("who"))):
        np.testing.assert_array_equal(np.asarray(found.table), X)
        assert list(found.table.columns) == ["a", "b"]
        assert found.grouped_by == ("who",)
    two = holdings(FRAME.assign(side=[1, 1, 2, 2, 1]).groupby(["who", "side"]))
    assert two.grouped_by == ("who", "side")
    assert set(two.clients) == {("x", 1), ("y", 1), ("y", 2), ("z", 2)}


def test_parts_are_clients_in_their_order() -> None:
    for parts in ([X[:2], X[2:]], (X[:2].tolist(), X[2:].tolist()), [torch.from_numpy(X[:2]), X[2:]]):
        assert held(holdings(parts)) == {0: X[:2].tolist(), 1: X[2:].tolist()}
    assert held(holdings(np.stack([X, X + 1]))) == {0: X.tolist(), 1: (X + 1).tolist()}
    frames = holdings([FRAME[["a", "b"]][:2], FRAME[["a", "b"]][2:]])
    assert list(frames.table.columns) == ["a", "b"]
    assert held(holdings([X, np.zeros((0, 2)), X])) == {0: X.tolist(), 1: [], 2: X.tolist()}


def test_a_table_alone_is_one_client() -> None:
    for table in (X, X.tolist(), FRAME[["a", "b"]]):
        found = holdings(table)
        assert found.together
        assert held(found) == {0: X.tolist()}


def test_numbers_too_large_are_cut_and_not_refused() -> None:
    found = as_floats(np.array([[1e16, -1e300, 2.0]]))
    assert found.tolist() == [[torch.tensor(LARGEST).item(), torch.tensor(-LARGEST).item(), 2.0]]
    assert bool(torch.isfinite(found.square().sum()))


BAD: list[tuple[Any, str]] = [
    (lambda: holdings(X, "who"), "groups='who' is no column of X"),
    (lambda: holdings(FRAME, "whom"), "groups='whom' is no column of X"),
    (lambda: holdings(X, [1, 2]), r"len\(groups\)=2 must be one a row of X \(5\)"),
    (lambda: holdings(X, X), r"groups of shape=\(5, 2\) must be one entry a row"),
    (lambda: holdings(X, [1, 2, None, 1, 1]), "groups without a client=1 must be none"),
    (lambda: holdings(FRAME.assign(who=[np.nan, *"abcd"]).groupby("who")), "rows without a group=1 must be none"),
    (lambda: holdings(FRAME[["a", "b"]], FRAME["who"].sort_index()), "groups.index='not X.index' must be; pass"),
    (lambda: holdings([X], [0] * 5), "groups='given' must be None beside a list of parts"),
    (lambda: holdings({"a": X}, [0] * 5), "must be None beside a dictionary"),
    (lambda: holdings(FRAME.groupby("who"), "who"), "must be None beside a groupby"),
    (lambda: holdings([]), "parts=0 must hold at least one client's points"),
    (lambda: holdings({}), "X=0 must hold at least one client's points"),
    (lambda: holdings([np.zeros((0, 3))]), "features of the parts"),
    (lambda: holdings([X, np.zeros((4, 3))]), r"features of the parts=\[2, 3\] must be the same"),
    (lambda: holdings([X, np.zeros(4)]), r"parts\[1\].shape=\(4,\) must be \(points, features\)"),
    (lambda: holdings({"b": np.array([["a", "b"]])}), r"X\['b'\].dtype=.* must be numbers"),
    (lambda: holdings([X, np.array([[1.0, np.nan]])]), r"parts\[1\]\[0\]=.* has NaN or infinity"),
    (lambda: holdings([FRAME[["a", "b"]], FRAME[["b", "a"]]]), r"columns of parts\[1\]=\['b', 'a'\] must be those of"),
    (lambda: Units.of("range", None, 3), "scale='range' must be one number a column, or"),
    (lambda: Units.of("box", None, 3), 'or "box" and a box'),
    (lambda: Units.of([1.0, 2.0], None, 3), r"scale of shape=\(2,\) must be \(3,\)"),
    (lambda: Units.of([1.0, 0.0, 2.0], None, 3), "must be positive and finite"),
    (lambda: Units.of(None, (0.0, [1.0, 2.0]), 3), r"box=.* must be \(low, high\)"),
    (lambda: Units.of(None, (0.0, [1.0, 0.0, 1.0]), 3), "must have low < high throughout"),
    (lambda: Units.of(None, 3.0, 3), r"box=3.0 must be \(low, high\)"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def test_units() -> None:
    units = Units.of("box", ([0.0, -1.0], [10.0, 1.0]), 2)
    assert units.scaled(np.array([[5.0, 1.0]])).tolist() == [[0.5, 0.5]]
    assert units.own(np.array([[0.5, 0.6]])).tolist() == [[5.0, 1.0]]  # 1.2 is cut to the box
    assert units.box is not None
    assert [side.tolist() for side in units.box] == [[0.0, -0.5], [1.0, 0.5]]
    plain = Units.of(None, None, 2)
    assert plain.box is None
    assert plain.own(np.array([[3.0, 4.0]])).tolist() == [[3.0, 4.0]]


def test_a_categorical_is_a_roster() -> None:
    """Whether a client's only record is there must not show in who takes part."""
    named = pd.Categorical(["b", "a", "b"], categories=["a", "b", "c"])
    frame = pd.DataFrame({"clinic": named, "size": [1.0, 2.0, 3.0]})
    for held in (
        holdings(np.arange(3.0)[:, None], named),
        holdings(frame, "clinic"),
        holdings(frame.groupby("clinic", observed=False)),
        holdings(frame.groupby("clinic", observed=True)),
    ):
        assert held.clients == ("a", "b", "c")
        assert held.owners.tolist() == [1, 0, 1]
    with pytest.raises(InvalidInput, match="groups without a client=1"):
        holdings(np.zeros((2, 1)), pd.Categorical(["a", None]))
