"""The NoCloud seed: what cloud-init in the guest is told, and nothing that costs it time.

Source: cloud-init's documentation of the NoCloud data source and of the modules ``ssh``,
``users-groups`` and ``set_hostname``. JSON is YAML, so the user data is written as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the guest is, and who may come in; made on the host before the guest exists."""

    guest: str
    """The guest's id, which is its instance id too."""
    host_name: str
    host_key_private: str
    """The guest's SSH host key, OpenSSH PEM."""
    host_key_public: str
    """The same key's public line, which the lab pins."""
    authorized_key: str
    """Public line of the lab's own key."""


USER = "lab"
"""The user for people; the lab itself works as root, which spares a sudo for each command."""


def user_data(identity: Identity) -> str:
    """``user-data``: users, host key, name."""
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
                # No password fits "*"; a locked account could not come in by key without PAM.
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
    """``meta-data``: instance id and host name."""
    data = {"instance-id": identity.guest, "local-hostname": identity.host_name}
    return json.dumps(data) + "\n"
