"""Configurations: what is wrong is named, with the nearest right name."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from coterie.audit.case import parse as parse_audit
from coterie.commands.training import example
from coterie.config.registry import TRAINERS, look_up, model_target
from coterie.config.schema import Choice, Config, build_model, parse, read
from coterie.defences.mingling.defence import Mingling
from coterie.defences.mingling.fuzzy_tags import Counting
from coterie.defences.secure_sums import PairwiseMasks, Smallest
from coterie.errors import DataMissing, InvalidInput
from coterie.learn.models.bundled import Cnn, Gru
from coterie.learn.models.dense import Dense
from coterie.learn.sgd import Local
from coterie.protocols.ifca import Ifca
from coterie.seal.ckks import Ckks


def test_an_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"key 'trainr' is unknown; did you mean 'trainer'\?"):
        parse({"trainr": {"kind": "ifca"}}, "x.toml")


def test_an_unknown_option_suggests_the_nearest() -> None:
    config = parse({"trainer": {"kind": "ifca", "cluster": 3}}, "x.toml")
    with pytest.raises(InvalidInput, match=r"trainer 'ifca' option 'cluster' is unknown; did you mean 'clusters'"):
        config.protocol(config.trainers[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"local": {"possion": True}}, r"'local\.possion' is unknown; did you mean 'poisson'"),
        ({"local": {"schedule": {"shap": "cosine"}}}, r"'schedule\.shap' is unknown; did you mean 'shape'"),
        ({"server_step": {"kind": "adam", "lrr": 0.1}}, r"'server_step\.lrr' is unknown; did you mean 'lr'"),
    ],
)
def test_an_unknown_name_in_a_table_within_a_table_is_no_silence(options: dict[str, object], said: str) -> None:
    config = parse({"trainer": {"kind": "fedavg", **options}}, "x.toml")
    with pytest.raises(InvalidInput, match=said):
        config.protocol(config.trainers[0])


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"seedz": 3}, r"'audit\.seedz' is unknown; did you mean 'seeds'"),
        ({"canaries": {"cuont": 3}}, r"'audit\.canaries\.cuont' is unknown; did you mean 'count'"),
    ],
)
def test_an_unknown_key_of_the_audit_suggests_the_nearest(table: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_audit({"audit": table}, "x.toml")


def test_mingling_can_be_said_in_full() -> None:
    said = {"rate": 0.25, "threshold": 1, "counting": "decoys", "group_tags": 3, "unit": 2.0}
    masked = {"smallest": 4, "spare": 1, "neighbours": 8, "width": 5, "signed": True, "least": 6}
    config = parse({"trainer": {"kind": "ifca", "clusters": 3, "shared": ["0."]}}, "x.toml")
    protocol = config.protocol(config.trainers[0])
    for more in (masked, {"cipher": "ckks", "exact": True, "members": 64}):
        found = config.built_defence(Choice.model_validate({"kind": "mingling", **said, **more}), protocol)
        assert isinstance(found, Mingling)
        assert not found.fits(protocol)
        assert (found.rate, found.counting, found.unit) == (0.25, Counting.DECOYS, 2.0)
        assert found.cluster_keys is not None
        if more is masked:
            assert found.cipher == PairwiseMasks(8, width=5, signed=True, least=6)
            assert found.smallest == Smallest(4, 1)
        else:
            assert found.cipher == Ckks(members=64)


def test_the_command_line_changes_settings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[trainer]\nkind = "ifca"\n[defence]\nkind = "mingling"\nthreshold = 3\n')
    said = ("defence.threshold=1", "defence.cipher=ckks", "defence.members=64", "trainer.clusters=3", 'name = "here"')
    config = read(path, said)
    assert config.name == "here"
    assert config.protocol(config.trainers[0]).choices == 3
    found = config.built_defence(config.defence, config.protocol(config.trainers[0]))
    assert isinstance(found, Mingling)
    assert (found.threshold, found.cipher) == (1, Ckks(members=64))
    for wrong in ("defence.threshold", "=1", "trainer.kind.x=1"):
        with pytest.raises(InvalidInput, match="set="):
            read(path, (wrong,))


def test_an_unknown_kind_suggests_the_nearest() -> None:
    config = parse({"trainer": {"kind": "ifka"}}, "x.toml")
    with pytest.raises(InvalidInput, match=r"trainer 'ifka' is unknown; did you mean 'ifca'"):
        config.protocol(config.trainers[0])


def test_a_value_of_the_wrong_type_is_named() -> None:
    config = parse({"trainer": {"kind": "ifca", "clusters": "many"}}, "x.toml")
    with pytest.raises(InvalidInput, match="clusters='many'"):
        config.protocol(config.trainers[0])


def test_a_value_out_of_range_is_named_by_the_object_itself() -> None:
    config = parse({"trainer": {"kind": "ifca", "local": {"lr": -1.0}}}, "x.toml")
    with pytest.raises(InvalidInput, match=r"lr=-1.0 must be positive"):
        config.protocol(config.trainers[0])


def test_nested_options_become_objects() -> None:
    config = parse({"trainer": {"kind": "ifca", "clusters": 3, "local": {"steps": 2, "lr": 0.1}}}, "x.toml")
    assert config.protocol(config.trainers[0]) == Ifca(clusters=3, local=Local(steps=2, lr=0.1))


def test_several_trainers() -> None:
    config = parse({"trainer": [{"kind": "ifca"}, {"kind": "fedavg"}]}, "x.toml")
    assert [choice.kind for choice in config.trainers] == ["ifca", "fedavg"]


def test_a_missing_file_and_broken_toml(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"nothing\.toml"):
        read(tmp_path / "nothing.toml")
    (tmp_path / "broken.toml").write_text("seed = ")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        read(tmp_path / "broken.toml")


def chosen(kind: str, **options: object) -> Choice:
    return Choice.model_validate({"kind": kind} | options)


def test_a_model_takes_what_follows_from_the_data() -> None:
    digits = Config(data=Choice(kind="digits")).examples()
    dense = build_model(Choice(kind="fcnn"), digits)
    assert dense == Dense((64, 200, 10))
    assert build_model(chosen("cnn", shape=(1, 28, 28)), digits) == Cnn(classes=10, shape=(1, 28, 28))
    assert build_model(chosen("gru", vocabulary=7), digits) == Gru(classes=10, vocabulary=7)


class OwnNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: object) -> object:
        return self.layers(x)


def test_a_users_own_module_by_its_address() -> None:
    digits = Config(data=Choice(kind="digits")).examples()
    model = build_model(chosen(f"{__name__}:OwnNet", width=5), digits)
    assert model.logits(model.init(0), digits.x[:3]).shape == (3, 10)


def test_an_address_that_does_not_import() -> None:
    digits = Config(data=Choice(kind="digits")).examples()
    with pytest.raises(InvalidInput, match=r"no_such_module:Net.*PYTHONPATH"):
        build_model(Choice(kind="no_such_module:Net"), digits)


def test_the_example_builds_every_trainer() -> None:
    config = example()
    kinds = {type(config.protocol(choice)).__name__ for choice in config.trainers}
    assert kinds == {"FedAvg", "FedProx", "FedEM", "Ifca", "Sattler", "CosineKMeans"}


@pytest.mark.parametrize(
    "kind", ["subprocess:getoutput", "os:system", "builtins:exec", "torch.nn:functional", ":", "a:"]
)
def test_a_file_makes_us_call_nothing_but_an_architecture(kind: str) -> None:
    with pytest.raises(InvalidInput, match=r"must be a class of torch\.nn\.Module|cannot be imported"):
        model_target(kind)
    with pytest.raises(InvalidInput, match="is unknown"):
        look_up(kind, TRAINERS, "trainer")
    with pytest.raises(InvalidInput, match=r"would import and run .*; if you trust it, pass --trust-code"):
        Config(model=Choice(kind=kind)).refuse_code("runs/a", "pass --trust-code")


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "..", ".hidden", "", "a\nb", "x" * 101])
def test_a_run_is_kept_where_runs_are(name: str) -> None:
    with pytest.raises(InvalidInput, match="name="):
        parse({"name": name}, "a.toml")


def test_a_claim_beside_early_stopping_says_what_that_tells() -> None:
    """The models that are released hang on the test rows: by when the last of them was made."""
    words: dict[str, object] = {
        "data": {"kind": "digits"},
        "partition": {"kind": "iid", "clients": 4},
        "model": {"kind": "fcnn"},
        "trainer": {"kind": "fedavg", "rounds": 4, "local": {"steps": 2, "batch_size": 10, "poisson": True}},
        "defence": {"kind": "dpsgd", "noise_multiplier": 2.0},
    }
    for stop in ({}, {"stop": {"measurements": 2}}):
        config = parse(words | stop, "example")
        promise = config.case(config.trainers[0]).promise
        assert promise is not None
        assert promise.guarantee.proven
        assert ("follows from how well models do on clients' test rows" in promise.claim) == bool(stop)
