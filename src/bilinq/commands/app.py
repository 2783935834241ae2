"""The command line: one file per command. Slow imports are made by the command that needs them."""

import warnings
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from bilinq.commands import jobs, keys, settings, trace
from bilinq.commands.allocate import allocate
from bilinq.commands.backup import backup, restore
from bilinq.commands.contest import contest
from bilinq.commands.development import bench, warm
from bilinq.commands.distributed import distributed
from bilinq.commands.doctor import doctor
from bilinq.commands.gateway import gateway
from bilinq.commands.init import init
from bilinq.commands.paper import paper
from bilinq.commands.replay import replay
from bilinq.commands.serve import serve
from bilinq.commands.shared import BAD_INPUT
from bilinq.commands.shared import INTERRUPTED as INTERRUPTED
from bilinq.commands.simulate import simulate
from bilinq.commands.submit import submit, work
from bilinq.commands.sweep import sweep
from bilinq.commands.top import top
from bilinq.errors import BilinqError, Starting, Unavailable
from bilinq.extras import optional_imports

EXIT_CODES = """
Exit codes: 0 success; 1 something that was asked for was not done, such as a job that failed; 2 bad input, a missing
package, or an answer of the service that is an error; 130 stopped by Ctrl-C.
"""


class Commands(TyperGroup):
    """The commands; errors of bilinq become one line on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            try:
                with optional_imports():
                    return super().invoke(ctx)
            except BilinqError as error:
                typer.echo(f"error: {error}{_advice(error)}", err=True)
                raise typer.Exit(BAD_INPUT) from None


def _advice(error: BilinqError) -> str:
    """Return what to do about an error, if its message cannot know it."""
    if isinstance(error, Starting):
        return "; repeat the command when the service is ready"
    unreachable = isinstance(error, Unavailable) and str(error).startswith("cannot reach")
    return "; start a service there (bilinq serve), or give the address of one with --url" if unreachable else ""


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {message}", err=True)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"bilinq {version('bilinq')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A scheduler that learns which kind of job pays best on which kind of server while every queue stays short."""


for command in (
    init,
    doctor,
    allocate,
    simulate,
    sweep,
    replay,
    contest,
    paper,
    distributed,
    serve,
    gateway,
    submit,
    work,
    top,
    backup,
    restore,
    warm,
):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)
app.add_typer(jobs.app, name="jobs")
app.add_typer(settings.app, name="settings")
app.add_typer(keys.app, name="keys")
app.add_typer(trace.app, name="trace")


if __name__ == "__main__":
    app()
