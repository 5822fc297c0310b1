"""MingledPie (Zhang et al., NDSS 2025) as a defence: ``Ifca()`` with ``Mingling()`` is the system.

A client joins its true cluster and decoys (``fuzzy_tags``), seals its model with the identity vector of its true
cluster, and the server adds up what it cannot read. Clients open the sums and rebuild the cluster models
(``rebuilding``). Two choices are ours: ``exact=True`` sends zeros to the decoys, so that the sums need no rebuilding;
``cipher=PairwiseMasks()`` does without a shared key, so that no single client can open the others for the server.

Where we differ: one identity set for each true cluster, for a client's whole life (the paper's fresh sets fall to
intersection); the clients' weights travel inside the seal; the votes on IFCA's start are summed under pairwise masks,
since each of them says which models fit a client's data.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from coterie.defences.mingling.fuzzy_tags import (
    ClusterKeys,
    Counting,
    GroupSets,
    IdentitySets,
    SampledSets,
    TagRule,
)
from coterie.defences.mingling.opened import OpenedSum
from coterie.defences.mingling.rebuilding import Counted, Rebuilding
from coterie.defences.secure_sums import (
    ClientsDropped,
    PairwiseMasks,
    advertise,
    follow_up,
    listed,
    secure_sums,
)
from coterie.errors import InvalidInput, require
from coterie.flow.ask import Ask, State, Sums
from coterie.flow.cohort import Cohort
from coterie.flow.guard import ClientGuard, Collecting, Defence, ServerGuard
from coterie.flow.protocol import AnyProtocol
from coterie.flow.turn import Turn
from coterie.learn.params import Layout, flatten
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.seal.cipher import Cipher, Key, add_intact
from coterie.seal.ckks import Ckks, CkksKey
from coterie.seal.mock import MockCipher, MockKey
from coterie.wire.messages import TRAIN, Contributions, Down, Published
from coterie.wire.sealed import SEALED, SHARED_KEY, SealedBatch

KEY_FILE = "clients.key"
MOCK_KEY = MockKey(
    b"a mock's secret."
)  # always the same one: a mock protects nothing, and a killed run goes on with it


@dataclass(frozen=True)
class Decoys:
    """How identity sets are drawn, whatever the number of clusters."""

    rate: float
    threshold: int
    counting: Counting
    keys: ClusterKeys | None

    def sets(self, clusters: int) -> IdentitySets:
        rule = TagRule(clusters, self.rate, self.threshold, self.counting)
        return SampledSets(rule) if self.keys is None else GroupSets(rule, self.keys)


@dataclass(frozen=True)
class MinglingClient(ClientGuard):
    """The clients' half. It alone holds the key."""

    decoys: Decoys
    cipher: Cipher | PairwiseMasks
    key: Key = field(repr=False)
    exact: bool
    rebuilding: Rebuilding
    unit: float = 1.0

    def receive(self, published: Published, turn: Turn) -> Published:
        """Algorithm 2."""
        if not published.sealed:
            return published
        origin = published.origin
        if origin is None:
            raise InvalidInput("published sums=sealed came without the models before them; ask the server again")
        layout = Layout.of(origin.values, leading=1)
        opened = published.sealed[SEALED].open(self.key)  # (clusters, length + clusters)
        require(
            opened.shape == (origin.slots, layout.length + origin.slots),
            "opened sums of shape",
            tuple(opened.shape),
            f"must be those of {origin.slots} models of {layout.length} parameters; ask the server again",
        )
        sums, counts = opened.split([layout.length, origin.slots], dim=1)
        models = self.rebuilding.rebuild(sums, counts, self._previous(published, turn))
        found = {name: leaf.to(origin.values[name].dtype) for name, leaf in layout.unflatten(models).items()}
        return Published(found)

    def _previous(self, published: Published, turn: Turn) -> Callable[[], Tensor]:
        """The models before. The chain ends in the first ones, to which a cluster empty for two rounds goes back."""
        assert published.previous is not None
        before = published.previous
        return lambda: flatten(self.receive(before, turn).values).double()

    @property
    def masks(self) -> PairwiseMasks:
        """The votes on a start are summed under masks, whatever the models are sealed with."""
        return self.cipher if isinstance(self.cipher, PairwiseMasks) else PairwiseMasks()

    def contribute(self, sent: Contributions, cohort: Cohort) -> Contributions:
        turn = cohort.turn
        if turn.kind != TRAIN:
            return advertise(sent, flatten(sent.values, leading=2), sent.membership, sent.values, cohort)
        one_hot = _one_hot(sent.membership)  # (clients, clusters)
        sets = self.decoys.sets(one_hot.shape[1])
        mingled = sets.membership(sent.ids, one_hot.int().argmax(1), turn.roots.secrets.child("mingling").rng())
        models = flatten(sent.values, leading=2)[:, 0]  # (clients, length)
        vectors = torch.cat([models, one_hot.to(models.dtype)], 1).double()
        vectors.mul_((sent.weights.double() / self.unit).unsqueeze(1))
        self._require_room(vectors, sent.weights)
        if isinstance(self.cipher, PairwiseMasks):
            cells = vectors.unsqueeze(1) * one_hot.unsqueeze(2) if self.exact else vectors.unsqueeze(1)
            return advertise(sent, cells, mingled, {"mingled": vectors.unsqueeze(1)}, cohort)
        ids = sent.ids.tolist()
        if self.exact:
            return _message(sent, mingled, self.cipher.seal_for_one(vectors, one_hot, self.key, ids, mingled))
        return _message(sent, mingled, self.cipher.seal(vectors, self.key, ids))

    def _require_room(self, vectors: Tensor, weights: Tensor) -> None:
        """The cipher would refuse as well, but it does not know about weights."""
        if isinstance(self.cipher, Ckks | MockCipher):
            largest = float(max(vectors.max(), -vectors.min()))
            require(
                largest <= self.cipher.largest or float(weights.max()) <= self.unit,
                "largest weighted value",
                largest,
                f"must be at most {self.cipher.largest:.6g} to be sealed; give weights in a larger unit, "
                f"Mingling(unit={float(weights.max()):g}), or weigh clients alike, Ifca(weighting='equal')",
            )

    def follow_up(self, asked: Down, cohort: Cohort) -> Contributions:
        return follow_up(asked, cohort, self.masks)


def _one_hot(membership: Tensor) -> Tensor:
    chosen = membership == 1
    require(
        bool(((chosen | (membership == 0)).all(1) & (chosen.sum(1) == 1)).all()),
        "membership",
        membership[0].tolist(),
        "must name one cluster a client, which mingling then hides; use it with Ifca",
    )
    return chosen


def _message(sent: Contributions, membership: Tensor, batch: SealedBatch) -> Contributions:
    return Contributions(sent.ids, {}, torch.ones(len(sent)), membership.float(), {SEALED: batch})


@dataclass(frozen=True)
class MinglingServer(ServerGuard):
    """The server's half: it adds, and opens nothing but sums under pairwise masks."""

    context: object  # by which it knows what was sealed with the federation's key
    masks: PairwiseMasks | None  # by which models are summed, if not by that key

    def collect(self, ask: Ask[State], turn: Turn) -> Collecting[State]:
        """Votes are summed under masks in any case; models under the clients' key, or under masks too."""
        if ask.kind == TRAIN and self.masks is None:
            return self.aggregate((yield ask), turn)
        opened = yield from secure_sums(ask, turn, self.masks or PairwiseMasks())
        if opened is None:
            return Sums.nothing()
        counts = opened.counts.double()
        if ask.kind == TRAIN:  # clients rebuild, as they do with what they opened themselves
            return Sums({}, counts, opened.counts, {SEALED: OpenedSum(opened.values)})
        return Sums(opened.leaves, counts, opened.counts)

    def aggregate(self, replies: Iterable[Contributions], turn: Turn) -> Sums:
        """Eq. 5 and 6. What cannot be used is left out with a notice, and costs nobody else's answer."""
        totals: list[Sums] = []  # of one kind and length each; an odd one out must not spoil the others
        dropped: dict[int, str] = {}
        members: list[list[int]] = []
        for part in replies:
            usable, why = self._usable(part)
            dropped |= why
            if len(usable) == 0:
                continue
            sums, why = _add(usable)
            dropped |= why
            if sums is not None:
                _merge(totals, members, sums, [client for client in usable.ids.tolist() if client not in why])
        if not totals:
            warnings.warn(f"round {turn.round}: no usable answer: {listed(dropped)}", ClientsDropped, stacklevel=2)
            return Sums.nothing()
        best = max(range(len(totals)), key=lambda index: len(members[index]))
        for index, clients in enumerate(members):
            if index != best:
                dropped |= dict.fromkeys(clients, "its ciphertext differs from most in length, clusters or round")
        if dropped:
            warnings.warn(f"round {turn.round}, {turn.kind}: dropped {listed(dropped)}", ClientsDropped, stacklevel=2)
        return totals[best]

    def _usable(self, part: Contributions) -> tuple[Contributions, dict[int, str]]:
        """The clients with a sealed answer for at least one cluster, and why the others have none."""
        batch = part.sealed.get(SEALED)
        why: dict[int, str] = {}
        for client, row in zip(part.ids.tolist(), part.membership, strict=True):
            if batch is None or part.values:
                why[client] = "its answer is not sealed"
            elif hasattr(batch, "context") and batch.context != self.context:
                why[client] = "its ciphertext was made with another key"
            elif not bool(((row == 0) | (row == 1)).all()):
                why[client] = f"its identity set {row.tolist()} is not of zeros and ones"
            elif not bool(row.any()):
                why[client] = "its identity set has no member"
        kept = [position for position, client in enumerate(part.ids.tolist()) if client not in why]
        return part.pick(torch.tensor(kept, dtype=torch.int64)), why


def _add(part: Contributions) -> tuple[Sums | None, dict[int, str]]:
    """The sums over this part's intact clients, if there are any, and why others were left out."""
    try:
        total, why = add_intact(part.sealed[SEALED], part.membership)
    except InvalidInput as problem:
        return None, dict.fromkeys(part.ids.tolist(), str(problem))
    intact = [position for position, client in enumerate(part.ids.tolist()) if client not in why]
    counts = part.membership[intact].sum(0, dtype=torch.float64)
    return Sums({}, counts, counts.long(), {SEALED: total}), why


def _merge(totals: list[Sums], members: list[list[int]], sums: Sums, clients: list[int]) -> None:
    for index, total in enumerate(totals):
        if total.counts.shape != sums.counts.shape:
            continue
        try:
            totals[index] = total + sums
        except InvalidInput:  # of another length or round
            continue
        members[index] += clients
        return
    totals.append(sums)
    members.append(clients)


@dataclass(frozen=True)
class Mingling(Defence):
    """Hides which cluster a client is in, and its model, from a curious server.

    ``rate`` and ``threshold`` are the paper's p and T; ``counting`` says what T counts. ``exact`` sends one ciphertext
    for each identity in place of one in all, and makes the sums exact. ``cipher`` is ``Ckks`` (clients share ``key``),
    ``MockCipher`` (the same values without the work, for long simulations) or ``PairwiseMasks`` (no shared key; the
    server opens the sums, and ``exact`` costs nothing more). With ``cluster_keys``, published by the server, sets come
    from the group itself; without them, from coins of the same distribution, at any rate.

    A cluster that nobody chose keeps its model for a round, and then starts over from its first one: the server cannot
    tell that it is empty, and so cannot know how long to send its old sums along.
    """

    rate: float = 0.5
    threshold: int = 2
    counting: Counting = Counting.IDENTITIES
    exact: bool = False
    cipher: Cipher | PairwiseMasks = field(default_factory=Ckks)
    cluster_keys: ClusterKeys | None = field(default=None, repr=False)
    rebuilding: Rebuilding = field(default_factory=Counted)
    unit: float = 1.0  # in which weights are sealed; the most examples a client has, where there are many
    key: Key = field(default=None, repr=False)  # None: a fresh one
    fresh_key: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            0 < self.rate < 1, "rate", self.rate, "must lie strictly between 0 and 1; to mingle nothing, leave it out"
        )
        require(self.threshold >= 1, "threshold", self.threshold, "must be at least 1")
        require(self.unit > 0, "unit", self.unit, "must be positive")
        require(
            self.exact or not isinstance(self.cipher, PairwiseMasks),
            "exact",
            self.exact,
            "must be True with PairwiseMasks, where it costs nothing: the server opens the sums, and where a client's "
            "model is in several of them it can solve for single clients",
        )
        if self.key is None and isinstance(self.cipher, Cipher):
            fresh = MOCK_KEY if isinstance(self.cipher, MockCipher) else self.cipher.keygen()
            object.__setattr__(self, "key", fresh)
            object.__setattr__(self, "fresh_key", True)

    @property
    def client(self) -> MinglingClient:
        decoys = Decoys(self.rate, self.threshold, self.counting, self.cluster_keys)
        return MinglingClient(decoys, self.cipher, self.key, self.exact, self.rebuilding, self.unit)

    @property
    def server(self) -> MinglingServer:
        masks = self.cipher if isinstance(self.cipher, PairwiseMasks) else None
        return MinglingServer(None if self.key is None else self.key.context, masks)

    @property
    def seals(self) -> bool:
        return True

    def fits(self, protocol: AnyProtocol) -> str:
        if protocol.looks:
            return f"the server needs {protocol.looks}, and cannot read what is sealed"
        if protocol.choices < 2:
            return "clients must choose one of at least two clusters, or there is nothing to mingle; use it with Ifca"
        return ""

    def kept_in(self, folder: Path) -> Mingling:
        """With the key of the folder, where the caller gave none: what it sealed opens after a restart."""
        if not (self.fresh_key and isinstance(self.cipher, Ckks)):
            return self
        return replace(self, key=shared_key(self.cipher, folder / KEY_FILE))

    @property
    def keys(self) -> Mapping[str, object]:
        """What a client could hand to the server, for threat models with collusion: ``tape.view(threat, keys)``."""
        return {} if self.key is None else {SHARED_KEY: self.key}

    def guarantee(self, run: RunFacts) -> Guarantee:
        masks = isinstance(self.cipher, PairwiseMasks)
        why = (
            "identities are hidden among decoys and models by encryption, not by noise, so there is no epsilon; the "
            + ("server learns the sum of each cluster" if masks else "server learns nothing but the identity sets")
        )
        return Guarantee.none(why, Level.CLIENT, Trust.SECURE_SUMS if masks else Trust.NO_COLLUSION)


def shared_key(settings: Ckks, path: Path) -> CkksKey:
    """The key in this file, which only its owner may read; made if there is none, so that a killed run can go on."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(settings.keygen().to_bytes())
    return CkksKey.from_bytes(settings, path.read_bytes())
