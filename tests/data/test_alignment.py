"""Parties' tables in one order: by place, by index, by identifiers; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.data.alignment import aligned
from coterie.errors import InvalidInput

LEFT = pd.DataFrame({"id": ["a", "b", "c", "d"], "age": [1.0, 2.0, 3.0, 4.0]})
RIGHT = pd.DataFrame({"id": ["d", "x", "b", "a"], "pay": [40.0, 0.0, 20.0, 10.0], "tax": [4.0, 0.0, 2.0, 1.0]})


def test_by_identifiers_in_the_order_of_the_first() -> None:
    found = aligned({"bank": LEFT, "shop": RIGHT}, ids="id")
    assert found.ids is not None
    assert found.ids.tolist() == ["a", "b", "d"]
    assert found.table.to_numpy().tolist() == [[1, 10, 1], [2, 20, 2], [4, 40, 4]]
    assert found.parties == ("bank", "shop")
    assert found.left_out == (1, 1)
    table = torch.from_numpy(found.table.to_numpy())
    assert [own.tolist() for own in found.federation(table).columns] == [[0], [1, 2]]
    arrays = aligned([LEFT[["age"]].to_numpy(), RIGHT[["pay", "tax"]].to_numpy()], ids=[LEFT["id"], RIGHT["id"]])
    assert np.array_equal(arrays.table, found.table.to_numpy())


def test_by_place_and_by_owner() -> None:
    x = np.arange(12.0).reshape(4, 3)
    apart = aligned([x[:, :1], x[:, 1:]])
    together = aligned(x, columns=["us", "them", "us"])
    assert np.array_equal(apart.table, x)
    table = torch.from_numpy(x)
    assert [own.tolist() for own in apart.federation(table).columns] == [[0], [1, 2]]
    assert together.parties == ("us", "them")
    assert [own.tolist() for own in together.federation(table).columns] == [[0, 2], [1]]
    assert [own.tolist() for own in aligned(x).federation(table).columns] == [[0, 1, 2]]


def frame(index: list[int], name: str) -> pd.DataFrame:
    return pd.DataFrame({name: [1.0, 2.0]}, index=index)


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([LEFT[["age"]], RIGHT[["pay"]][:3]], {}, "records of party 1=3 must be 4, as party 0 has; name them by ids="),
    ([frame([1, 2], "a"), frame([2, 1], "b")], {}, "records are misaligned; name them by ids="),
    ([LEFT, LEFT], {"ids": "id"}, r"columns of two parties=\['age'\] must have different names"),
    ([LEFT, RIGHT.replace("x", "b")], {"ids": "id"}, r"ids of party 1 that come twice=\['b'\] must come once"),
    ([LEFT, RIGHT.replace("x", None)], {"ids": "id"}, "records of party 1 without an id=1 must be none"),
    ([LEFT, RIGHT.assign(id=list("wxyz"))], {"ids": "id"}, "ids that all parties have=0 must be at least one"),
    ([LEFT, RIGHT], {"ids": "key"}, "ids='key' is no column of party 0"),
    ([LEFT, RIGHT[["id"]]], {"ids": "id"}, "columns of party 1=0 must be at least one; leave that party out"),
    ([LEFT, RIGHT.replace(0.0, np.nan)], {"ids": "id"}, "record 1 of party 1 has NaN or infinity"),
    ([LEFT, RIGHT.assign(pay=list("abcd"))], {"ids": "id"}, r"columns of party 1 that hold no numbers=\['pay'\] must"),
    ([LEFT], {"columns": [0, 1]}, "columns='given' must be None beside one table a party"),
    (np.ones((2, 3)), {"columns": [0, 1]}, r"len\(columns\)=2 must be one a column of X \(3\)"),
    (np.ones((2, 3)), {"ids": "id"}, "ids='given' must be None beside one table"),
    ({}, {}, "parties=0 must be at least 1"),
    ([np.ones((2, 1)), np.ones((2, 1))], {"ids": [[1, 2]]}, r"len\(ids\)=1 must be one list of identifiers a party"),
    ([np.ones((2, 1))], {"ids": [[1]]}, r"ids of party 0=1 must be one a record \(2\)"),
]


@pytest.mark.parametrize(("given", "how", "message"), BAD, ids=[message[:40] for _, _, message in BAD])
def test_what_cannot_be_joined_says_why(given: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        aligned(given, **how)
