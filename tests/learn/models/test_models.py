"""The papers' architectures and a user's own: shapes, gradients, errors, and where randomness comes from."""

from __future__ import annotations

import pytest
import torch
from tests.ring import batch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from coterie.errors import InvalidInput
from coterie.learn.models.bundled import Cnn, FaceCnn, Gru, ResNet18, WideCnn, fcnn, purchase_mlp, texas_mlp
from coterie.learn.models.model import Model, OwnModule, as_model, built
from coterie.learn.params import pick, stack

SMALL: list[tuple[Model, tuple[int, ...], int]] = [
    (fcnn(), (1, 28, 28), 784 * 200 + 200 + 200 * 10 + 10),
    (texas_mlp(), (6169,), 6169 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 100 + 100),
    (purchase_mlp(), (600,), 600 * 512 + 512 + 512 * 256 + 256 + 256 * 100 + 100),
    (Cnn(), (1, 28, 28), 156 + 2416 + 256 * 120 + 120 + 120 * 84 + 84 + 850),
    (WideCnn(10, (3, 32, 32)), (3, 32, 32), 4864 + 102464 + 4096 * 384 + 384 + 384 * 192 + 192 + 1930),
    (FaceCnn(classes=2), (3, 48, 48), 896 + 18496 + 73856 + 128 * 36 * 256 + 256 + 514),
    (
        ResNet18(),
        (3, 32, 32),
        11_173_962 - 2 * (128 + 256 + 512),
    ),  # the usual one less the shortcuts' norms
    (Gru(), (7,), 5000 * 100 + 3 * 128 * (100 + 128 + 2) + 5 * 129),
]


def inputs(shape: tuple[int, ...], model: Model, count: int) -> Tensor:
    draws = torch.Generator().manual_seed(0)
    if isinstance(model, Gru):
        return torch.randint(1, model.vocabulary, (count, *shape), generator=draws)
    return torch.randn(count, *shape, generator=draws)


@pytest.mark.parametrize(("model", "shape", "length"), SMALL, ids=lambda value: type(value).__name__)
def test_shapes_and_sizes(model: Model, shape: tuple[int, ...], length: int) -> None:
    params = model.init(1)
    assert sum(leaf.numel() for leaf in params.values()) == length
    logits = model.logits(params, inputs(shape, model, 2))
    assert logits.shape[0] == 2
    assert not logits.requires_grad
    assert all(not leaf.requires_grad for leaf in params.values())
    assert all(torch.equal(leaf, other) for leaf, other in zip(params.values(), model.init(1).values(), strict=True))
    assert any(
        not torch.equal(leaf, other) for leaf, other in zip(params.values(), model.init(2).values(), strict=True)
    )


@pytest.mark.parametrize("height", [16, 17, 28, 29, 30, 31, 32, 45, 62])
@pytest.mark.parametrize("model", [Cnn, FaceCnn])
def test_pictures_of_any_size(model: type[Cnn] | type[FaceCnn], height: int) -> None:
    shape = (2, height, height + 3)
    made = model(classes=3, shape=shape)
    assert made.logits(made.init(0), torch.zeros(2, *shape)).shape == (2, 3)


def test_initialisation_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for model in (fcnn(), Cnn(dropout=0.5)):
        params = stack([model.init(3)])
        x, y = torch.zeros(1, 2, 1, 28, 28), torch.zeros(1, 2, dtype=torch.int64)
        model.gradients(params, batch(x, y, seeds=(1,)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model", [Cnn(shape=(1, 16, 16)), Gru(vocabulary=20, embedding=4, hidden=5)])
def test_gradients_are_autograd_s(model: Cnn | Gru) -> None:
    """Two clients with models and weights of their own, one of them with padding."""
    x = torch.stack([inputs((6,) if isinstance(model, Gru) else (1, 16, 16), model, 3)] * 2)
    y = torch.tensor([[0, 1, 2], [2, 0, 1]])
    weights = torch.tensor([[0.5, 0.2, 0.1], [0.3, 0.0, 0.7]])
    params = stack(model.init(seed) for seed in range(2))
    found = model.gradients(params, batch(x, y, weights))
    module = built(model)
    for client in range(2):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in pick(params, client).items()}
        logits = torch.func.functional_call(module, leaves, (x[client],))
        loss = (cross_entropy(logits, y[client], reduction="none") * weights[client]).sum()
        for (name, _), grad in zip(leaves.items(), torch.autograd.grad(loss, list(leaves.values())), strict=True):
            torch.testing.assert_close(found[name][client], grad, rtol=1e-4, atol=1e-6)


def test_padding_at_the_end_of_a_text_changes_nothing() -> None:
    model = Gru(vocabulary=30, embedding=6, hidden=5, classes=3)
    params = model.init(0)
    text = torch.tensor([[4, 9, 2]])
    padded = torch.tensor([[4, 9, 2, 0, 0, 0]])
    torch.testing.assert_close(model.logits(params, text), model.logits(params, padded))
    both = torch.tensor([[4, 9, 2, 0, 0, 0], [5, 6, 7, 8, 9, 10]])
    torch.testing.assert_close(model.logits(params, both)[:1], model.logits(params, text))
    assert torch.isfinite(model.logits(params, torch.zeros(1, 4, dtype=torch.int64))).all()  # an empty text


class TestDropout:
    @pytest.mark.parametrize("model", [Cnn(shape=(1, 16, 16)), FaceCnn(shape=(1, 16, 16)), fcnn(inputs=256)])
    def test_follows_the_seeds_alone(self, model: Model) -> None:
        dropping = model.with_dropout(0.5)
        assert dropping.random
        assert not model.random
        x, y = torch.ones(2, 3, 1, 16, 16), torch.zeros(2, 3, dtype=torch.int64)
        params = stack([dropping.init(0)] * 2)
        first = dropping.gradients(params, batch(x, y, seeds=(1, 2)))
        again = dropping.gradients(params, batch(x, y, seeds=(1, 2)))
        swapped = dropping.gradients(params, batch(x, y, seeds=(2, 1)))
        name = list(first)[-2]
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], swapped[name])
        torch.testing.assert_close(first[name], swapped[name].flip(0))

    def test_hidden_in_the_forward_pass_of_a_user_s_module(self) -> None:
        """Nothing in the module's parts says that it draws, so every own module gets seeds."""

        class Sly(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.layer(dropout(x, 0.5, self.training))
                return out

        model = as_model(Sly)
        assert model.random
        x, y = torch.ones(1, 8, 4), torch.zeros(1, 8, dtype=torch.int64)
        params = stack([model.init(0)])
        one, two = (model.gradients(params, batch(x, y, seeds=(5,))) for _ in range(2))
        assert torch.equal(one["layer.weight"], two["layer.weight"])

    def test_a_rate_for_a_module_without_dropout_layers(self) -> None:
        with pytest.raises(InvalidInput, match=r"dropout=0.5 needs a model with nn.Dropout layers"):
            as_model(lambda: nn.Linear(2, 2)).with_dropout(0.5).init(0)


class TestOwn:
    def test_a_module_a_function_or_a_model(self) -> None:
        module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.2), nn.Linear(3, 2))
        for thing in (module, lambda: module, OwnModule(lambda: module)):
            model = as_model(thing)
            assert model.logits(model.init(0), torch.zeros(5, 4)).shape == (5, 2)
        copied = as_model(module)
        assert not torch.equal(copied.init(0)["1.weight"], copied.init(1)["1.weight"])
        assert as_model(fcnn()) == fcnn()

    def test_an_unused_parameter_has_gradient_zero(self) -> None:
        class Spare(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.spare = nn.Linear(4, 2), nn.Linear(4, 2)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.used(x)
                return out

        model = as_model(Spare)
        params = stack([model.init(0)])
        y = torch.zeros(1, 3, dtype=torch.int64)
        grads = model.gradients(params, batch(torch.ones(1, 3, 4), y, seeds=(0,)))
        assert float(grads["spare.weight"].abs().sum()) == 0
        assert float(grads["used.weight"].abs().sum()) > 0

    @pytest.mark.parametrize(
        "layer", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True)]
    )
    def test_running_statistics_are_refused(self, layer: nn.Module) -> None:
        module = nn.Sequential(nn.Linear(3, 3), layer)
        message = f"model layer '1' is {type(layer).__name__}, whose running statistics.* Use nn.GroupNorm instead"
        with pytest.raises(InvalidInput, match=message):
            as_model(module)
        with pytest.raises(InvalidInput, match=message):
            as_model(lambda: module).init(0)

    def test_other_modules_that_cannot_be_trained(self) -> None:
        frozen = nn.Linear(2, 2)
        frozen.weight.requires_grad_(False)
        with pytest.raises(InvalidInput, match="parameter='weight' is frozen, and all are trained here"):
            as_model(frozen)
        with pytest.raises(InvalidInput, match="model='ReLU' has no parameters to train"):
            as_model(nn.ReLU())
        with pytest.raises(InvalidInput, match=r"model=3 must be a Model, an nn.Module or a function"):
            as_model(3)  # type: ignore[arg-type]

    def test_a_lazy_layer(self, recwarn: pytest.WarningsRecorder) -> None:
        with pytest.raises(InvalidInput, match="parameter='weight' has no shape yet; give the lazy layer"):
            as_model(nn.LazyLinear(2))
