"""Draw the terminal of the run in the tests: ``python -m docs.make_picture``.

``docs/raid5-parity-last.svg`` is the output of `lab results show RUN`. It needs nothing from the
network: rich's own template uses a web font; this one uses the viewer's font.
``docs/raid5-parity-last.cast`` is a recording in asciinema's format, version 2: the display of
`lab run scenario` from the stored events, eight times as fast, then the result on one screen.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console, RenderableType

from lab.cli.display.estimate import Estimate
from lab.cli.display.labels import labels_of
from lab.cli.display.live import screen
from lab.cli.display.watching import Watched
from lab.report.terminal.screen import result_page
from lab.results.documents import result_of
from lab.store.runs import RunStore
from tests.kept import story, unpacked

PICTURE = Path(__file__).parent / "raid5-parity-last.svg"
RECORDING = PICTURE.with_suffix(".cast")
WIDTH, HEIGHT = 80, 24
EVERY = 2
"""Seconds of the run from frame to frame."""
FASTER = 8
TEMPLATE = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture(run: RunStore) -> str:
    """Return the SVG of a run."""
    stored = run.load_run()
    page = result_page(
        result_of(run),
        title=stored.title,
        question=stored.question,
        claims=stored.claims,
        notes=stored.notes,
        overrides=stored.overrides,
        whole=False,
    )
    console = Console(
        record=True,
        width=80,
        file=io.StringIO(),
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(page)
    console.print()  # keeps the last line away from the frame
    return console.export_svg(
        title=f"lab up scenario {stored.scenario}", code_format=TEMPLATE, unique_id="lab"
    )


def _frame(shown: RenderableType) -> str:
    """Return what a terminal of 80 by 24 receives for one screen."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=WIDTH,
        height=HEIGHT,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(shown)
    return "\x1b[H\x1b[J" + out.getvalue().replace("\n", "\r\n")


def recording(run: RunStore) -> str:
    """Return a recording of a run's display and of its result."""
    cells, told = story(run)
    stored = run.load_run()
    kind = str(stored.environment.get("accelerator", "tcg"))
    labels = labels_of(cells, stored.scenario)
    watched = Watched(labels=labels, kind=kind, began=0.0, estimate=Estimate(cells, kind))
    frames, left = list[tuple[float, str]](), list(told)
    for second in range(0, int(told[-1][0]) + 1, EVERY):
        while left and left[0][0] <= second:
            watched.take(*left.pop(0))
        shown = screen(watched, second, width=WIDTH - 2, height=HEIGHT)
        frames.append((second / FASTER, _frame(shown)))
    result = result_page(
        result_of(run),
        title=stored.title,
        question=stored.question,
        claims=stored.claims,
        height=HEIGHT - 1,
    )
    frames.append((frames[-1][0] + EVERY / FASTER, _frame(result)))
    title = f"lab run scenario {stored.scenario}"
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": title}
    lines = [json.dumps(head), *(json.dumps([at, "o", text]) for at, text in frames)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Draw both."""
    with TemporaryDirectory() as directory:
        run = unpacked(PICTURE.stem, Path(directory))
        PICTURE.write_text(picture(run), encoding="utf-8")
        RECORDING.write_text(recording(run), encoding="utf-8")


if __name__ == "__main__":
    main()
