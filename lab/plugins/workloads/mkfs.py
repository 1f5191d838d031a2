"""Duration of making a file system on the array: mke2fs or mkfs.xfs with its options.

The command is timed up to its last fsync. Earlier contents are wiped first, untimed, and the new
file system is verified afterwards. The mke2fs of older posts had neither lazy initialisation nor
discard: ``options: [-E, "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]``.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import BaseModel, ValidationError, field_validator
from typing_extensions import override

from lab.core.errors import ToolError
from lab.core.stable import Stable, named
from lab.model.execution.procedure import words
from lab.model.plugin import Stream, WorkloadTool
from lab.model.result.measurement import SECONDS
from lab.model.scenario.outputs import Outputs
from lab.plugins.guest_programs._source import command

_FORCE: Final = {"ext2": "-F", "ext3": "-F", "ext4": "-F", "xfs": "-f"}


class MkfsParameters(Stable):
    """The program, and its options."""

    ALWAYS: ClassVar[frozenset[str]] = named("type options")

    type: Literal["ext2", "ext3", "ext4", "xfs"]
    """``mkfs.TYPE`` is run."""
    options: tuple[str, ...] = ()
    """Passed on as they are, one word each."""

    @field_validator("options")
    @classmethod
    def _words(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not option or not option.isprintable():
                raise ValueError(f"{option!r} is not a command-line word: write each option apart")
        return options


class _Timed(BaseModel):
    seconds: float


class Mkfs(WorkloadTool):
    """Seconds of one mkfs."""

    parameters = MkfsParameters
    programs = ("python3", "wipefs", "blkid")
    metrics = (SECONDS,)

    @override
    def script(self, p: MkfsParameters, target: str) -> str:
        make = [f"mkfs.{p.type}", "-q", _FORCE[p.type], *p.options, target]
        refusal = f"mkfs makes a file system on the array: leave filesystem out, {target} is none"
        return (
            f"{words('test', '-e', target)} || {{ {words('echo', refusal)} >&2; exit 1; }}\n"
            f"{words('wipefs', '--all', '--quiet', target)}\n"
            f"{command('timed', {'argv': make})}\n"
            f"{words('blkid', '-p', '-o', 'export', target)} || true\n"
        )

    @override
    def parse(self, p: MkfsParameters, outputs: Outputs) -> dict[str, float]:
        first, _, rest = outputs.stdout.partition("\n")
        try:
            timed = _Timed.model_validate_json(first)
        except ValidationError:
            said = (outputs.stderr.strip() or outputs.stdout.strip())[:300]
            raise ToolError(f"mkfs.{p.type} was not timed: {said!r}") from None
        facts = dict(line.split("=", 1) for line in rest.splitlines() if "=" in line)
        if facts.get("TYPE") != p.type:
            raise ToolError(
                f"mkfs.{p.type} ended, and blkid finds {facts.get('TYPE', 'no file system')!r} "
                f"there: {' '.join(p.options) or 'without options'}"
            )
        if timed.seconds <= 0:
            raise ToolError(f"mkfs.{p.type} was too fast to be measured")
        return {SECONDS.name: timed.seconds}

    @override
    def destroys(self, p: MkfsParameters) -> bool:
        return True

    @override
    def stream(self, p: MkfsParameters) -> Stream | None:
        return None


WORKLOAD: WorkloadTool = Mkfs()
