"""Named tensors: flat and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InvalidInput
from coterie.learn.params import Layout, flatten, map_leaves, pick, stack, subtract

SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=4)


@given(shapes=SHAPES, leading=st.integers(0, 2))
def test_flatten_and_back(shapes: list[list[int]], leading: int) -> None:
    front = [2, 3][:leading]
    tree = {str(index): torch.rand((*front, *shape)) for index, shape in enumerate(shapes)}
    layout = Layout.of(tree, leading)
    flat = flatten(tree, leading)
    assert flat.shape == (*front, layout.length)
    back = layout.unflatten(flat)
    assert back.keys() == tree.keys()
    assert all(torch.equal(back[name], tree[name]) for name in tree)
    assert all(torch.equal(flat[..., span], tree[name].reshape(*front, -1)) for name, span in layout.spans.items())


def test_a_vector_of_the_wrong_length() -> None:
    with pytest.raises(InvalidInput, match=r"flat.shape\[-1\]=5 must be the layout's 6"):
        Layout.of({"a": torch.zeros(2, 3)}).unflatten(torch.zeros(4, 5))


def test_arithmetic() -> None:
    one, two = {"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([10.0, 20.0])}
    assert subtract(two, one)["a"].tolist() == [9.0, 18.0]
    assert stack([one, two])["a"].tolist() == [[1.0, 2.0], [10.0, 20.0]]
    assert pick(stack([one, two]), 1)["a"].tolist() == [10.0, 20.0]
    assert map_leaves(torch.add, one, two)["a"].tolist() == [11.0, 22.0]
