"""What is audited: a federation as configured, the defences to compare it with, and the limits it must meet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from coterie import __version__
from coterie.audit.stamps import stamps
from coterie.config import registry
from coterie.config.built import Case
from coterie.config.schema import Choice, Config, Strict, beside, read_toml, validate
from coterie.data.federation import Examples, Federation, Shards
from coterie.data.partition.dealing import value_of
from coterie.errors import CoterieError, InvalidInput, require
from coterie.flow.protocol import AnyProtocol
from coterie.run.fingerprint import code
from coterie.run.fitting import require_fit

SAME = 0.5  # of their rows: clients that keep so many are the same clients
MOST_SEEDS = 1000
MOST_ROUNDS = 1_000_000
FORMAT = 3  # of what a job keeps: results in another are not taken


class Property(Strict):
    """What an adversary would like to know about a client's examples: one of their tags."""

    tag: str
    value: int | str = 1  # its number, or what that stands for: "Female"


class PropertySettings(Strict):
    """Of property inference: ``[audit.property_inference]``."""

    clients: int = Field(default=4, ge=3, le=10_000)  # the fewer, the more shows of each: the paper's tables start at 3
    every: int = Field(default=3, ge=2)  # rounds; neighbours oppose each other, so every other looks like a property
    warmup: int = Field(default=20, ge=0, le=MOST_ROUNDS)  # rounds that are not looked at
    scored: int = Field(default=24, ge=1, le=MOST_ROUNDS)  # rounds that are
    victims: int = Field(default=4, ge=1)  # one after the other, with data dealt anew: each is a unit of the score
    # Those that tamper, too, where they are asked for: each takes a training of its own, and one of its control.
    attacks: tuple[Literal["passive", "active", "scaled"], ...] = Field(default=("passive",), min_length=1)
    controls: tuple[Literal["placebo", "absent"], ...] = ("placebo",)  # beside each attack, and as long as it takes


class ClientsPropertySettings(Strict):
    """Of the property that clients hold: ``[audit.property_of_clients]``."""

    looks: int = Field(default=6, ge=1, le=1_000)  # rounds that are looked at, spread evenly
    imagined: int = Field(default=96, ge=8, le=10**6)  # clients that the adversary trains, for each published model


class AcquisitionSettings(Strict):
    """Of model acquisition: ``[audit.model_acquisition]``."""

    join: int = Field(default=20, ge=1, le=MOST_ROUNDS)  # the first newcomer's round; others follow, two rounds apart


class ProfilingSettings(Strict):
    """Of preference profiling: ``[audit.preference_profiling]``."""

    retrain: int = Field(default=3, ge=1, le=1_000)  # rounds, spread evenly up to the last, whose models are profiled
    per_class: int = Field(default=20, ge=1, le=100_000)  # examples of each class that the server holds


class MembershipSettings(Strict):
    """Of membership in a clustering: ``[audit.kmeans_membership]``."""

    trials: int = Field(default=500, ge=2, le=1_000_000)  # releases with the record, and as many without


class ModelMembershipSettings(Strict):
    """Of membership in models: ``[audit.model_membership]``."""

    rehearsals: int = Field(default=8, ge=4, le=10_000)  # federations that the adversary trains itself
    share: float = Field(default=0.8, gt=0, le=1)  # of the records, in each of them
    records: int = Field(default=4000, ge=10, le=10**7)  # members that are asked about, at most, and as many others


class CanarySettings(Strict):
    """Of canaries: ``[audit.canaries]``."""

    count: int = Field(default=400, ge=10, le=1_000_000)  # made-up records, about half of which are planted


class ReconstructionSettings(Strict):
    """Of reconstruction from k-means: ``[audit.kmeans_reconstruction]``."""

    victims: int = Field(default=5, ge=1, le=10_000)  # clients, of each of which one record is looked for


class InversionSettings(Strict):
    """Of gradient inversion: ``[audit.gradient_inversion]``."""

    pictures: int = Field(default=2, ge=1, le=64)  # that a client's update is of, at most
    victims: int = Field(default=4, ge=1, le=10_000)
    iterations: int = Field(default=300, ge=1, le=10_000_000)


class ClientReconstructionSettings(Strict):
    """Of reconstruction inside a cluster: ``[audit.client_reconstruction]``."""

    rounds: int = Field(default=30, ge=1, le=MOST_ROUNDS)  # at most
    tapped: float = Field(default=1.0, ge=0, le=1)  # share of the victim's uploads that is read
    steps: int = Field(default=10, ge=1, le=100_000)  # of the generator, a round


class AuditOptions(Strict):
    seeds: int = Field(default=3, ge=1, le=MOST_SEEDS)
    families: tuple[str, ...] = ()  # all that the data admit, if empty
    attacks: tuple[str, ...] = ()  # families of one's own: module:Family, or the path of a .py file
    property: Property | None = None
    compare: tuple[Choice, ...] = ()  # further defences; each family has its own few if empty
    property_inference: PropertySettings = PropertySettings()
    property_of_clients: ClientsPropertySettings = ClientsPropertySettings()
    model_acquisition: AcquisitionSettings = AcquisitionSettings()
    preference_profiling: ProfilingSettings = ProfilingSettings()
    kmeans_membership: MembershipSettings = MembershipSettings()
    kmeans_reconstruction: ReconstructionSettings = ReconstructionSettings()
    gradient_inversion: InversionSettings = InversionSettings()
    client_reconstruction: ClientReconstructionSettings = ClientReconstructionSettings()
    model_membership: ModelMembershipSettings = ModelMembershipSettings()
    canaries: CanarySettings = CanarySettings()


class RecordedOptions(Strict):
    """What the attacks on a recording must be told beside it."""

    folder: Path | None = None  # the command line names it
    truth: str | None = None  # a file in that folder; without one nothing is scored
    adversary: tuple[int, ...] = Field(default=(0,), min_length=1)  # the clients that a curious client is
    warmup: int = Field(default=0, ge=0)  # first rounds that property inference does not look at
    serves: dict[int, int] = Field(default_factory=dict)  # which preference each cluster serves; itself if left out


def _flat(limits: object) -> object:
    """``stress.max_property_auc = 0.7`` is a table in a table to TOML, and one limit to us."""
    if not isinstance(limits, dict):
        return limits
    flat: dict[str, object] = {}
    for name, value in limits.items():
        flat |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    for name, value in flat.items():
        require(not isinstance(value, bool), f"limit {name}", value, "must be a number")
    return flat


class Subject(Config):
    """A configuration with the audit's own tables. Of a recording, ``data`` are what the adversary holds."""

    audit: AuditOptions = AuditOptions()
    limits: Annotated[dict[str, float], BeforeValidator(_flat)] = Field(default_factory=dict)
    recorded: RecordedOptions | None = None

    @property
    def seeds(self) -> int:
        """How often everything is repeated; what was written down happened once."""
        return 1 if self.recorded else self.audit.seeds

    @property
    def launched(self) -> AnyProtocol:
        """What is audited: the first trainer."""
        return self.protocol(self.trainers[0])

    def case_of(self, defence: Choice, seed: int) -> Case:
        """What is launched, as objects, under this defence and with this seed."""
        return self.model_copy(update={"seed": seed, "defence": defence}).case(self.trainers[0])

    def why_not(self, choice: Choice, protocol: AnyProtocol) -> str:
        """Why this defence has no place on this protocol; empty if it has. Options that are wrong raise."""
        return self.built_defence(choice, protocol).fits(protocol)

    @property
    def repeated_units(self) -> frozenset[str]:
        """What is the same in every seed: clients, where most of their rows are; records, where all are.

        Of one seed, what would be the same in another: who is told that more seeds decide goes by that.
        """
        try:
            one, other = (self.federation(self.seed + number) for number in range(2))
        except CoterieError:
            if self.seeds > 1:
                raise
            return frozenset()  # nobody has asked for the other
        by_rows = isinstance(one, Federation) and isinstance(other, Federation)  # else by columns
        if not by_rows or one.clients != other.clients or not torch.equal(one.examples.x, other.examples.x):
            return frozenset()
        kept = [int(torch.isin(one.train[client], other.train[client]).sum()) for client in range(one.clients)]
        same = sum(kept) / max(len(one.train.rows), 1)
        return frozenset(["clients"] if same > SAME else []) | frozenset(["records"] if same == 1 else [])

    def attacked_by(self, attacks: Sequence[str]) -> Self:
        """The same with these families of one's own."""
        audit = self.audit.model_copy(update={"attacks": tuple(attacks)})
        return self.model_copy(update={"audit": audit})

    def refuse_code(self, where: str, remedy: str) -> None:
        super().refuse_code(where, remedy)
        if self.audit.attacks:
            raise InvalidInput(f"{where} would import and run {self.audit.attacks[0]!r}; if you trust it, {remedy}")

    def dealt(self, examples: Examples, rows: Tensor, seed: int) -> Federation:
        """These rows of the examples alone, spread as all of them are."""
        part = self.partitioned(examples.take(rows), seed)
        train, test = (Shards(rows[own.rows], own.offsets) for own in (part.train, part.test))
        return replace(part, examples=examples, train=train, test=test)

    def rehearse(self) -> Federation:
        """Build all that the user wrote before anything long begins: a mistake is said at once."""
        federation = self.federation()
        self._require_classes(federation.examples)
        holding = int((federation.sizes > 0).sum())
        require(holding >= 2, "clients with data", holding, "must be 2 at least: what one client trains, nobody shares")
        clusters = getattr(self.launched, "clusters", 0) if self.launched.trains else 0  # a clustering's are of points
        few = f"is more than the {holding} clients with data, each of which is in one; use fewer clusters in [trainer]"
        require(clusters <= holding, "clusters", clusters, few)
        if isinstance(federation, Federation):
            _require_distinct(federation)
        case = self.case(self.trainers[0], federation)
        clients = federation.clients
        for choice in self.audit.compare:
            self.built_defence(choice, case.protocol, clients)
        if self.audit.property is not None:
            self._rehearse_property(self.audit.property, federation.examples)
        if case.model is not None:
            present = len(federation.examples.y.unique())
            require(present >= 2, "classes that any row has", present, "must be 2 at least: there is nothing to learn")
            require_fit(case.model, federation.examples, self.model.kind, self.seed)
        return federation

    @property
    def asked(self) -> str:
        """What property inference looks for, in words; empty where nothing is said."""
        wanted = self.audit.property
        if wanted is None:
            return ""
        above = self.data.options.get("above")
        if isinstance(above, Mapping) and wanted.tag in above:
            return f"{wanted.tag} {'above' if wanted.value == 1 else 'not above'} {in_words(above[wanted.tag])}"
        return f"{wanted.tag} is {wanted.value}"

    def _require_classes(self, examples: Examples) -> None:
        require(
            examples.classified,
            "data",
            self.data.kind,
            "have labels or numbers to predict, and the audit's attacks go by classes; `coterie train` takes them",
        )

    def _rehearse_property(self, asked: Property, examples: Examples) -> None:
        try:
            number, names = value_of(examples, asked.tag, asked.value), examples.tag_names.get(asked.tag, ())
        except InvalidInput as error:
            raise InvalidInput(f"audit.property: {error}") from None
        if isinstance(asked.value, int) and str(asked.value) in names and names[number] != str(asked.value):
            raise InvalidInput(
                f"audit.property {asked.tag}={asked.value}: number {number} stands for {names[number]!r} there; "
                f'write value = "{asked.value}", or value = "{names[number]}"'
            )
        rows = int((examples.tags[asked.tag] == number).sum())
        require(
            rows < len(examples),
            f"audit.property: rows with {asked.tag}={asked.value}",
            rows,
            "are all there are; a property tells rows apart: name another tag or value",
        )

    @property
    def fingerprint(self) -> str:
        """Of all that a job's result depends on beside the job itself: results of other settings are not taken."""
        named = {"seed", "delta", "data", "public", "partition", "model", "trainer", "recorded", "device"}
        said = self.model_dump(mode="json", include=named | ({"stop", "evaluate_every"} if self.stop else set()))
        said |= {"property": self.audit.model_dump(mode="json")["property"], "version": __version__, "format": FORMAT}
        if self.recorded:
            said["defence"] = self.defence.model_dump(mode="json")
        folder = self.recorded.folder if self.recorded else None
        said["files"] = stamps([self.data, *([self.public] if self.public else [])], self.trainers, folder)
        if ":" in self.model.kind:
            said["model code"] = code(registry.model_target(self.model.kind).__module__)
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:12]


def parse(values: Mapping[str, object], where: str) -> Subject:
    return validate(Subject, values, where)


def read(path: Path) -> Subject:
    subject = parse(read_toml(path, "`coterie init` writes an example"), str(path))
    found = [str(own) if (own := path.parent / name).is_file() else name for name in subject.audit.attacks]
    return beside(subject.attacked_by(found), path)


def _require_distinct(federation: Federation) -> None:
    """Clients are units: what is there twice would be counted as two that agree."""
    alike, known = federation.examples.alike(), dict[tuple[int, ...], int]()
    for client in federation.sizes.nonzero().flatten().tolist():
        rows = tuple(alike[federation.train[client]].sort().values.tolist())
        other = known.setdefault(rows, client)
        if other != client and rows:
            raise InvalidInput(
                f"clients {other} and {client} hold the very same {len(rows)} rows, and an audit would count them "
                "twice; leave one of them out"
            )


NAMES = {
    "dpsgd": "DP-SGD",
    "l2": "L2",
    "noisy_sums": "noise on sums",
    "adaptive_ldp": "adaptive LDP",
    "plain_ldp": "plain LDP",
    "clipped_ldp": "clipped LDP",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedem": "FedEM",
    "ifca": "IFCA",
    "sattler": "Sattler's CFL",
    "cosine_kmeans": "cosine k-means",
    "kfed": "k-FED",
    "federated_lloyd": "federated Lloyd",
    "feddp_kmeans": "FedDP-KMeans",
    "vertical_kmeans": "vertical k-means",
    "weighted_grid": "weighted grid",
    "private_grid": "private grid",
    "secure_sums": "secure sums",
    "blinded_sums": "blinded sums",
    "randomised_response": "randomised response",
    "perturb_once": "data perturbed once",
    "ckks_sums": "CKKS sums",
    "proven_sums": "proven sums",
    "label_sets": "label sets",
    "by_tag": "by tag",
}


WORDS = {"server": "the server", "shared": "clients together", "client": "each client", "secure_sums": "secure sums"}


def label(choice: Choice) -> str:
    """A choice in a few words: its kind and options, for people."""
    name = NAMES.get(choice.kind, choice.kind)
    options = {key: value for key, value in choice.options.items() if key != "folder"}
    return f"{name} ({in_words(options)})" if options else name


def in_words(value: object) -> str:
    if isinstance(value, Mapping) and "kind" in value:
        return label(Choice.model_validate(value))
    if isinstance(value, Mapping):
        return ", ".join(_option(str(key).replace("_", " "), item) for key, item in value.items())
    if isinstance(value, list | tuple):
        parts = [in_words(item) for item in value]
        return (" + " if any(isinstance(item, Mapping) for item in value) else ", ").join(parts)
    if isinstance(value, int | float) and not isinstance(value, bool):
        short = f"{value:g}"
        return short if float(short) == value else str(value)  # rows are told apart by these words
    return WORDS.get(str(value), str(value))


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} ({in_words(value)})" if isinstance(value, Mapping | list | tuple) else f"{name} {in_words(value)}"
