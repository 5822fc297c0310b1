"""What travelled, as files that any framework can write: one ``.npz`` a message.

A message from the server holds ``round``, ``kind``, ``clients`` (to whom), ``leaf/NAME`` (slots, ...) for each of the
model's leaves, and where they apply ``sizes`` (slots,) and ``sees`` (clients, slots). A message from clients holds
``round``, ``kind``, ``ids``, ``leaf/NAME`` (clients, slots or 1, ...), ``membership`` (clients, slots), and ``weights``
(clients,). Ciphertexts are bytes: ``sealed/NAME`` (clients, length) from any framework, ``coterie/NAME`` from ours.
Files sort by name in the order in which the messages travelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import CannotWrite, InvalidInput, NotPermitted
from coterie.files import Array, read_npz
from coterie.wire.codec import decode, encode, register
from coterie.wire.messages import Contributions, Down, Kind, Message, Published, Up
from coterie.wire.sealed import SealedBatch, SealedSum

Arrays = Mapping[str, Array]
LEAF, SEALED, OURS = "leaf/", "sealed/", "coterie/"
MOST_ROUNDS = 1_000_000  # whoever follows a run counts its rounds


def save(message: Message, path: Path) -> None:
    partial = path.with_suffix(".part")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **to_arrays(message))
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CannotWrite(f"cannot record {path}: {error.strerror}; make room or record elsewhere") from error


def load(path: Path) -> Message:
    try:
        message = from_arrays(read_npz(path))
        if why := _misfit(message):
            raise InvalidInput(why)
        return message
    except Exception as error:  # what others wrote may break any parser in any way
        raise InvalidInput(
            f"recorded message {path} cannot be read ({error}); docs/recordings.md has the layout"
        ) from error


def _misfit(message: Message) -> str:
    """Why this is no message, though each of its arrays is one; empty if it is."""
    if not 0 <= message.round < MOST_ROUNDS:
        return f"round={message.round} must lie between 0 and {MOST_ROUNDS - 1}"
    if isinstance(message, Up):
        return message.sent.misshapen()
    slots = {leaf.shape[0] if leaf.dim() else 0 for leaf in message.published.values.values()}
    if len(slots) > 1:
        return f"leaves are of {sorted(slots)} slots, and must be of one number"
    if message.clients.dim() != 1 or message.clients.dtype != torch.int64:
        return f"clients {tuple(message.clients.shape)} of {message.clients.dtype} must be a list of whole numbers"
    if message.sees is not None and message.sees.shape != (len(message.clients), message.published.slots):
        return f"sees {tuple(message.sees.shape)} must be (clients, slots)"
    return ""


def to_arrays(message: Message) -> dict[str, Array]:
    arrays: dict[str, Array] = {"round": np.array(message.round), "kind": np.array(str(message.kind))}
    if isinstance(message, Up):
        sent = message.sent
        arrays |= {LEAF + name: leaf.numpy() for name, leaf in sent.values.items()}
        arrays |= {"ids": sent.ids.numpy(), "weights": sent.weights.numpy(), "membership": sent.membership.numpy()}
        if sent.notes:
            arrays[OURS + "notes"] = _bytes(sent.notes)
        return arrays | {OURS + SEALED + name: _bytes(sealed) for name, sealed in sent.sealed.items()}
    published = message.published
    arrays |= {LEAF + name: leaf.numpy() for name, leaf in published.values.items()}
    arrays["clients"] = message.clients.numpy()
    if published.sizes is not None:
        arrays["sizes"] = published.sizes.numpy()
    if published.previous is not None:
        arrays[OURS + "previous"] = _bytes(published.previous)
    if message.common or message.each:
        arrays[OURS + "notes"] = _bytes((message.common, message.each))
    if message.sees is not None:
        arrays["sees"] = message.sees.numpy()
    return arrays | {OURS + SEALED + name: _bytes(sealed) for name, sealed in published.sealed.items()}


def from_arrays(arrays: Arrays) -> Message:
    kind, round = Kind.of(str(arrays["kind"])), int(arrays["round"])
    return _down(arrays, kind, round) if "ids" not in arrays else _up(arrays, kind, round)


def _down(arrays: Arrays, kind: Kind, round: int) -> Down:
    previous = decode(arrays[OURS + "previous"].tobytes()) if OURS + "previous" in arrays else None
    sums = {name: sealed for name, sealed in _sealed(arrays).items() if isinstance(sealed, SealedSum)}
    published = Published(_leaves(arrays), _tensor(arrays, "sizes"), sums, previous)
    common, each = decode(arrays[OURS + "notes"].tobytes()) if OURS + "notes" in arrays else (b"", ())
    return Down(kind, round, torch.from_numpy(arrays["clients"]), published, _tensor(arrays, "sees"), common, each)


def _up(arrays: Arrays, kind: Kind, round: int) -> Up:
    ids = torch.from_numpy(arrays["ids"])
    batches = {name: sealed for name, sealed in _sealed(arrays).items() if isinstance(sealed, SealedBatch)}
    weights, membership = _tensor(arrays, "weights"), _tensor(arrays, "membership")
    notes = decode(arrays[OURS + "notes"].tobytes()) if OURS + "notes" in arrays else ()
    sent = Contributions(
        ids,
        _leaves(arrays),
        torch.ones(len(ids)) if weights is None else weights,
        torch.ones(len(ids), 1) if membership is None else membership,
        batches,
        notes,
    )
    return Up(kind, round, sent)


def _leaves(arrays: Arrays) -> dict[str, Tensor]:
    return {name[len(LEAF) :]: torch.from_numpy(leaf) for name, leaf in arrays.items() if name.startswith(LEAF)}


def _tensor(arrays: Arrays, name: str) -> Tensor | None:
    return torch.from_numpy(arrays[name]) if name in arrays else None


def _bytes(value: object) -> NDArray[np.uint8]:
    return np.frombuffer(encode(value), np.uint8)


def _sealed(arrays: Arrays) -> dict[str, SealedBatch | SealedSum]:
    found: dict[str, SealedBatch | SealedSum] = {}
    for name, array in arrays.items():
        if name.startswith(OURS + SEALED):
            found[name[len(OURS + SEALED) :]] = decode(array.tobytes())
        elif name.startswith(SEALED):
            found[name[len(SEALED) :]] = OpaqueBatch(array)
    return found


@register
@dataclass(frozen=True)
class OpaqueBatch(SealedBatch):
    """Ciphertexts of a scheme that is not ours: they can be counted and told apart, and no more."""

    contents: NDArray[np.uint8]  # (clients, length)

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def nbytes(self) -> int:
        return self.contents.nbytes

    def pick(self, positions: Sequence[int]) -> OpaqueBatch:
        return OpaqueBatch(self.contents[list(positions)])

    def add(self, membership: Tensor) -> NoReturn:
        raise NotPermitted("recorded ciphertexts of another framework cannot be added here; only it knows how")

    def open(self, key: object) -> NoReturn:
        raise NotPermitted("recorded ciphertexts of another framework cannot be opened here, whatever the key")

    @classmethod
    def join(cls, parts: Sequence[SealedBatch]) -> OpaqueBatch:
        return OpaqueBatch(np.concatenate([part.contents for part in parts if isinstance(part, OpaqueBatch)]))
