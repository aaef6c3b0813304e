"""Carries out a simulation for a user: checks files, loads, simulates, writes, prints.

It decides what is written when something stops the simulation early: whatever happened until then, always, and a
line on stderr that says so. What a simulation or a report is, others decide.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from rich.console import Console

from windtunnel.assembly import Result, load_workload, simulate
from windtunnel.cli.interrupt import StopOnInterrupt
from windtunnel.cli.messages import print_error, print_line, print_note, print_plugin_traceback, time_in_words
from windtunnel.cli.output_files import STDOUT, print_result, problem_with_output, write_output
from windtunnel.cli.progress import SimulationProgress
from windtunnel.config.fields import FIELDS, known_path
from windtunnel.config.load import LoadedConfig
from windtunnel.config.origins import Origins
from windtunnel.config.schema import Config
from windtunnel.errors import InputError, PluginError, SimulationError
from windtunnel.inspection.misspelled import misspelled_names
from windtunnel.record.columns import Status
from windtunnel.report.document import build_report, encode_report, summarize_result
from windtunnel.report.requests import write_requests
from windtunnel.report.table import print_tables
from windtunnel.workload.session import Workload
from windtunnel.workload.traces.reading import one_line
from windtunnel.workload.traces.registry import FORMATS

_PIPE_WIDTH = 160  # of tables, where no terminal has one


def replay(loaded: LoadedConfig, *, config_file: str | None, quiet: bool) -> int:
    """Simulate, and write and print the results; returns the exit code.

    Args:
        loaded: what to simulate.
        config_file: where it was read from, so that no output overwrites it.
        quiet: print nothing but errors.

    Raises:
        InputError: a file or an object that the configuration names cannot be used. Nothing was simulated, unless
            the error is about writing.
    """
    config = loaded.config
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where people keep the router that they name as module:attribute
    _check_outputs(config, loaded.origins, config_file)
    terminal = Console(stderr=True)
    shows_progress = sys.stderr.isatty() and not quiet
    try:
        with ExitStack() as stack:
            if shows_progress:
                stack.enter_context(terminal.status("loading"))
            workload = load_workload(config)
        if workload.loading is not None and not quiet:
            for note in workload.loading.notes():
                print_line(note)
            _warn_of_misspellings(config, workload.loading.format)
        result = _simulate(config, workload, terminal if shows_progress else None)
    except InputError as error:
        raise _placed(error, loaded.origins) from error.__cause__
    except SimulationError as error:
        return _report_failure(error, quiet)
    summary = summarize_result(result)
    try:
        written = _write(result, summary)
    finally:  # a full disk does not take the tables with it
        if not quiet:
            _print_tables(result, summary)
    if loaded.is_sample and not quiet:
        print_note(f"no load given: this was the sample trace on {_workers(config)}; 'windtunnel run --help' has more")
    if result.record.interrupted != "interrupt":
        return 0
    print_line(f"interrupted at {_progress_in_words(result)}; {_written_in_words(written)}")
    return 130


def _check_outputs(config: Config, origins: Origins, config_file: str | None) -> None:
    output = config.output
    inputs = [*config.workload.path, *([config_file] if config_file is not None else [])]
    for field, path in (("output.report", output.report), ("output.requests", output.requests)):
        problem = problem_with_output(path, inputs) if path is not None else None
        if problem is not None:
            raise origins.error(field, problem)
    if output.report is None or output.requests is None:
        return
    if os.path.realpath(output.report) == os.path.realpath(output.requests):
        raise origins.error("output.requests", f"'{output.requests}' is where the report goes")


def _warn_of_misspellings(config: Config, trace_format: str) -> None:
    """Say which fields of the traces nothing reads although they look like one that is read."""
    known = FORMATS.get(trace_format)
    names = misspelled_names(config.workload.path, known.fields) if known is not None else {}
    if names:
        listed = ", ".join(f"'{name}' (did you mean '{likely}'?)" for name, likely in names.items())
        print_line(f"{config.workload.path[0]}: nothing reads {one_line(listed)}")


def _simulate(config: Config, workload: Workload, terminal: Console | None) -> Result:
    with StopOnInterrupt() as stop, ExitStack() as stack:
        # A simulation makes no garbage in cycles: looking for it among what has been imported only costs time.
        stack.callback(gc.unfreeze)
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        progress = stack.enter_context(SimulationProgress(terminal)) if terminal is not None else None
        return simulate(
            config,
            workload=workload,
            progress=progress.update if progress is not None else None,
            should_stop=stop.requested,
        )


def _placed(error: InputError, origins: Origins) -> InputError:
    """The same error, with the flag or the line of the file that the value came from."""
    if error.source is not None or error.field is None:
        return error
    # The readers of traces are given, and name, the options of a workload.
    field = error.field if known_path(error.field) in FIELDS else f"workload.{error.field}"
    return origins.error(field, error.message) if known_path(field) in FIELDS else error


def _report_failure(error: SimulationError, quiet: bool) -> int:
    """Write what had been simulated, then say what went wrong: the user's own traceback first, one line last."""
    written = "nothing had been simulated"
    if isinstance(error.partial, Result):
        partial = error.partial
        summary = summarize_result(partial)
        try:
            files = _write(partial, summary)
            written = f"stopped at {_progress_in_words(partial)}; {_written_in_words(files)}"
        except InputError as write_error:
            written = str(write_error)
        if not quiet:
            _print_tables(partial, summary)
    if isinstance(error, PluginError) and error.__cause__ is not None:
        print_plugin_traceback(error.__cause__)
    print_error(f"{error} ({written})")
    return 2 if isinstance(error, PluginError) else 1


def _write(result: Result, summary: Mapping[str, int | float]) -> list[str]:
    """Write the files that are asked for; returns what is where.

    Raises:
        InputError: one of them cannot be written; the other one has been.
    """
    output = result.config.output
    written = []
    failures = []
    if output.report is not None:
        report = encode_report(build_report(result, summary))
        try:
            write_output(output.report, lambda file: file.write(report))
            written.append(f"report written to {output.report}")
        except InputError as error:
            failures.append(error)
    if output.requests is not None:
        try:
            write_output(output.requests, lambda file: write_requests(result, file))
            written.append(f"requests written to {output.requests}")
        except InputError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return written


def _print_tables(result: Result, summary: Mapping[str, int | float]) -> None:
    output = result.config.output
    is_stdout_taken = STDOUT in (output.report, output.requests)
    stream = sys.stderr if is_stdout_taken else sys.stdout
    console = Console(file=stream)
    if not stream.isatty() and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    with console.capture() as tables:
        print_tables(result, console, summary)
    print_result(tables.get(), stream)


def _workers(config: Config) -> str:
    if config.cluster.is_split:
        return f"{config.cluster.prefill_workers} prefill and {config.cluster.decode_workers} decode workers"
    return "1 worker" if config.cluster.workers == 1 else f"{config.cluster.workers} workers"


def _progress_in_words(result: Result) -> str:
    status = result.record.requests.status
    ended = len(status) - status.count(Status.NOT_ARRIVED) - status.count(Status.UNFINISHED)
    return f"virtual time {time_in_words(result.record.end_ms)}: {ended:,} of {len(status):,} requests ended"


def _written_in_words(written: list[str]) -> str:
    return "partial " + ", ".join(written) if written else "no report written: --report was not given"
