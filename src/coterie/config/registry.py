"""The names that configurations and the command line use, and the objects behind them.

Everything is imported when it is first asked for, so that listing names costs nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.config.wording import complaint, refuse_flags
from coterie.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from coterie.config.builders import Releasing
    from coterie.config.schema import Choice
    from coterie.flow.guard import Defence

Words = dict[str, Any]
"""A table of a file as TOML has it: what its values are, whoever builds something of them checks."""

Target = Callable[..., Any]
"""A class or function behind a name."""

Given = Mapping[str, Callable[[], object]] | None

TRAINERS = {
    "fedavg": "coterie.protocols.fedavg:FedAvg",
    "fedprox": "coterie.protocols.fedprox:FedProx",
    "fedem": "coterie.protocols.fedem:FedEM",
    "ifca": "coterie.protocols.ifca:Ifca",
    "local_only": "coterie.protocols.local_only:LocalOnly",
    "sattler": "coterie.protocols.sattler:Sattler",
    "cosine_kmeans": "coterie.protocols.cosine_kmeans:CosineKMeans",
    "kfed": "coterie.protocols.clusterings.kfed:KFed",
    "federated_lloyd": "coterie.config.builders:federated_lloyd",
    "feddp_kmeans": "coterie.config.builders:feddp_kmeans",
    "vertical_kmeans": "coterie.protocols.clusterings.vertical_kmeans:VerticalKMeans",
    "weighted_grid": "coterie.protocols.clusterings.weighted_grid:WeightedGrid",
}

MODELS = {
    "fcnn": "coterie.learn.models.bundled:fcnn",
    "cnn": "coterie.learn.models.bundled:Cnn",
    "wide_cnn": "coterie.learn.models.bundled:WideCnn",
    "face_cnn": "coterie.learn.models.bundled:FaceCnn",
    "strided_cnn": "coterie.learn.models.bundled:StridedCnn",
    "resnet18": "coterie.learn.models.bundled:ResNet18",
    "gru": "coterie.learn.models.bundled:Gru",
    "dense": "coterie.learn.models.dense:Dense",
    "texas_mlp": "coterie.learn.models.bundled:texas_mlp",
    "purchase_mlp": "coterie.learn.models.bundled:purchase_mlp",
}

PARTITIONS = {
    "label_sets": "coterie.data.partition:LabelSets",
    "dirichlet": "coterie.data.partition:Dirichlet",
    "label_permutations": "coterie.data.partition:LabelPermutations",
    "iid": "coterie.data.partition:Iid",
    "by_tag": "coterie.data.partition:ByTag",
    "rotation": "coterie.data.partition:Rotation",
    "property": "coterie.data.partition:PropertySplit",
    "vertical": "coterie.data.partition:Vertical",
}

DEFENCES = {
    "none": "coterie.flow.guard:Defence",
    "dropout": "coterie.defences.regularise:Dropout",
    "l2": "coterie.defences.regularise:L2",
    "dpsgd": "coterie.defences.dpsgd:DpSgd",
    "adaptive_ldp": "coterie.defences.adaptive_ldp:AdaptiveLdp",
    "plain_ldp": "coterie.defences.adaptive_ldp:PlainLdp",
    "clipped_ldp": "coterie.defences.clipped_ldp:ClippedLdp",
    "mingling": "coterie.config.builders:mingling",
    "secure_sums": "coterie.config.builders:secure_sums",
    "noisy_sums": "coterie.config.builders:noisy_sums",
    "randomised_response": "coterie.config.builders:randomised_response",
    "perturb_once": "coterie.config.builders:perturb_once",
    "blinded_sums": "coterie.config.builders:blinded_sums",
    "ckks_sums": "coterie.config.builders:ckks_sums",
    "proven_sums": "coterie.config.builders:proven_sums",
    "private_grid": "coterie.config.builders:private_grid",
    "robust": "coterie.config.builders:robust",
}


def look_up(name: str, names: Mapping[str, str], what: str) -> Target:
    """The class or function behind a name that we gave."""
    if name not in names:
        raise InvalidInput(f"{what} {name!r} {nearest(name, names)}")
    module, _, attribute = names[name].partition(":")
    return getattr(import_module(module), attribute)  # type: ignore[no-any-return]


def model_target(kind: str) -> Target:
    """A bundled model, or with ``module:Class`` a user's own: a file makes us call nothing but an architecture."""
    from torch import nn

    if ":" not in kind:
        return look_up(kind, MODELS, "model")
    module, _, name = kind.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"model {kind!r} cannot be imported ({error}); is it here or on PYTHONPATH, and spelt right?"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise InvalidInput(f"model {kind!r} is {type(found).__name__} and must be a class of torch.nn.Module")
    return found


def build(target: Target, options: Mapping[str, object], what: str, given: Given = None) -> Any:
    """Call the target with options from a file: names are checked against its own, values against its types.

    ``given`` are objects that no file can name, for whoever has a parameter of that name. They are made when somebody
    asks for them.
    """
    from pydantic import ValidationError

    parameters = inspect.signature(target).parameters
    handed = {name: make() for name, make in (given or {}).items() if name in parameters}
    known = {name for name in parameters if name not in ("self", "args", "kwargs", *handed)}
    for name in options:
        if name not in known:
            raise InvalidInput(f"{what} option {name!r} {nearest(name, known)}")
    if inspect.isclass(target) and not dataclasses.is_dataclass(target):
        return target(**options)  # a user's own class checks its arguments itself
    refuse_flags(target, options, f"{what} option")
    try:
        return _checked(target)(**options, **handed)
    except ValidationError as error:
        raise InvalidInput(complaint(error, f"{what} option")) from error


@cache
def _checked(target: Target) -> Callable[..., Any]:
    """The target, which then raises a ValidationError at values of other types; a schema takes milliseconds to make."""
    from pydantic import ConfigDict, TypeAdapter, validate_call

    if inspect.isclass(target):
        validate = TypeAdapter(target).validate_python
        return lambda **options: validate(options)
    return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(target)


def _members(members: list[Words]) -> list[Words]:
    for member in members:
        if "kind" not in member:
            raise InvalidInput(f"member {member!r} of defence 'stack' must have a kind, as [defence] has")
    return members


def build_defence(choice: Choice, of: Releasing | None = None) -> Defence:
    """``of``: what is run under it, which a defence that is planned for certain sums must know.

    A "stack" has ``members``, each of which is a table like ``[defence]`` itself.
    """
    if choice.kind == "stack":
        from coterie.flow.stack import Stack

        members = build(_members, choice.options, "defence 'stack'")
        return Stack(*(build_defence(type(choice).model_validate(member), of) for member in members))
    target = look_up(choice.kind, DEFENCES, "defence")
    return build(target, choice.options, f"defence {choice.kind!r}", {"of": lambda: of})  # type: ignore[no-any-return]
