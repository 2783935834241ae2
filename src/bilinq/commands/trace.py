"""`bilinq trace`: create and show the digest of a cluster trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from bilinq.commands.shared import Json

if TYPE_CHECKING:
    from rich.table import Table

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
    if json:
        from bilinq.traces.digest_file import text

        typer.echo(text(digest), nl=False)
        return
    from bilinq.commands.tables import show as show_table

    for table in (_jobs(digest), _rewards(digest), _left_out(digest)):
        show_table(table)


def _jobs(digest: Digest) -> Table:
    """Return job classes with their requests."""
    from rich.table import Table

    title = f"Collections queued in the first {digest.until:g} s, their units counted by {digest.units}"
    table = Table(title=title, caption=f"{digest.source}; {digest.licence}")
    for name in ("job class", "collections", "units", "cpus", "memory"):
        table.add_column(name, justify="right")
    for i, kind in enumerate(digest.job_classes):
        table.add_row(str(i + 1), str(kind.collections), str(kind.units), f"{kind.cpus:.5f}", f"{kind.memory:.5f}")
    return table


def _rewards(digest: Digest) -> Table:
    """Return mean 1/CPI of machine classes (rows) and job classes (columns)."""
    from rich.table import Table

    caption = ""
    if digest.pairs:
        shares = [digest.bilinear_fit(unseen=unseen).explained for unseen in ("left out", "zero")]
        caption = f"a bilinear fit explains {shares[0]:.3f} of the variance of the pairs seen, "
        caption += f"{shares[1]:.3f} of all with zero for the others"
    table = Table(title="Mean 1/CPI of the pairs seen (observations)", caption=caption)
    for name in ("cpus", "memory", "machines", *(f"job class {i + 1}" for i in range(len(digest.job_classes)))):
        table.add_column(name, justify="right")
    cells = {(pair.job_class, pair.machine_class): f"{pair.mean:.3f} ({pair.count})" for pair in digest.pairs}
    for j, kind in enumerate(digest.machine_classes):
        seen = [cells.get((i, j), "·") for i in range(len(digest.job_classes))]
        table.add_row(f"{kind.cpus:.3f}", f"{kind.memory:.3f}", str(kind.machines), *seen)
    return table


def _left_out(digest: Digest) -> Table:
    """Return the data that the digest omits, with counts."""
    from rich.table import Table

    table = Table(title="Left out")
    table.add_column("what")
    table.add_column("count", justify="right")
    for entry in digest.left_out:
        table.add_row(entry.what, f"{entry.count:,}")
    if not digest.left_out:
        table.add_row("nothing", "0")
    return table
