"""Keys: each party makes its own, keeps the private halves in a folder that only it may read, and hands out a card.

A client's card and the server's card are public; nothing else is ever handed over. What clients share and the server
must lack (the key that opens sums) one of them makes, and seals for each of the others by their cards.
"""

from __future__ import annotations

import ipaddress
import json
import os
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from coterie.errors import DataMissing, InvalidInput, NotPermitted, require
from coterie.files import contents, read_json, require_plain, write_atomically
from coterie.seal.signing import verify_key

VERSION = 1
KEYS, CARD, SECRET, LINK_KEY, LINK_CERTIFICATE, AUTHORITY = (
    "keys.json",
    "card.json",
    "local.secret",
    "link.key",
    "link.crt",
    "authority.crt",
)
GROUP = "group.key"
NONCE = 12
KEY = 32  # bytes of a key for letters or signatures, and of a root
VALID = timedelta(days=825)


@dataclass(frozen=True)
class ClientCard:
    """What a client shows of itself: by which it is admitted, written to, and known by other clients."""

    name: str
    node: bytes  # PEM: the key that Flower knows it by
    letters: bytes  # X25519: what is sent to it is sealed for this
    signs: bytes  # Ed25519: it signs its keys of a round with this

    @staticmethod
    def read(path: Path) -> ClientCard:
        with _whole(path, "client card") as found:
            name = str(found["name"])
            require(name.isidentifier(), "name on card", name, "must be a plain word")
            return ClientCard(name, found["node"].encode(), _key(found, "letters"), _key(found, "signs"))

    def write(self, path: Path) -> None:
        said = {
            "name": self.name,
            "node": self.node.decode(),
            "letters": _text(self.letters),
            "signs": _text(self.signs),
        }
        _write(path, "client card", said, private=False)

    @property
    def fingerprint(self) -> str:
        """What two owners compare by telephone."""
        return _digest(self.node + self.letters + self.signs)


@dataclass(frozen=True)
class ServerCard:
    """What the server shows of itself: where it is, by which certificate it is known, and how to write to it."""

    address: str
    authority: bytes  # PEM
    letters: bytes

    @staticmethod
    def read(path: Path) -> ServerCard:
        with _whole(path, "server card") as found:
            host, _, port = found["address"].rpartition(":")
            require(bool(host) and port.isdigit(), "address", found["address"], "must be HOST:PORT")
            authority = found["authority"].encode()
            try:
                x509.load_pem_x509_certificate(authority)
            except ValueError as error:  # without one, every authority of the system's would do
                raise InvalidInput(f"authority is no certificate ({error})") from error
            return ServerCard(found["address"], authority, _key(found, "letters"))

    def write(self, path: Path) -> None:
        said = {"address": self.address, "authority": self.authority.decode(), "letters": _text(self.letters)}
        _write(path, "server card", said, private=False)

    @property
    def fingerprint(self) -> str:
        return _digest(self.authority + self.letters)


@dataclass(frozen=True)
class ClientKeys:
    """A client's private halves; they never leave its folder."""

    name: str
    node: ec.EllipticCurvePrivateKey = field(repr=False)
    letters: bytes = field(repr=False)
    signs: bytes = field(repr=False)
    root: bytes = field(repr=False)  # of all secrets that it draws

    @staticmethod
    def make(folder: Path, name: str) -> ClientKeys:
        require(name.isidentifier(), "name", name, "must be a plain word: letters, digits and underscores")
        node = ec.generate_private_key(ec.SECP384R1())
        fresh = ClientKeys(name, node, token_bytes(32), token_bytes(32), token_bytes(32))
        said = {
            "name": name,
            "node": node.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ).decode(),
            "letters": _text(fresh.letters),
            "signs": _text(fresh.signs),
            "root": _text(fresh.root),
        }
        _new_folder(folder)
        _write(folder / KEYS, "client keys", said)
        fresh.card.write(folder / CARD)
        return fresh

    @staticmethod
    def read(folder: Path) -> ClientKeys:
        with _whole(folder / KEYS, "client keys") as found:
            node = serialization.load_pem_private_key(found["node"].encode(), None)
            if not isinstance(node, ec.EllipticCurvePrivateKey):
                raise InvalidInput(f"node key={type(node).__name__} must be of an elliptic curve")
            require(str(found["name"]).isidentifier(), "name", found["name"], "must be a plain word")
            letters, signs, root = (_key(found, one) for one in ("letters", "signs", "root"))
            return ClientKeys(found["name"], node, letters, signs, root)

    @property
    def card(self) -> ClientCard:
        node = self.node.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return ClientCard(self.name, node, public_half(self.letters), verify_key(self.signs))


@dataclass(frozen=True)
class ServerKeys:
    """The server's private half for letters, and the secret of what is on loopback."""

    letters: bytes = field(repr=False)
    secret: str = field(repr=False)
    port: int
    local_port: int
    host: str

    @staticmethod
    def make(folder: Path, address: str, local_port: int) -> ServerKeys:
        """With a certificate for this address, signed by an authority whose key is thrown away at once."""
        host, _, port = address.rpartition(":")
        require(bool(host) and port.isdigit(), "address", address, "must be HOST:PORT, as clients reach it")
        require(0 < int(port) < 1 << 16, "port", port, "must be one of a machine's: 1 to 65535")
        require(0 < local_port < 1 << 16, "local port", local_port, "must be one of a machine's: 1 to 65535")
        require(host.isprintable() and " " not in host, "host", host, "must be a name or an address")
        fresh = ServerKeys(token_bytes(32), token_hex(32), int(port), local_port, host)
        _new_folder(folder)
        authority, certificate, key = _certificates(host)
        said: dict[str, object] = {"letters": _text(fresh.letters), "secret": fresh.secret}
        _write(folder / KEYS, "server keys", said | {"port": fresh.port, "local_port": local_port, "host": host})
        write_atomically(folder / LINK_KEY, key, private=True)
        (folder / LINK_CERTIFICATE).write_bytes(certificate)
        (folder / AUTHORITY).write_bytes(authority)
        (folder / "clients").mkdir()
        ServerCard(address, authority, public_half(fresh.letters)).write(folder / CARD)
        return fresh

    @staticmethod
    def read(folder: Path) -> ServerKeys:
        with _whole(folder / KEYS, "server keys") as found:
            port, local = found["port"], found["local_port"]
            for one in (port, local):
                require(isinstance(one, int) and 0 < one < 1 << 16, "port", one, "must be one of a machine's")
            require(isinstance(found["secret"], str), "secret", type(found["secret"]).__name__, "must be a text")
            return ServerKeys(_key(found, "letters"), found["secret"], port, local, str(found["host"]))


def roster(folder: Path) -> list[ClientCard]:
    """The cards in a folder by name: the order is a client's number."""
    cards = sorted((ClientCard.read(path) for path in folder.glob("*.json")), key=lambda card: card.name)
    names = [card.name for card in cards]
    require(len(set(names)) == len(names), f"names in {folder}", names, "must differ; keep one card of each")
    return cards


# -- what two parties share without ever sending it --------------------------------------------------------------------


def public_half(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """32 bytes that only the holders of the two private halves can compute."""
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    ends = b"".join(sorted((public_half(private), public)))
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"coterie 1 " + purpose + b" " + ends).derive(secret)


def seal_for(card: ClientCard, mine: ClientKeys, secret: bytes, purpose: str) -> bytes:
    """A secret for the holder of this card alone, which says who sealed it; it may travel any way."""
    nonce, key = token_bytes(NONCE), shared(mine.letters, card.letters, purpose.encode())
    sealed = AESGCM(key).encrypt(nonce, secret, purpose.encode())
    said = {"from": mine.name, "for": card.name, "purpose": purpose, "sealed": _text(nonce + sealed)}
    return json.dumps({"kind": "sealed key", "version": VERSION} | said, indent=2).encode()


def open_sealed(letter: Path, mine: ClientKeys, others: Mapping[str, ClientCard], purpose: str) -> bytes:
    with _whole(letter, "sealed key") as found:
        if found["from"] not in others:
            raise DataMissing(
                f"{letter} is from {found['from']!r}, whose card is not among {sorted(others)}; ask for it"
            )
        if found["for"] != mine.name:
            raise NotPermitted(f"{letter} is for {found['for']!r}, and this is {mine.name!r}; ask for your own")
        raw = b64decode(found["sealed"], validate=True)
        require(len(raw) > NONCE, "sealed", f"{len(raw)} bytes", "are too few for a key; ask for it again")
        key = shared(mine.letters, others[found["from"]].letters, purpose.encode())
    try:
        return AESGCM(key).decrypt(raw[:NONCE], raw[NONCE:], purpose.encode())
    except InvalidTag as error:
        raise NotPermitted(
            f"{letter} does not open: it was changed, or sealed for another purpose or by another than "
            f"{found['from']!r}; ask for it again"
        ) from error


# -- files ------------------------------------------------------------------------------------------------------------


def _new_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise InvalidInput(f"folder {folder} is not empty; keys are made once, name another")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _write(path: Path, kind: str, said: Mapping[str, object], private: bool = True) -> None:
    data = json.dumps({"kind": kind, "version": VERSION} | dict(said), indent=2).encode()
    if private:
        write_atomically(path, data, private=True)
    else:
        path.write_bytes(data)


def read_private(path: Path, what: str) -> bytes:
    """A secret file; one that others may read is refused, for it is none."""
    try:
        require_plain(path)
        with path.open("rb") as file:  # what is looked at is what is read, whatever the path is meanwhile
            found = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            if mode & 0o077:
                raise NotPermitted(
                    f"{what} {path} has mode {mode:04o}: others may read it; chmod 600 it, or make new keys"
                )
            if found.st_uid not in (os.geteuid(), 0):
                raise NotPermitted(
                    f"{what} {path} is user {found.st_uid}'s, who may read it; make new keys of your own"
                )
            return file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataMissing(f"{what} {path} does not exist; `coterie deploy keys` makes it") from error


def _read(path: Path, kind: str) -> dict[str, Any]:
    private = kind.endswith("keys")
    try:
        data = read_private(path, kind) if private else contents(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataMissing(f"{kind} {path} does not exist; `coterie deploy keys` makes it") from error
    try:
        found = read_json(data)
    except (InvalidInput, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is no {kind}: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != kind:
        raise InvalidInput(f"{path} is no {kind}; name the file that `coterie deploy keys` wrote")
    if found.get("version") != VERSION:
        raise InvalidInput(
            f"{path} has version {found.get('version')!r}, and this program reads {VERSION}; make new keys"
        )
    return found


def _digest(data: bytes) -> str:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(data)
    return digest.finalize().hex()[:32]


@contextmanager
def _whole(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """What the file says, for whoever takes it apart: what is missing or of another kind in it is an error of ours."""
    found = _read(path, kind)
    try:
        yield found
    except (DataMissing, NotPermitted):
        raise
    except Exception as error:  # what others wrote may break any parser in any way
        raise InvalidInput(f"{path} is no whole {kind} ({type(error).__name__}: {error}); ask for it again") from error


def _key(found: Mapping[str, Any], name: str) -> bytes:
    raw = b64decode(found[name], validate=True)
    require(len(raw) == KEY, name, f"{len(raw)} bytes", f"must be a key of {KEY}")
    return raw


def _text(data: bytes) -> str:
    return b64encode(data).decode()


# -- certificates -----------------------------------------------------------------------------------------------------


def _certificates(host: str) -> tuple[bytes, bytes, bytes]:
    """An authority's certificate, the link's own signed by it, and the link's key, all PEM."""
    root, own = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie federation")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    top = _builder(issuer, issuer, root.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    names = [_general(one) for one in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    leaf = (
        _builder(issuer, subject, own.public_key())
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    pem = serialization.Encoding.PEM
    key = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return top.sign(root, hashes.SHA256()).public_bytes(pem), leaf.sign(root, hashes.SHA256()).public_bytes(pem), key


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
