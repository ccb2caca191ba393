"""`heet`: the command for people. Each command is a module; the one that is asked for is the only one imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from heet_elastic import __version__
from heet_elastic.cli.errors import run

COMMANDS: dict[str, tuple[str, bool]] = {
    "up": ("heet_elastic.cli.up:up", True),
    "down": ("heet_elastic.cli.up:down", True),
    "submit": ("heet_elastic.cli.submit:submit", True),
    "sweep": ("heet_elastic.cli.submit:sweep", True),
    "wait": ("heet_elastic.cli.wait:wait", True),
    "unfinished": ("heet_elastic.cli.unfinished:unfinished", True),
    "logs": ("heet_elastic.cli.logs:logs", True),
    "status": ("heet_elastic.cli.status:status", True),
    "jobs": ("heet_elastic.cli.status:jobs", True),
    "hosts": ("heet_elastic.cli.status:hosts", True),
    "explain": ("heet_elastic.cli.explain:explain", True),
    "pause": ("heet_elastic.cli.control:pause", True),
    "resume": ("heet_elastic.cli.control:resume", True),
    "cancel": ("heet_elastic.cli.control:cancel", True),
    "priority": ("heet_elastic.cli.control:priority", True),
    "release": ("heet_elastic.cli.control:release", True),
    "probe": ("heet_elastic.cli.probe:probe", False),
    "doctor": ("heet_elastic.cli.doctor:doctor", False),
    "evaluate": ("heet_elastic.cli.evaluate:evaluate", False),
    "simulate": ("heet_elastic.cli.simulate:simulate", True),
    "trace": ("heet_elastic.cli.trace:trace", True),
}
"""Commands in the order of `heet --help`: where they are, and whether they get the options about etcd from here."""


def load(name: str) -> Callable[..., Any]:
    """The function behind a command, with the options about etcd where it wants them."""
    path, needs_access = COMMANDS[name]
    module, function = path.split(":")
    command: Callable[..., Any] = getattr(import_module(module), function)
    if needs_access:
        from heet_elastic.cli.access import with_access

        command = with_access(command)
    return command


def build(names: Sequence[str]) -> typer.Typer:
    """A typer application with these commands."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(options)
    for name in names:
        app.command(name)(load(name))
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heet {__version__}")
        raise typer.Exit


def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Elastic training on mixed GPUs: what runs where, and why."""
    del version  # its callback has printed it


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Help and mistakes need to know all commands; everything else just the one that is asked for.
    asked = [words[0]] if words and words[0] in COMMANDS else list(COMMANDS)
    sys.exit(run(lambda: build(asked)(args=words, prog_name="heet")))


if __name__ == "__main__":
    main()
