"""Draw the README's chart of the run in the tests: ``python -m docs.make_picture``.

It shows the output of `lab results show RUN`, as an SVG that needs nothing from the network. rich's
own template uses a web font; this one uses the viewer's font.
"""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from lab.report.terminal.screen import result_page
from lab.results.documents import result_of
from lab.store.runs import RunStore
from tests.kept import unpacked

PICTURE = Path(__file__).parent / "raid5-parity-last.svg"
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


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        drawn = picture(unpacked(PICTURE.stem, Path(directory)))
    PICTURE.write_text(drawn, encoding="utf-8")
