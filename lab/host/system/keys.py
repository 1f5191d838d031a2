"""SSH keys: the lab's own pair, and a host key for each guest, made before the guest is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from lab.host.system import files, paths


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An ed25519 key in OpenSSH's formats."""

    private: str
    public: str
    """``ssh-ed25519 AAAA…``, without a comment."""


def make() -> KeyPair:
    """Return a new key pair."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return KeyPair(private=private.decode(), public=public.decode())


def lab_key_path() -> Path:
    return paths.keys() / "id_ed25519"


def lab_key() -> KeyPair:
    """Return the lab's own pair; made on first use. Concurrent processes get the same pair."""
    path = lab_key_path()
    public = path.with_suffix(".pub")
    if not public.exists():
        files.make_directory(path.parent, mode=0o700)
        # If another process was faster, its key stays.
        files.write(path, make().private, mode=0o600, replace=False)
        whole = path.read_text(encoding="ascii")
        files.write(public, f"{_public_of(whole)} lab\n")
    private = path.read_text(encoding="ascii")
    return KeyPair(private=private, public=_public_of(private))


def _public_of(private: str) -> str:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    key = load_ssh_private_key(private.encode(), None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
