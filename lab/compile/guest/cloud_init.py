"""The NoCloud seed with cloud-init's settings for the guest; slow modules are left out.

Source: cloud-init's documentation of the NoCloud data source and of the modules ``ssh``,
``users-groups`` and ``set_hostname``. JSON is YAML, so the user data is written as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A guest's name and keys; made on the host before the guest."""

    guest: str
    """The guest's id, also used as instance id."""
    host_name: str
    host_key_private: str
    """The guest's SSH host key, OpenSSH PEM."""
    host_key_public: str
    """The same key's public line, which the lab pins."""
    authorized_key: str
    """Public line of the lab's own key."""


USER = "lab"
"""The user for people. The lab itself logs in as root, to save a sudo per command."""


def user_data(identity: Identity) -> str:
    """Return ``user-data``: users, host key, name."""
    keys = [identity.authorized_key.strip()]
    config = {
        "disable_root": False,
        "ssh_deletekeys": True,
        "ssh_genkeytypes": [],
        "ssh_keys": {
            "ed25519_private": identity.host_key_private,
            "ed25519_public": identity.host_key_public.strip(),
        },
        "users": [
            {
                "name": USER,
                "shell": "/bin/bash",
                # "*" matches no password. A locked account would need PAM for a login by key.
                "lock_passwd": False,
                "passwd": "*",
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "ssh_authorized_keys": keys,
            },
            {"name": "root", "lock_passwd": False, "ssh_authorized_keys": keys},
        ],
    }
    return "#cloud-config\n" + json.dumps(config, indent=1) + "\n"


def meta_data(identity: Identity) -> str:
    """Return ``meta-data``: instance id and host name."""
    data = {"instance-id": identity.guest, "local-hostname": identity.host_name}
    return json.dumps(data) + "\n"
