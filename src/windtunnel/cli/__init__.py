"""The command `windtunnel`: reads the command line and hands over to one module per command.

It decides how a command ends: exit code 0, or one plain line on stderr and 2 for a mistake of its user, 130 after
Ctrl-C. A traceback of this package is a fault of this package.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated

import typer

from windtunnel._version import __version__
from windtunnel.cli.calibrate import calibrate_command
from windtunnel.cli.convert import convert
from windtunnel.cli.inspect import inspect
from windtunnel.cli.messages import print_error, print_plugin_traceback
from windtunnel.cli.run import run
from windtunnel.cli.validate import validate
from windtunnel.errors import InputError, closest

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("calibrate", short_help="Fit a timing model to measurements of a real deployment.")(calibrate_command)
app.command("convert", short_help="Write a trace in another format, a part of it, or at another rate.")(convert)
app.command("inspect", short_help="Show what a trace holds, and lint it.")(inspect)
app.command("run", short_help="Simulate a deployment under a load and report what it would do.")(run)
app.command("validate", short_help="Show how far simulations are from real measurements.")(validate)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"windtunnel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def windtunnel(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """What would this LLM serving deployment do under this load? Simulates engines and clusters; needs no GPU."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default this process's own, and return its exit code."""
    try:
        code = app(args=arguments, prog_name="windtunnel", standalone_mode=False)
    except InputError as error:
        if error.__cause__ is not None:  # a module of the user that cannot be imported
            print_plugin_traceback(error.__cause__)
        print_error(error)
        return 2
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except MemoryError:
        print_error("out of memory: the load or the deployment is too large for this machine")
        return 2
    except OSError as error:  # standard output or the current directory is gone, a name cannot be one of a file, ...
        print_error(f"{error.filename or 'output'}: {error.strerror or error}")
        return 2
    except Exception as error:
        if not hasattr(error, "format_message"):  # a usage error; their base class is not public in all releases
            raise
        print_error(_usage_message(error))
        return 2
    return code if isinstance(code, int) else 0


def _usage_message(error: Exception) -> str:
    """A mistake that typer found, as one line that names the closest valid option or command."""
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    unknown = re.match(r"No such (option|command):? (?:'(.+?)'|(\S+))", message)
    context = getattr(error, "ctx", None)
    if unknown is None or context is None:
        return message[:1].lower() + message[1:].rstrip(".")
    kind, name = unknown[1], unknown[2] or unknown[3]
    if kind == "command":
        return f"unknown command '{name}': {closest(name, context.command.list_commands(context))}"
    options = [option for parameter in context.command.get_params(context) for option in parameter.opts]
    close = get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else f"'{context.command_path} --help' lists the valid ones"
    return f"unknown option '{name}': {hint}"
