"""cloud-init's settings: logins, and no slow modules."""

from __future__ import annotations

import json

from lab.compile.guest.cloud_init import Identity, meta_data, user_data

IDENTITY = Identity(
    guest="g1a2b3c",
    host_name="lab",
    host_key_private="-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END-----\n",
    host_key_public="ssh-ed25519 AAAAhost\n",
    authorized_key="ssh-ed25519 AAAAlab\n",
)


def config() -> dict[str, object]:
    first, rest = user_data(IDENTITY).split("\n", 1)
    assert first == "#cloud-config"
    found: dict[str, object] = json.loads(rest)
    return found


def test_the_host_key_is_the_one_that_was_made_and_no_other_is() -> None:
    assert config()["ssh_keys"] == {
        "ed25519_private": IDENTITY.host_key_private,
        "ed25519_public": "ssh-ed25519 AAAAhost",
    }
    assert config()["ssh_deletekeys"] is True
    assert config()["ssh_genkeytypes"] == []


def test_the_labs_key_lets_in_and_no_password_does() -> None:
    users = config()["users"]
    assert isinstance(users, list)
    assert {u["name"]: u["ssh_authorized_keys"] for u in users} == {
        name: ["ssh-ed25519 AAAAlab"] for name in ("lab", "root")
    }
    # "*" is no hash, so no password matches. A locked account ("!") would need PAM for a key login.
    assert {u.get("passwd", "*") for u in users} == {"*"}
    told = user_data(IDENTITY)
    assert not any(word in told for word in ("plain_text_passwd", "hashed_passwd", "chpasswd"))


def test_nothing_that_takes_time_is_asked_for() -> None:
    slow = {"packages", "package_update", "package_upgrade", "runcmd", "apt", "growpart", "ntp"}
    assert not slow & set(config())


def test_the_instance_is_the_guest() -> None:
    assert json.loads(meta_data(IDENTITY)) == {"instance-id": "g1a2b3c", "local-hostname": "lab"}
