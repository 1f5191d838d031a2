"""A cluster's certificates: the lab makes them, and checks them before use.

::

    DIR/ca.pem      the cluster's own authority; its private key is never written
    DIR/cert.pem    the certificate that scheduler, workers and clients show, signed by it
    DIR/key.pem     the private key of that certificate

All roles share one certificate. dask lets every connected process run programs on every host, so a
certificate per role would not restrict anybody.
"""

from __future__ import annotations

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lab.core.errors import HostError, InputError, unwritable
from lab.host.system import files, leftovers, unfinished

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

CA, CERT, KEY = FILES = ("ca.pem", "cert.pem", "key.pem")
LIFETIME: Final = timedelta(days=365)
CLOCKS: Final = timedelta(days=1)
"""Most that the clocks of a cluster's machines may differ."""


def make(directory: Path) -> None:
    """Make an authority and a certificate, unless files exist already.

    The directory gets mode 0700, its files 0600. It is created in one rename.
    ``HostError``: it cannot be written.
    """
    if not _is_free(directory):
        return
    part = unfinished.name(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        leftovers.remove(directory.parent.glob(f".{directory.name}.*"))
        part.mkdir(mode=0o700)
        for name, data in zip(FILES, _made(), strict=True):
            descriptor = os.open(part / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        files.publish(part, directory)
    except (HostError, OSError) as error:
        if _is_free(directory):  # otherwise another lab was faster, and its files are used
            if isinstance(error, OSError):
                raise unwritable(directory, error, "made") from error
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _is_free(directory: Path) -> bool:
    """Return whether the directory is missing or empty."""
    try:
        return not os.path.lexists(directory) or not any(directory.iterdir())
    except OSError:
        return False


def _made() -> tuple[bytes, bytes, bytes]:
    """Return an authority, a certificate signed by it, and the certificate's private key, as
    PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    now = datetime.now(UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(key: ec.EllipticCurvePrivateKey, subject: str, *, ca: bool) -> bytes:
        uses = dict.fromkeys(
            (
                *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
                *("crl_sign", "encipher_only", "decipher_only"),
            ),
            False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("raid-lab cluster authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCKS)
            .not_valid_after(now + LIFETIME)
            .add_extension(
                x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True
            )
            .add_extension(
                x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, **uses), critical=True
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
                critical=False,
            )
        )
        if not ca:
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=True)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    private = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (
        signed(authority, "raid-lab cluster authority", ca=True),
        signed(own, "raid-lab cluster member", ca=False),
        private,
    )


def check(directory: Path) -> datetime:
    """Return the expiry time of the certificate in a directory.

    ``InputError``: it is missing, expired, owned by another user, or readable by others.
    """
    _check_owner(directory, is_directory=True)
    for name in FILES:
        _check_owner(directory / name, is_directory=False)
    ends = min(_valid_until(directory / name) for name in (CA, CERT))
    _check_key(directory)
    return ends


def _check_owner(path: Path, *, is_directory: bool) -> None:
    kind = "a directory" if is_directory else "a file"
    expected = f"expected {kind} of this user's that nobody else can open"
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise InputError(
            f"there is no '{path}', and a cluster needs its certificates",
            hint="`lab cluster scheduler` makes them and prints where they are: copy that directory"
            " from its machine, and name the copy with --tls DIR",
        ) from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise InputError(f"'{path}' is a symbolic link: {expected}", hint="name what it points to")
    if not (stat.S_ISDIR if is_directory else stat.S_ISREG)(found.st_mode):
        raise InputError(f"'{path}' is not {kind}: {expected}")
    if found.st_uid != os.geteuid():
        raise InputError(
            f"'{path}' belongs to the user with number {found.st_uid}: {expected}",
            hint="copy it, as the user who runs the lab",
        )
    # The directory has mode 0700, which already excludes others; only the key is checked again.
    closed = is_directory or path.name == KEY
    mode = stat.S_IMODE(found.st_mode)
    if closed and mode & 0o077:
        raise InputError(
            f"'{path}' has mode {mode:04o}: {expected}",
            hint=f"chmod {'700' if is_directory else '600'} '{path}'",
        )


def _valid_until(path: Path) -> datetime:
    certificate = _read(path)
    now, ends = datetime.now(UTC), certificate.not_valid_after_utc
    if now >= ends:
        raise InputError(
            f"the certificate '{path}' expired on {ends:%Y-%m-%d}",
            hint=f"remove '{path.parent}'; `lab cluster scheduler` makes new ones, to be copied to"
            " the other machines again",
        )
    if now < certificate.not_valid_before_utc:
        raise InputError(
            f"the certificate '{path}' is valid from {certificate.not_valid_before_utc:%Y-%m-%d}"
            " on: the clock of this machine, or of the one that made it, is wrong"
        )
    return ends


def _read(path: Path) -> Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"'{path}' is not a certificate in PEM: {error}") from error


def _check_key(directory: Path) -> None:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(directory / CA)
        context.load_cert_chain(directory / CERT, directory / KEY, password="")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InputError(
            f"'{directory / KEY}' is not the unencrypted private key of '{directory / CERT}':"
            f" {error}"
        ) from error


def refused(address: str, directory: Path, error: BaseException) -> HostError:
    """Return the error for an address where no scheduler of this certificate's cluster answers."""
    import ssl

    why, cause = str(error) or type(error).__name__, error
    while not isinstance(cause, ssl.SSLCertVerificationError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = f"what answers there is not of the same cluster ({cause.verify_message})"
    return HostError(
        f"no scheduler answers at {address} to the certificate in '{directory}': {why}",
        hint="`lab cluster local N` starts one here, `lab cluster scheduler` one for others; a "
        "scheduler takes only copies of its own certificate directory (--tls DIR)",
    )
