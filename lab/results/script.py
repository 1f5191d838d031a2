"""One cell as a shell script, with all files to run it again on a host without the lab."""

from __future__ import annotations

import json
from typing import Final

from lab import __version__
from lab.compile.guest.steps import Site
from lab.compile.guest_plan import planned_guest
from lab.core.errors import InputError
from lab.core.printable import printable
from lab.model.execution.plan import Plan
from lab.model.execution.procedure import SOURCES, AttachDisk, BuildPlugin, StartGuest
from lab.plugins import catalog
from lab.report.export.shell import as_script
from lab.results.again import again
from lab.results.documents import understood
from lab.results.judged import result_of
from lab.store.runs import RunStore, StoredCell, StoredRun

_DIRECTORY: Final = "@DIRECTORY@"
_QEMU: Final = "@QEMU@"
_IMAGE: Final = f"{_DIRECTORY}/image"
_HERE: Final = f"{_DIRECTORY}/script"
"""Placeholder in ``steps.sh`` for the directory with links to image and script."""

_RUN: Final = """\
#!/bin/sh
# Runs the cell {cell} of {run} again, and prints what its tools say.
#   sh run.sh IMAGE     IMAGE: the directory of the guest image '{image}', with {files}
# Needed: {qemu}, libvirt (virsh, embedded driver), xorriso, OpenSSH. See README.txt.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
IMAGE=$(cd "${{1:?the directory of the guest image {image}, with {files}}}" && pwd)
for file in {files}; do
  [ -f "$IMAGE/$file" ] || {{ echo "run.sh: there is no '$file' in '$IMAGE'" >&2; exit 2; }}
done
QEMU=$(command -v {qemu}) || {{ echo "run.sh: {qemu} is not installed" >&2; exit 3; }}
DIRECTORY=$(mktemp -d)
case "$DIRECTORY$QEMU" in
*[!A-Za-z0-9/._-]*) echo "run.sh: '$DIRECTORY' is no plain path: set TMPDIR" >&2; exit 2 ;;
esac
ln -s "$IMAGE" "$DIRECTORY/image"
ln -s "$here" "$DIRECTORY/script"
clean() {{
  [ ! -f "$DIRECTORY/run/qemu/lab.pid" ] || kill "$(cat "$DIRECTORY/run/qemu/lab.pid")" || true
  rm -rf "$DIRECTORY"
}}
trap clean EXIT
trap 'exit 130' INT TERM
# libvirt stays root only where root runs it.
keep=p
[ "$(id -u)" = 0 ] || keep='/^user = "root"$/d; /^group = "root"$/d; /^dynamic_ownership = 0$/d; p'
sed -n -e "s|@DIRECTORY@|$DIRECTORY|g; s|@QEMU@|$QEMU|g; $keep" \\
  "$here/steps.sh" > "$DIRECTORY/steps.sh"
sh -eu "$DIRECTORY/steps.sh"
"""

_README: Final = """\
{title}

One cell of the run {run} of the scenario {scenario}, which began {started}.

run.sh          runs it again elsewhere: sh run.sh IMAGE
steps.sh        every command of that, with @…@ where run.sh puts this host's paths
domain.xml      the guest, and disk-*.xml its disks, as libvirt takes them
scenario.yaml   the scenario's file; run.json the run; cell.json this cell, everything fixed
procedure.json  the commands as they ran; events.jsonl when; outcome.json how it ended
raw/            what the tools printed
result.json     what was made of that
environment.json  versions of everything it ran on; another host may measure other values
{image}
With the lab (version {version} made this) the same cell is:

  {command}

The accelerator was {accelerator}; a host that cannot do this needs another domain type in
steps.sh ("kvm" for KVM, "qemu" for software emulation).
"""


@understood
def script_of(run: RunStore, stored: StoredCell) -> dict[str, str]:
    """Return text by file name; ``InputError``: the cell is not finished."""
    files = run.texts(stored.id)
    if "outcome.json" not in files:
        raise InputError(f"the cell '{stored.id}' of '{run.id}' has not finished: it has no output")
    about = run.load_run()
    plan, boots = _plan(stored, about)
    (guest,) = plan.guests
    for step in (*guest.procedure.steps, *guest.cells[0].procedure.steps):
        match step:
            case StartGuest():
                files["domain.xml"] = step.xml
            case AttachDisk():
                files[f"disk-{step.serial}.xml"] = step.xml
            case BuildPlugin():
                for name in (step.source, *step.headers):
                    files[name] = (SOURCES / name).read_text(encoding="utf-8")
            case _:
                pass
    first = next(seeds[0] for seeds in about.points if stored in seeds)
    result = next(c for c in result_of(run).cells if c.id == first.id)
    script = as_script(plan).replace(str(SOURCES / "drive"), f"{_HERE}/drive")
    image = stored.cell.guest.image
    recipe = catalog.image_recipes().get(image)
    if recipe is not None:
        files["image.yaml"] = recipe.read_text(encoding="utf-8")
    words = {
        "run": _line(about.id),
        "cell": stored.id,
        "image": image,
        "files": " ".join(boots),
        "qemu": "qemu-system-x86_64",
    }
    files["run.sh"] = _RUN.format_map(words)
    files["steps.sh"] = printable(script)
    files["scenario.yaml"] = run.scenario_text()
    files["run.json"] = about.model_copy(update={"cells": (stored,)}).model_dump_json(indent=1)
    files["environment.json"] = json.dumps(about.environment, indent=1) + "\n"
    files["result.json"] = result.model_dump_json(indent=1) + "\n"
    files["README.txt"] = _README.format(
        title=_line(about.title),
        run=_line(about.id),
        scenario=_line(about.scenario),
        started=_line(about.started),
        version=__version__,
        image=f"image.yaml      the recipe of the guest image; `lab image build {image}` makes it\n"
        if recipe
        else "",
        command=again(stored, first, about, "./scenario.yaml"),
        accelerator=_line(str(about.environment.get("accelerator", "unknown")).upper()),
    )
    return files


def _line(text: str) -> str:
    """Return a text of the run on one line: a second line in ``run.sh`` would be a command."""
    return " ".join(printable(text).split())


def _plan(stored: StoredCell, about: StoredRun) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan of the cell in its own guest, and the files of its image."""
    image = about.environment.get("image") or {}
    direct = image.get("kernel") is not None  # an imported image has its own boot loader
    site = Site(
        directory=_DIRECTORY,
        accelerator=about.environment.get("accelerator", "tcg"),
        emulator=_QEMU,
        machine_type="pc",
        image_disk=f"{_IMAGE}/disk.qcow2",
        kernel=f"{_IMAGE}/kernel" if direct else None,
        initrd=f"{_IMAGE}/initrd" if direct else None,
        as_root=True,
    )
    plan = Plan(
        scenario=about.scenario,
        accelerator=about.environment.get("accelerator_reason", site.accelerator),
        notes=(),
        guest_directory=site.directory,
        private_key=f"{site.directory}/key",
        guests=(planned_guest(stored.cell.guest, [stored.cell], site),),
    )
    return plan, ("disk.qcow2", "kernel", "initrd") if direct else ("disk.qcow2",)
