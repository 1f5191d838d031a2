"""``lab patch``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from lab.capabilities.matrix.command import follow, job_ended, write_pages
from lab.cli import completion
from lab.cli.app import BUGS, app
from lab.cli.commands.running import Jobs, Verbose, how_of
from lab.cli.display.again import command, counted
from lab.cli.options import AcceptExpired, Fresh, Json, console, print_json, share_option, warn

if TYPE_CHECKING:
    from lab.capabilities.matrix.file import CompiledMatrix
    from lab.capabilities.matrix.model import MatrixRun
    from lab.capabilities.patch.model import PatchResult
    from lab.host.images.series import Series
    from lab.run.options import RunOptions


@app.command(rich_help_panel=BUGS)
def patch(
    context: typer.Context,
    series: Annotated[
        str,
        typer.Argument(
            metavar="SERIES",
            help="An mbox, a directory of *.patch, or a git range: DIR:BASE..TIP, or with --tree"
            " BASE..TIP.",
            show_default=False,
        ),
    ],
    tree: Annotated[
        Path | None,
        typer.Option(
            "--tree", metavar="DIR", help="Git repository of a range.", show_default=False
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="md|mdadm",
            help="What the series changes. Without it, its paths decide.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str,
        typer.Option(
            "--image",
            metavar="NAME",
            help="Guest image, by name. Its kernel's or mdadm's source is patched.",
            autocompletion=completion.image_names,
        ),
    ] = "debian-12",
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="PACKAGE",
            help="Another kernel of the image's archive, such as linux-image-amd64.",
            show_default=False,
        ),
    ] = None,
    claims: Annotated[
        str | None,
        typer.Option(
            "--claims",
            metavar="NAME,...|none",
            help="Scenarios whose claims are checked, by default "
            "raid5-parity-last,degraded,faults.",
            show_default=False,
        ),
    ] = None,
    levels: Annotated[
        str | None,
        typer.Option(
            "--levels",
            metavar="N,...|none",
            help="Levels that fio verifies, by default 0,1,4,5,6,10.",
            show_default=False,
        ),
    ] = None,
    mdadm_tests: Annotated[
        Path | None,
        typer.Option(
            "--mdadm-tests", metavar="DIR", help="Run mdadm's own tests.", show_default=False
        ),
    ] = None,
    blktests: Annotated[
        Path | None,
        typer.Option(
            "--blktests", metavar="DIR", help="Run blktests' group md.", show_default=False
        ),
    ] = None,
    margin: Annotated[
        str,
        typer.Option(
            "--margin", metavar="SHARE", help="Largest difference of a value that counts as none."
        ),
    ] = "5%",
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            metavar="N",
            min=1,
            max=32,
            help="Trials of a cell in which something differs, by default 6. Each has its own seed,"
            " and a value must differ in all of them. In real time: trials of each cell, by default"
            " 1.",
            show_default=False,
        ),
    ] = None,
    expected: Annotated[
        str | None,
        typer.Option(
            "--expected",
            metavar="MATRIX",
            help="A matrix's name or file. Its known failures do not count as worse.",
            autocompletion=completion.matrix_names,
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print patches and jobs. Build and run nothing.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write a report: the table (patch.md, patch.json) and a page per run.",
            show_default=False,
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(
            "--junit",
            metavar="FILE",
            help="Write a JUnit XML report: a test case per check.",
            show_default=False,
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown",
            metavar="FILE",
            help="Write the table in Markdown, for a mail or a pull request.",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = "auto",
    accept_expired: AcceptExpired = False,
    fresh: Fresh = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Test a patch series for md or mdadm: run checks without and with it, and compare.

    md's modules, or mdadm, are built from the source of the image's own version. Checks: fio with
    verification on each level, claims of a few scenarios, and test suites that you name.

    Exit status: 1 if a check is worse or broken with the series, 2 if the series cannot be read,
    applied or built, 3 if a scenario could not be run.

    Examples:
        lab patch my.mbox
        lab patch patches/ --image debian-13 --markdown table.md
        lab patch ~/linux:v6.12..my-branch --levels 5,6 --claims none
        lab patch my.mbox --mdadm-tests ~/mdadm --junit junit.xml --out report
    """
    from lab.capabilities.patch import run as patching
    from lab.capabilities.patch.page import patch_page
    from lab.cli.display.progress import Spinner
    from lab.results.junit import check_file
    from lab.results.report import check_directory
    from lab.store.runs import now

    share = share_option("--margin", margin)
    how = how_of(jobs, accept_expired, keep=False, workloads=True, cold=False, fresh=fresh)
    suites = {"mdadm-tests": mdadm_tests, "blktests-md": blktests}
    asked = patching.Asked(
        series=series,
        tree=tree,
        against=_one_of("--against", against, ("md", "mdadm")),
        image=image,
        kernel=kernel,
        claims=_listed(claims, patching.CLAIMS),
        levels=_listed(levels, patching.LEVELS),
        suites={name: path for name, path in suites.items() if path is not None},
        trials=trials,
        accept_expired=how.accept_expired,
    )
    for level in asked.levels:
        _one_of("--levels", level, patching.LEVELS)
    known = patching.known_failures(expected)
    for option, path in (("--junit", junit), ("--markdown", markdown)):
        if path is not None:
            check_file(path, option)
    if out is not None:
        check_directory(out, "--out")
    with patching.read(asked) as (target, found), TemporaryDirectory(prefix="lab-patch-") as work:
        checks = patching.check(asked, Path(work))
        if plan:
            _plan(checks, target, found, how, as_json=as_json)
            return
        with Spinner("preparing both sides") as spinner:
            made = patching.built(asked, target, found, spinner.show)
        started = now()
        record, directory, repeated = None, None, None
        if not made.identical:
            names = (made.base.name, made.patched.name)
            version = made.base.manifest.kernel_version
            compiled = patching.matrix_of(asked, names, version, Path(work))
            record, directory = _run(
                context,
                compiled,
                how,
                lambda record: patching.more_trials(asked, made, record, share),
                verbose=verbose,
            )
            if tests := patching.tests_that_differ(asked, made, record, share, known):
                for name, differ in tests.items():
                    sys.stderr.write(f"{name}: runs again on both sides: {', '.join(differ)}\n")
                compiled = patching.matrix_of(asked, names, version, Path(work), tests)
                repeated, _ = _run(context, compiled, how, lambda _: {}, verbose=verbose)
        result = patching.result_of(
            *(asked, made, record, directory),
            started=started,
            margin=share,
            expected=known,
            repeated=repeated,
        )
    _write(result, out, junit, markdown)
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True))
    else:
        console().print(patch_page(result))
    raise typer.Exit(patching.exit_status(result))


def _one_of(option: str, given: str | None, known: Sequence[str]) -> str | None:
    from lab.core.errors import InputError

    if given is not None and given not in known:
        raise InputError(f"{option}: '{given}' is unknown: expected {' or '.join(known)}")
    return given


def _listed(given: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    if given is None:
        return default
    return () if given == "none" else tuple(filter(None, given.split(",")))


def _plan(
    compiled: CompiledMatrix, target: str, series: Series, how: RunOptions, *, as_json: bool
) -> None:
    """Print the patches, and the jobs of one side."""
    from lab.capabilities.matrix.jobs import host_of, plan_of
    from lab.capabilities.matrix.page import plan_page

    record = plan_of(compiled, host_of(how.jobs), accept_expired=how.accept_expired)
    titles = [patch.title for patch in series.patches]
    if as_json:
        jobs = record.model_dump(mode="json", by_alias=True)
        print_json({"against": target, "patches": titles, "each_side": jobs})
        return
    screen = console()
    for number, title in enumerate(titles, 1):
        screen.print(f"patch {number} of {len(titles)} for {target}: {title}")
    screen.print(plan_page(record))
    screen.print("Each job runs twice: without and with the series.")


def _run(
    context: typer.Context,
    compiled: CompiledMatrix,
    how: RunOptions,
    more: Callable[[MatrixRun], dict[str, dict[str, int]]],
    *,
    verbose: bool,
) -> tuple[MatrixRun, Path]:
    """Run the jobs on both images, then more trials where they differ; return the record and its
    directory.
    """
    from lab.capabilities.matrix import run as running
    from lab.capabilities.matrix.jobs import host_of, plan_of
    from lab.capabilities.matrix.record import MATRIX_RUNS
    from lab.capabilities.patch.command import kept_of_patch
    from lab.cli.display.again import told
    from lab.run import more_trials

    warn(*(job.compiled for job in compiled.jobs if job.compiled is not None))
    planned = plan_of(compiled, host_of(how.jobs), accept_expired=how.accept_expired)
    directory = running.begin(compiled, planned)
    options = running.Options(
        how=how,
        out=None,
        follow=lambda job, one: follow(job, one, how, None, verbose=verbose),
        ended=lambda job: job_ended(job, None, directory),
    )
    with told(lambda _: kept_of_patch(context, directory)):
        record = running.run_jobs(compiled, directory, MATRIX_RUNS.load(directory), options)
        if trials := more(record):
            for job, cells in trials.items():
                sys.stderr.write(f"{job}: something differs: {more_trials.told(cells)}\n")
            options = replace(
                options,
                then=lambda job, store, run: more_trials.add_trials(store, trials[job.id], run),
            )
            record = running.run_jobs(compiled, directory, running.again(record, trials), options)
    return record, directory


def _write(
    result: PatchResult, out: Path | None, junit: Path | None, markdown: Path | None
) -> None:
    from lab.capabilities.patch.cases import patch_junit
    from lab.capabilities.patch.page import as_markdown
    from lab.host.system import files

    if junit is not None:
        files.write(junit, patch_junit(result))
    if markdown is not None:
        files.write(markdown, as_markdown(result))
    if out is not None:
        files.make_directory(out)
        files.write(out / "patch.md", as_markdown(result))
        files.write(out / "patch.json", result.model_dump_json(by_alias=True, indent=1))
        if result.directory is not None:
            from lab.capabilities.matrix.run import matrix_result

            write_pages(out, matrix_result(Path(result.directory), trends=False))


def kept_of_patch(context: typer.Context, directory: Path) -> str:
    """Return the number of finished jobs of a patch series, and how to go on."""
    from lab.capabilities.matrix.model import JobState
    from lab.capabilities.matrix.record import MATRIX_RUNS

    jobs = MATRIX_RUNS.load(directory).jobs
    done = sum(job.state is JobState.DONE for job in jobs)
    return (
        f"{done} of {counted(len(jobs), 'job')} done. The same command goes on, since cells in"
        f" virtual time that are finished are not run again:\n  {command(context, None, ())}"
    )
