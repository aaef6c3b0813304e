"""Output files are checked first, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windtunnel.cli import main
from windtunnel.cli.output_files import problem_with_output, write_output
from windtunnel.errors import InputError

SMALL = ["run", "--isl", "10", "--osl", "1", "--requests", "1", "--rate", "1"]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report", "no/r.json"], "--report: cannot write 'no/r.json': no directory 'no'"),
        (["--report", "folder"], "--report: 'folder' is a directory, expected a file"),
        (["--requests-out", "folder/"], "--requests-out: 'folder/' is a directory, expected a file"),
        (["--report", "x", "--requests-out", "./x"], "--requests-out: './x' is where the report goes"),
        (["--report", "-", "--requests-out", "-"], "--requests-out: '-' is where the report goes"),
        (["--set", "output.report=no/r"], "--set output.report: cannot write 'no/r': no directory 'no'"),
        (
            ["--config", "c.yaml", "--report", "c.yaml"],
            "--report: 'c.yaml' is read by this command and would be overwritten",
        ),
        (["--config", "wrong.yaml"], "wrong.yaml:2: output.requests: cannot write 'no/r.jsonl': no directory 'no'"),
        (["--report", "file/r.json"], "--report: cannot write 'file/r.json': no directory 'file'"),
    ],
)
def test_unwritable_output_is_found_before_the_simulation(arguments, message, capsys, monkeypatch):
    Path("folder").mkdir()
    Path("file").touch()
    Path("c.yaml").write_text("seed: 1\n")
    Path("wrong.yaml").write_text("output:\n  requests: no/r.jsonl\n")
    monkeypatch.setattr("windtunnel.cli.replay.load_workload", lambda config: pytest.fail("work was begun"))
    before = sorted(os.listdir())
    assert main([*SMALL, *arguments]) == 2
    assert capsys.readouterr().err == f"windtunnel: error: {message}\n"
    assert sorted(os.listdir()) == before


def test_a_trace_is_not_overwritten(capsys):
    row = '{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}\n'
    Path("t.jsonl").write_text(row)
    Path("link").symlink_to("t.jsonl")
    assert main(["run", "t.jsonl", "--requests-out", "link"]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: error: --requests-out: 'link' is read by this command and would be overwritten\n"
    )
    assert Path("t.jsonl").read_text() == row


def test_a_directory_that_takes_no_files():
    assert problem_with_output("/proc/report.json", []) == "cannot write '/proc/report.json': No such file or directory"


def test_a_write_protected_file(monkeypatch):
    Path("r.json").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to anything
    assert problem_with_output("r.json", []) == "cannot write 'r.json': it is write-protected"


def test_a_check_leaves_nothing_behind(tmp_path):
    assert problem_with_output("r.json", []) is None
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    Path("r.json").write_text("old")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError) as caught:
        write_output("r.json", fail)
    assert str(caught.value) == "r.json: cannot be written: No space left on device"
    assert Path("r.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_an_interrupt_in_writing_leaves_the_old_file(tmp_path):
    Path("r.json").write_text("old")

    def interrupt(file):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_output("r.json", interrupt)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_replaced_file_keeps_its_mode_and_a_link_its_place(tmp_path):
    Path("real").write_text("old")
    Path("real").chmod(0o640)
    Path("link").symlink_to("real")
    write_output("link", lambda file: file.write(b"new"))
    assert Path("link").is_symlink()
    assert Path("real").read_text() == "new"
    assert Path("real").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_stays_a_device():
    assert problem_with_output("/dev/null", []) is None
    write_output("/dev/null", lambda file: file.write(b"x"))
    assert Path("/dev/null").is_char_device()


def test_tables_are_printed_although_the_report_cannot_be_written(monkeypatch, capsys):
    def fail(path, write):
        raise InputError("cannot be written: No space left on device", source=path)

    monkeypatch.setattr("windtunnel.cli.replay.write_output", fail)
    assert main([*SMALL, "--report", "r.json"]) == 2
    captured = capsys.readouterr()
    assert "1 completed" in captured.out
    assert captured.err == "windtunnel: error: r.json: cannot be written: No space left on device\n"
