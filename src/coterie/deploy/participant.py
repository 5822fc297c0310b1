"""A client on its own machine: letters in, letters out. It computes with installed code and obeys its owner's policy.

The client's half of every exchange is ``flow.client.ClientSide``, as in the simulator; here it has one client. What is
spent and remembered is on disk before an answer leaves. A letter that is not the server's, not for this run or not
newer than the last one gets no answer at all; one that the policy does not allow gets a refusal that says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from secrets import token_hex

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Federation, Shards, VerticalFederation
from coterie.defences.secure_sums import IDENTITY, KNOWN, LAST
from coterie.deploy.envelope import DOWN, UP, Channel, Letter
from coterie.deploy.home import MODELS, Home, Kept, covers, joined
from coterie.deploy.keys import GROUP, ClientKeys, ServerCard, read_private, roster, shared
from coterie.deploy.own_data import facts_of, load, relabelled, require_shape, split
from coterie.deploy.plan import Accepted, Offer, Plan, Refused, Told
from coterie.deploy.policy import ClientFile, forecast
from coterie.errors import BudgetSpent, CoterieError, InvalidInput, NotPermitted, Withheld, require
from coterie.files import replacing
from coterie.flow.client import Answer, ClientSide
from coterie.flow.cohort import FOR_ONE_TURN, Cohort, Memory
from coterie.flow.turn import Roots, Turn
from coterie.learn.params import Params
from coterie.measure.utility import measure_of, scored
from coterie.privacy.guarantee import Guarantee
from coterie.privacy.ledger import EVERYBODY, Row
from coterie.rng import Rng, Secrets
from coterie.seal.ckks import Ckks, CkksKey
from coterie.seal.veil import GroupKey
from coterie.wire.codec import decode, encode
from coterie.wire.messages import RESULT, Down, Published

Log = Callable[..., None]


@dataclass(frozen=True)
class Session:
    """A run that this client takes part in."""

    plan: Plan
    side: ClientSide
    roots: Roots
    claim: Guarantee | None
    reserved: tuple[Row, ...]
    data: Federation | VerticalFederation


class Participant:
    """One client. ``answer`` is all that it does."""

    def __init__(self, file: ClientFile, log: Log) -> None:
        self.file, self.policy, self._log = file, file.policy, log
        self.keys = ClientKeys.read(file.keys)
        self.server = ServerCard.read(file.server)
        others = [] if file.cards is None else roster(file.cards)
        self.cards = {card.name: card for card in [*others, self.keys.card]}
        self._channel = Channel(shared(self.keys.letters, self.server.letters, b"letters"))
        self._home = Home(file.home, file.limit, self.policy.delta)
        self._examples = load(file)
        self._session = self._reopened()
        self._turn_memory: Memory = {}  # what is for one request alone: in no file

    def _reopened(self) -> Session | None:
        """The run that it was in when it was stopped, if the policy of today still allows it, and what it costs."""
        kept = self._kept
        if kept is None:
            return None
        try:
            session = self._opened(kept.offer, kept.run)
            if session.claim is not None and not self._home.ledger.holds(kept.run.hex()):
                held = session.reserved if covers(session.reserved, kept.spent) else kept.spent
                self._home.ledger.hold(kept.run.hex(), session.claim, held)
            return session
        except CoterieError as problem:
            self._log("left", why=str(problem))
            return None

    @property
    def _kept(self) -> Kept | None:
        return self._home.kept

    # -- between two processes that are the same client ---------------------------------------------------------------

    @property
    def unfinished(self) -> bytes:
        """What is for one request alone, for whoever goes on with that in another process; it belongs in no file."""
        kept = self._kept
        return b"" if kept is None or not self._turn_memory else encode((kept.run, kept.number, self._turn_memory))

    def go_on(self, unfinished: bytes) -> None:
        """With what another process left, if that is of the last letter that was answered, and of none before it."""
        run, number, memory = decode(unfinished) if unfinished else (b"", 0, {})
        if self._kept is not None and (run, number) == (self._kept.run, self._kept.number):
            self._turn_memory = memory

    # -- letters --------------------------------------------------------------------------------------------------

    def answer(self, data: bytes) -> bytes | None:
        """What to send back; None: nothing at all, since it is not the server who wrote, or it did so before."""
        try:
            letter = self._channel.open(DOWN, data)
            self._require_new(letter)
        except CoterieError as problem:
            self._log("ignored", why=str(problem))
            return None
        try:
            said = self._said(letter)
        except CoterieError as problem:
            self._log("refused", run=letter.run.hex()[:8], number=letter.number, why=str(problem))
            said = Refused(problem.told if isinstance(problem, Withheld) else str(problem))
        except Exception as problem:  # whatever a server asks, a client goes on
            self._log(
                "failed", run=letter.run.hex()[:8], number=letter.number, why=f"{type(problem).__name__}: {problem}"
            )
            said = Refused(f"it failed: {type(problem).__name__}")
        sealed = self._channel.seal(UP, letter.run, letter.number, said)
        if len(sealed) > self.policy.most_bytes:
            why = f"policy: answer of {len(sealed)} bytes is more than most_bytes={self.policy.most_bytes}"
            self._log("refused", run=letter.run.hex()[:8], number=letter.number, why=why)
            sealed = self._channel.seal(UP, letter.run, letter.number, Refused(why))
        return sealed

    def introduced(self, run: bytes) -> bytes:
        """Who this is, for a server that knows nodes by number alone: its name, and that as a letter of its own."""
        return self.keys.name.encode() + b"\n" + self._channel.seal(UP, run, 0, self.keys.name)

    def _require_new(self, letter: Letter) -> None:
        kept = self._kept
        if kept is not None and letter.run == kept.run:
            if letter.number <= kept.number:
                raise NotPermitted(f"letter {letter.number} comes after {kept.number}: it is old, or sent again")
            if isinstance(letter.said, Offer):
                raise NotPermitted("the run has begun; it is not offered twice")
            return
        if not isinstance(letter.said, Offer):
            raise NotPermitted(f"letter is of run {letter.run.hex()[:8]}, which this client is not in")
        if self._home.has_begun(letter.run):
            raise NotPermitted(f"run {letter.run.hex()[:8]} is over; a run is begun once")

    def _said(self, letter: Letter) -> object:
        if isinstance(letter.said, Offer):
            return self._begin(letter.run, letter.number, letter.said)
        if isinstance(letter.said, Down):
            return self._exchange(letter.number, letter.said)
        raise InvalidInput(f"letter={type(letter.said).__name__} is nothing that a client answers")

    # -- a run begins ---------------------------------------------------------------------------------------------

    def _begin(self, run: bytes, number: int, offer: Offer) -> Accepted:
        session = self._opened(offer, run)
        former = self._kept
        resumed = offer.resumes and former is not None and former.offer.config().name == offer.config().name
        if session.claim is not None:
            self._home.ledger.hold(run.hex(), session.claim, session.reserved, over=self._came_to(former))
        self._home.begin(run)
        kept = Kept(run, number, offer)
        if resumed and former is not None:
            kept = replace(kept, asked=former.asked, before=former.before, after=former.after)
        self._home.keep(kept)
        self._session, self._turn_memory = session, {}
        self._log("accepted", run=run.hex()[:8], name=session.plan.config.name, resumed=resumed)
        return Accepted(self._size(session.plan), session.plan.key_name)

    def _opened(self, offer: Offer, run: bytes) -> Session:
        """The objects of a run, if the policy allows them."""
        require(
            0 <= offer.number < len(offer.names) and offer.names[offer.number] == self.keys.name,
            "number in the offer",
            offer.number,
            f"must be that of {self.keys.name!r} among {list(offer.names)}",
        )
        once = len(set(offer.names)) == len(offer.names)  # or two names of a cohort would be one client
        require(once, "names in the offer", list(offer.names), "must differ")
        self._require_shape(offer)  # before anything is built of a size that the server names
        plan = Plan.of(offer)
        plan.require_real()
        data = self._data(offer, plan)
        facts = facts_of(plan, data, len(offer.names), offer.number, self.policy.delta)
        self.policy.check(offer, plan, facts, set(self.cards))
        claim = self.policy.claim(plan, facts)
        if plan.cipher is not None:
            plan = plan.with_key(self._group_key(plan.cipher))
        root = Secrets(self.keys.root, reproducible=False).child("run", plan.config.name)
        draws = Rng(offer.draws) if self.policy.draws == "run" else root.child("draws").rng()
        side = ClientSide(plan.protocol, plan.defence.client)
        return Session(plan, side, Roots(draws, root), claim, forecast(plan, facts), data)

    def _group_key(self, cipher: object) -> CkksKey | GroupKey:
        """What the clients share, from this client's folder."""
        data = read_private(self.file.keys / GROUP, "the clients' shared key")
        return CkksKey.from_bytes(cipher, data) if isinstance(cipher, Ckks) else GroupKey(data)

    def _require_shape(self, offer: Offer) -> None:
        shape = tuple(self._examples.x.shape[1:])
        require_shape(offer.shape in ((), shape), shape, offer.shape)

    def _data(self, offer: Offer, plan: Plan) -> Federation | VerticalFederation:
        """This client's data as a federation of one; they must be of the federation's kind."""
        examples = self._examples
        if plan.protocol.tells_records:
            return VerticalFederation(examples, (torch.arange(examples.x[0].numel()),))
        shape = tuple(examples.x.shape[1:])
        require_shape(shape == offer.shape, shape, offer.shape)
        if plan.protocol.trains:
            examples = relabelled(examples, offer.labels)
        train, test = split(examples, self.file.test_share)
        return Federation(examples, Shards.of([train]), Shards.of([test]), torch.tensor([-1]))

    def _size(self, plan: Plan) -> int:
        """What the roster may say: how much there is where that is public, and else not even whether there is any."""
        if plan.protocol.trains or plan.protocol.tells_records:
            assert self._session is not None
            return int(self._session.data.sizes[0])
        return 1

    # -- an exchange ----------------------------------------------------------------------------------------------

    def _exchange(self, number: int, asked: Down) -> object:
        kept, session = self._kept, self._session
        if kept is None or session is None:
            raise NotPermitted("no run has begun here")
        require(
            asked.clients.tolist() == [kept.offer.number],
            "clients of the letter",
            asked.clients.tolist(),
            f"must be [{kept.offer.number}], who this is",
        )
        self._require_offered(kept, session.plan, asked)
        turn = Turn(asked.round, session.roots, asked.kind, attempt=token_hex(8))
        order = session.side.opened(spread(asked), turn)
        if asked.kind == RESULT:
            measures = self._result(session, order.published, turn, asked.sees)
            if session.plan.protocol.trains:
                self._home.keep(replace(kept, number=number, requests=session.plan.most_requests))  # and it is over
                return Told(measures if self.policy.tells_measures else {})
        key = f"{asked.round} {asked.kind}"
        before = self._before(kept, key) if not asked.kind.part else kept.before
        memory = self._memory(before if not asked.kind.part else kept.after, bool(asked.kind.part))
        answer = session.side.answer(order, self._cohort(session, turn, order.sees, memory))
        return self._leaving(kept, session, number, key, before, asked, answer)

    def _require_offered(self, kept: Kept, plan: Plan, asked: Down) -> None:
        """Rounds go forward, and there are no more requests than such a run has, whether or not they cost anything."""
        most = plan.most_requests
        _permit(asked.round >= kept.round, f"round {asked.round} is asked after round {kept.round}")
        _permit(asked.kind.part != "" or kept.requests < most, f"more than {most} requests are asked")

    def _leaving(
        self, kept: Kept, session: Session, number: int, key: str, before: Memory, asked: Down, answer: Answer
    ) -> object:
        """The answer, once what it costs and what is to be remembered are on disk."""
        (memory,) = answer.memory
        lasting = {name: value for name, value in memory.items() if not name.startswith(FOR_ONE_TURN)}
        spends = [(spent, times) for _, spent, times in answer.spent]
        if not asked.kind.part:
            spends += [(spent, 1) for spent in session.side.guard.exposes(asked.kind)]
        spent = joined((*kept.spent, *((EVERYBODY, one, times) for one, times in spends)))
        self._require_room(kept, session, spent)
        lasting = {name: value for name, value in lasting.items() if name not in (IDENTITY, KNOWN)}
        answered = kept.requests + (not asked.kind.part)
        news = replace(kept, number=number, asked=key, before=before, after=lasting, spent=spent)
        news = replace(news, round=asked.round, requests=answered)
        self._home.keep(news)
        self._turn_memory = {name: value for name, value in memory.items() if name.startswith(FOR_ONE_TURN)}
        self._log("answered", run=kept.run.hex()[:8], number=number, round=asked.round, kind=str(asked.kind))
        if not len(answer.up.clients):
            return Refused("its guard left the request unanswered")
        return answer.up

    def _require_room(self, kept: Kept, session: Session, spent: tuple[Row, ...]) -> None:
        """What is held for the run covers what it spends; a server that asks for more must find room for more."""
        if session.claim is None or covers(session.reserved, spent):
            return
        try:
            self._home.ledger.hold(kept.run.hex(), session.claim, spent)
        except BudgetSpent as error:
            raise BudgetSpent(f"more is asked than was offered: {error}") from error

    def _came_to(self, former: Kept | None) -> dict[str, tuple[Row, ...]]:
        """A run that is over has cost what it spent, if this client wrote that down itself."""
        session = self._session
        if former is None or session is None or not former.spent or not covers(session.reserved, former.spent):
            return {}
        return {former.run.hex(): former.spent}

    def _before(self, kept: Kept, key: str) -> Memory:
        """What was remembered before this request: where a resumed run repeats its last one, as it was before that."""
        if key != kept.asked:
            return kept.after
        return {**kept.before, **({LAST: kept.after[LAST]} if LAST in kept.after else {})}

    def _memory(self, lasting: Memory, goes_on: bool) -> Memory:
        offer = self._kept.offer if self._kept is not None else None
        assert offer is not None
        known = {number: self.cards[name].signs for number, name in enumerate(offer.names) if name in self.cards}
        memory = {**lasting, IDENTITY: self.keys.signs, KNOWN: known}
        return {**memory, **self._turn_memory} if goes_on else memory

    def _cohort(self, session: Session, turn: Turn, sees: Tensor | None, memory: Memory) -> Cohort:
        assert self._kept is not None
        ids, data = torch.tensor([self._kept.offer.number]), session.data
        if isinstance(data, VerticalFederation):
            return Cohort(ids, turn, sees=sees, columns=(data.part(0),), memory=[memory])
        return Cohort(ids, turn, data.examples, data.train, session.plan.model, sees, memory=[memory])

    # -- a result -------------------------------------------------------------------------------------------------

    def _result(self, session: Session, given: Published, turn: Turn, sees: Tensor | None) -> dict[str, float]:
        """Keep what the federation made, and say how well it serves here."""
        with replacing(self.file.home / MODELS) as file:
            np.savez(file, allow_pickle=False, **{name: leaf.numpy() for name, leaf in given.values.items()})
        measures = self._measured(session, given.values, turn, sees)
        self._log("result", name=session.plan.config.name, **measures)
        return measures

    def _measured(self, session: Session, models: Params, turn: Turn, sees: Tensor | None) -> dict[str, float]:
        data, plan = session.data, session.plan
        if plan.model is None or isinstance(data, VerticalFederation) or not len(data.test.rows):
            return {}
        memory = {} if self._kept is None else dict(self._kept.after)
        choices = plan.protocol.choose(models, self._cohort(session, turn, sees, memory))
        return {measure_of(data): float(scored(plan.model, models, choices, data)[0])}


def spread(asked: Down) -> Down:
    """A letter holds the slots that its client is given; the protocol knows them by their places among all."""
    if asked.sees is None or asked.published.slots == asked.sees.shape[1] or not asked.published.values:
        return asked
    places = asked.sees[0].nonzero().flatten()
    require(len(places) == asked.published.slots, "slots given", asked.published.slots, f"must be {len(places)}")
    values = {}
    for name, leaf in asked.published.values.items():
        values[name] = leaf.new_zeros(asked.sees.shape[1], *leaf.shape[1:])
        values[name][places] = leaf
    return replace(asked, published=Published(values))


def _permit(condition: bool, why: str) -> None:
    if not condition:
        raise NotPermitted(f"the run is not what was offered: {why}")
