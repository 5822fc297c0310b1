"""Law 1. N clients computed together equal N clients computed one by one."""

from __future__ import annotations

import pytest
import torch
from tests.laws.members import MEMBERS, Member, every_member
from tests.ring import play

from coterie.flow.drive import message_of
from coterie.wire.codec import decode, encode
from coterie.wire.messages import Contributions


def close(one: object, other: object, path: str = "state") -> None:
    """Equal but for the order in which floats were added."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda text: f"{path}: {text}")
    elif isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys(), path
        for name in one:
            close(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, tuple):
        assert isinstance(other, tuple)
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            close(*pair, f"{path}[{index}]")
    elif hasattr(one, "__dataclass_fields__"):
        for name in one.__dataclass_fields__:
            close(getattr(one, name), getattr(other, name), f"{path}.{name}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-4), path
    else:
        assert one == other, path


@every_member
def test_chunk_size_does_not_matter(member: Member) -> None:
    federation = member.federation()
    together = play(member.protocol, federation, member.model)
    alone = play(member.protocol, federation, member.model, chunk_bytes=1)
    assert len(together.asks) == len(alone.asks)
    close(together.state, alone.state)
    close(together.ring.memory, alone.ring.memory, "memory")


@every_member
def test_each_answer_is_the_client_s_own(member: Member) -> None:
    """Also the messages agree client by client, not only what the server makes of them."""
    federation = member.federation()
    done = play(member.protocol, federation, member.model)
    clients = done.ring.clients
    for ask, memory in zip(done.asks[-2:], done.memories[-2:], strict=True):
        answers = []
        for chunk_bytes in (1 << 30, 1):
            clients.chunk_bytes = chunk_bytes
            clients.memory = decode(memory)
            messages = list(clients.exchange(message_of(ask, done.ring.server)))
            answers.append(Contributions.join([message.sent for message in messages]))
            assert len(messages) == (1 if chunk_bytes > 1 else len(ask.clients))
        close(answers[0], answers[1], f"round {ask.round}")


@every_member
def test_two_worker_processes_do_not_matter(member: Member) -> None:
    """Client by client in this process, or spread over two others: the same bits, and the same memories."""
    federation = member.federation()
    here, elsewhere = (
        play(member.protocol, federation, member.model, chunk_bytes=1, processes=count) for count in (0, 2)
    )
    assert elsewhere.bytes == here.bytes
    assert encode(elsewhere.ring.memory) == encode(here.ring.memory)
    assert elsewhere.ring.traffic == here.ring.traffic


def test_the_members_cover_their_special_cases() -> None:
    """The laws mean little for a Sattler that never splits or a newcomer that nobody places."""
    for name in ("sattler", "sattler, half take part"):
        done = play(MEMBERS[name].protocol, MEMBERS[name].federation(), MEMBERS[name].model)
        assert len(done.state.splits) >= 2
        assert any(ask.kind.name == "place" for ask in done.asks)
    kmeans = MEMBERS["cosine k-means"]
    assert "place" in [ask.kind.name for ask in play(kmeans.protocol, kmeans.federation(), kmeans.model).asks]
