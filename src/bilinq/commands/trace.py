"""`bilinq trace`: create and show the digest of a cluster trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bilinq.commands.shared import Json

if TYPE_CHECKING:
    from bilinq.traces import Digest

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """Digest a cluster trace (cluster-data-2019) and show it."""


@app.command()
def digest(
    path: Annotated[Path, Argument(help="Folder with the tables of the trace: CSV, JSON lines or Parquet.")],
    out: Annotated[Path, Option(help="File for the digest.")] = Path("digest.json"),
    until: Annotated[float, Option(help="End of the time window in seconds; traces begin at 600.")] = 5500.0,
    classes: Annotated[int, Option(help="Number of job classes, found by k-means.")] = 5,
    units: Annotated[
        str, Option(help="rows: count instance events, as in the paper; instances: count each instance once.")
    ] = "rows",
    seed: Annotated[int, Option(help="Seed of k-means.")] = 0,
    cell: Annotated[str | None, Option(help="Cell, a to h; required if a file contains several.")] = None,
    source: Annotated[str | None, Option(help="Source to record in the digest. [default: cluster-data-2019]")] = None,
    licence: Annotated[str | None, Option(help="Licence to record in the digest. [default: CC-BY 4.0]")] = None,
    json: Json = False,
) -> None:
    """Write aggregate figures of a trace to a small JSON file.

    The file contains no raw rows and no ids.
    """
    from bilinq.commands import tables
    from bilinq.traces import Digest

    options: dict[str, Any] = {"until": until, "classes": classes, "units": units, "seed": seed, "cell": cell}
    options |= {key: text for key, text in (("source", source), ("licence", licence)) if text is not None}
    with tables.Bar("files") as bar:
        found = Digest.of(path, **options, progress=bar)
    found.save(out)
    typer.echo(f"written to {out}", err=True)
    _show(found, json)


@app.command()
def show(
    file: Annotated[Path | None, Argument(help="A digest. [default: the one that comes with bilinq]")] = None,
    json: Json = False,
) -> None:
    """Show a digest: classes, rewards of pairs and omitted data.

    Also shows how well a bilinear model explains the rewards.
    """
    from bilinq.traces import Digest

    _show(Digest.shipped() if file is None else Digest.load(file), json)


def _show(digest: Digest, json: bool) -> None:
    from bilinq.commands import tables
    from bilinq.traces.digest_files import text

    if json:
        typer.echo(text(digest), nl=False)
        return
    _show_jobs(digest)
    _show_rewards(digest)
    entries = [(entry.what, f"{entry.count:,}") for entry in digest.left_out]
    tables.show_rows(("what", "count"), entries or [("nothing", "0")], "Left out")


def _show_jobs(digest: Digest) -> None:
    from bilinq.commands import tables

    title = f"Collections queued in the first {digest.until:g} s, their units counted by {digest.units}"
    rows = (
        (str(i), str(kind.collections), str(kind.units), f"{kind.cpus:.5f}", f"{kind.memory:.5f}")
        for i, kind in enumerate(digest.job_classes, 1)
    )
    columns = ("job class", "collections", "units", "cpus", "memory")
    tables.show_rows(columns, rows, title, caption=f"{digest.source}; {digest.licence}", left=0)


def _show_rewards(digest: Digest) -> None:
    """Print mean 1/CPI of machine classes (rows) and job classes (columns)."""
    from bilinq.commands import tables

    caption = ""
    if digest.pairs:
        shares = [digest.bilinear_fit(unseen=unseen).explained for unseen in ("left out", "zero")]
        caption = f"a bilinear fit explains {shares[0]:.3f} of the variance of the pairs seen, "
        caption += f"{shares[1]:.3f} of all with zero for the others"
    cells = {(pair.job_class, pair.machine_class): f"{pair.mean:.3f} ({pair.count})" for pair in digest.pairs}
    numbers = range(len(digest.job_classes))
    rows = (
        (f"{kind.cpus:.3f}", f"{kind.memory:.3f}", str(kind.machines), *(cells.get((i, j), "·") for i in numbers))
        for j, kind in enumerate(digest.machine_classes)
    )
    columns = ("cpus", "memory", "machines", *(f"job class {i + 1}" for i in numbers))
    tables.show_rows(columns, rows, "Mean 1/CPI of the pairs seen (observations)", caption=caption, left=0)
