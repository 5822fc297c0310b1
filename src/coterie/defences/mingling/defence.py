"""MingledPie (Zhang et al., NDSS 2025) as a defence: ``Ifca()`` with ``Mingling()`` is the system.

A client joins its true cluster and decoys (``fuzzy_tags``), seals its model with the identity vector of its true
cluster, and the server adds up what it cannot read. Clients open the sums and rebuild the cluster models.

The paper's own way is ``Mingling(exact=False, cipher=Ckks())``: all clients share a key that opens every answer, and
models are rebuilt from mixtures (``rebuilding``). The default is ours: ``exact`` sends zeros to the decoys, so that
the sums need no rebuilding, and pairwise masks hide answers in place of that key, so that no client can open another
for the server. What clients do share, a group key, opens sums alone, and sums of too few true members are never made.
And everybody joins every cluster: smaller sets say how large clusters are, and thereby more of each client than a
blind guess where they are not alike. ``rate`` or ``threshold`` brings the paper's sets back, and saves upload.

Where we differ besides: a client's identity sets are drawn once for its whole life (the paper's fresh sets fall to
intersection), as a partition of the clusters where sums are exact; the clients' weights travel inside the seal;
the votes on IFCA's start are summed under pairwise masks, since each of them says which models fit a client's data, and
the server learns the winner alone, since their sum says how large the clusters are; a cluster that nobody chose keeps
its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from coterie.defences.mingling.client import Decoys, MinglingClient
from coterie.defences.mingling.fuzzy_tags import ClusterKeys, Counting
from coterie.defences.mingling.rebuilding import Counted, Rebuilding
from coterie.defences.mingling.server import MinglingServer
from coterie.defences.secure_sums import PairwiseMasks, Smallest, bearing
from coterie.errors import InvalidInput, require
from coterie.files import kept_secret
from coterie.flow.guard import Defence
from coterie.flow.protocol import AnyProtocol
from coterie.privacy.guarantee import Guarantee, Level, RunFacts, Trust
from coterie.seal.cipher import Cipher, Key
from coterie.seal.ckks import Ckks, CkksKey
from coterie.seal.mock import MockCipher, MockKey
from coterie.seal.veil import GroupKey
from coterie.wire.sealed import SHARED_KEY

KEY_FILE = "clients.key"
RATE, THRESHOLD = 0.5, 2  # the paper's
MOCK_KEY = MockKey(
    b"a mock's secret."
)  # always the same one: a mock protects nothing, and a killed run goes on with it


@dataclass(frozen=True)
class Mingling(Defence):
    """Hides which cluster a client is in, and its model, from a curious server.

    ``rate`` and ``threshold`` are the paper's p and T, and ``counting`` says what T counts. Under ``PairwiseMasks``,
    with neither of them nor ``cluster_keys``, everybody joins every cluster; else they are 0.5 and 2 unless given.
    ``exact`` sends one ciphertext for each identity in place of one in all, and makes the sums exact. ``cipher`` is
    ``PairwiseMasks`` (the clients' ``key`` opens sums alone; ``exact`` costs nothing more), ``Ckks`` (their ``key``
    opens every answer) or ``MockCipher`` (the same values as CKKS without the work, for long simulations). With
    ``cluster_keys``, published by the server, sets come from the group itself; without them, from coins of the same
    distribution.

    Under masks a cluster with fewer true members than ``smallest`` says keeps its model for the round, with a notice
    to the clients; the server cannot tell. A cluster that nobody chose keeps its model in any case.
    """

    rate: float | None = None
    threshold: int | None = None
    counting: Counting = Counting.IDENTITIES
    exact: bool = True
    cipher: Cipher | PairwiseMasks = field(default_factory=PairwiseMasks)
    cluster_keys: ClusterKeys | None = field(default=None, repr=False)
    rebuilding: Rebuilding = field(default_factory=Counted)
    unit: float = 1.0  # in which weights are sealed; the most examples a client has, where there are many
    key: Key = field(default=None, repr=False)  # None: a fresh one
    smallest: Smallest = field(default_factory=Smallest)
    partition: bool | None = None
    """Whether a client's sets partition the clusters, in place of one set for each true cluster. None: where sums are
    exact; without, parts that clients have in common leave the counts unsolved."""

    fresh_key: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        masked = isinstance(self.cipher, PairwiseMasks)
        if not masked or any(given is not None for given in (self.rate, self.threshold, self.cluster_keys)):
            object.__setattr__(self, "rate", RATE if self.rate is None else self.rate)
            object.__setattr__(self, "threshold", THRESHOLD if self.threshold is None else self.threshold)
        require(
            self.rate is None or 0 < self.rate < 1,
            "rate",
            self.rate,
            "must lie strictly between 0 and 1; to mingle nothing, leave it out",
        )
        require(self.threshold is None or self.threshold >= 1, "threshold", self.threshold, "must be at least 1")
        require(self.unit > 0, "unit", self.unit, "must be positive")
        require(
            self.exact or not masked,
            "exact",
            self.exact,
            "must be True with PairwiseMasks, where it costs nothing: whoever opens the sums could solve for single "
            "clients, where a client's model is in several of them",
        )
        if self.partition is None:
            object.__setattr__(self, "partition", self.exact)
        if self.key is None:
            object.__setattr__(self, "key", self._fresh())
            object.__setattr__(self, "fresh_key", True)

    def _fresh(self) -> Key:
        if isinstance(self.cipher, PairwiseMasks):
            return GroupKey()
        return MOCK_KEY if isinstance(self.cipher, MockCipher) else self.cipher.keygen()

    @property
    def client(self) -> MinglingClient:
        decoys = Decoys(self.rate, self.threshold, self.counting, bool(self.partition), self.cluster_keys)
        return MinglingClient(decoys, self.cipher, self.key, self.exact, self.rebuilding, self.smallest, self.unit)

    @property
    def server(self) -> MinglingServer:
        masks = self.cipher if isinstance(self.cipher, PairwiseMasks) else None
        return MinglingServer(self.key.context, masks, self.smallest)

    @property
    def seals(self) -> bool:
        return True

    def fits(self, protocol: AnyProtocol) -> str:
        if protocol.looks:
            return f"the server needs {protocol.looks}, and cannot read what is sealed"
        if protocol.choices < 2:
            return "clients must choose one of at least two clusters, or there is nothing to mingle; use it with Ifca"
        everywhere = self.client.decoys.everywhere(protocol.choices)
        if protocol.numberings > 1 and not everywhere:
            return (
                "with several starts a client shows its sets under several numberings of the clusters, and whoever "
                "knows what they serve could intersect them; take starts=1, or let everybody join everything"
            )
        return ""

    def kept_in(self, folder: Path) -> Mingling:
        """With the key of the folder, where the caller gave none: what it sealed opens after a restart."""
        if not self.fresh_key or isinstance(self.cipher, MockCipher):
            return self
        return replace(self, key=shared_key(self.cipher, folder / KEY_FILE))

    @property
    def keys(self) -> Mapping[str, object]:
        """What a client could hand to the server, for threat models with collusion (``Ring.view``)."""
        return {SHARED_KEY: self.key}

    @property
    def _shown(self) -> str:
        """What the server learns of clusters without any key."""
        if self.threshold is None:
            return "nothing of clusters"
        return "the identity sets, which together also say how large clusters are where they are not alike"

    def guarantee(self, run: RunFacts) -> Guarantee:
        why = (
            "identities are hidden among decoys and models by encryption, not by noise, so there is no epsilon; a "
            f"server that follows the protocol learns {self._shown}, and "
        )
        if isinstance(self.cipher, PairwiseMasks):
            why += (
                "with one client's key the clusters' true sizes of each round, and the sums of those of at least "
                f"{self.smallest.members}, from which it can place clients by counting over rounds; "
                + bearing(self.cipher, run.asked, self.smallest)
            )
            return Guarantee.none(why, Level.CLIENT, Trust.HIDDEN_SUMS)
        return Guarantee.none(why + "with one client's key everything", Level.CLIENT, Trust.NO_COLLUSION)


def shared_key(cipher: Cipher | PairwiseMasks, path: Path) -> Key:
    """The key in this file, which only its owner may read; made if there is none, so that a killed run can go on."""
    data = kept_secret(path, lambda: (cipher.keygen() if isinstance(cipher, Ckks) else GroupKey()).to_bytes())
    try:
        return CkksKey.from_bytes(cipher, data) if isinstance(cipher, Ckks) else GroupKey(data)
    except InvalidInput as error:
        raise InvalidInput(
            f"{path} holds no key of this defence ({error}); without it nothing that was sealed opens: start the run "
            "again in another folder"
        ) from error
