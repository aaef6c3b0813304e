"""What the documents show is run: every command, every piece of Python, and the table in the README."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from windtunnel.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document, language):
    return [body for name, body in BLOCK.findall(document.read_text()) if name == language]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a trace, and the modules that the documents name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sample = ROOT / "src" / "windtunnel" / "data" / "mooncake_conversation_sample.jsonl"
    (tmp_path / "requests.txt").write_text("0.5;100;3\n0.7;200;4\n")
    (tmp_path / "trace.jsonl").write_text("".join(sample.read_text().splitlines(keepends=True)[:60]))
    sweep = ROOT / "src" / "windtunnel" / "validation" / "data" / "dynamo-h200-llama-3.1-8b-fp8.json"
    (tmp_path / "h200-sweep.json").write_text(sweep.read_text())
    for document in DOCUMENTS:
        for body in [*blocks(document, "python"), *blocks(document, "yaml")]:
            if body.startswith("# "):
                (tmp_path / body.splitlines()[0].removeprefix("# ")).write_text(body)
    yield tmp_path
    for module in ("my_router", "my_autoscaler", "sticky", "work_ahead", "linear", "semicolons", "rush"):
        sys.modules.pop(module, None)


COMMANDS = [
    line.split("#")[0].strip()
    for document in DOCUMENTS
    for body in blocks(document, "sh")
    for line in body.splitlines()
    if line.startswith("windtunnel ")
]


def test_the_documents_have_commands():
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_the_documents_runs(command, workplace, capsys):
    assert main(shlex.split(command)[1:]) == 0
    assert "".join(capsys.readouterr())  # convert writes files, and says so on stderr


def test_the_python_of_the_readme_runs(workplace, capsys):
    sys.path.insert(0, str(workplace))
    programs = [body for body in blocks(ROOT / "README.md", "python") if not body.startswith("# ")]
    assert programs
    for program in programs:
        exec(compile(program, "README.md", "exec"), {})
        assert float(capsys.readouterr().out) > 0


def test_the_table_in_the_readme_is_what_is_printed(capsys):
    (shown,) = blocks(ROOT / "README.md", "text")
    assert main(["run"]) == 0
    printed = capsys.readouterr().out
    kept = [line for line in printed.splitlines() if not line.startswith("Simulated in")]
    assert "\n".join(line.rstrip() for line in kept).strip() == shown.strip()


def test_the_first_commands_of_the_readme_are_the_two_that_a_fresh_machine_needs():
    install, tests = blocks(ROOT / "README.md", "sh")[0].splitlines()
    assert install.split("#")[0].strip().endswith("pip install -q . && .venv/bin/windtunnel run")
    assert tests.split("#")[0].strip() == "./test"
    assert "\n./test " in (ROOT / ".ci" / "run").read_text()


def test_the_map_names_only_files_that_exist():
    text = (ROOT / "docs" / "map.md").read_text()
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", text))
    package = ROOT / "src" / "windtunnel"
    missing = [name for name in sorted(named) if not (package / name).exists() and not (ROOT / name).exists()]
    missing = [name for name in missing if not any(package.rglob(name))]
    assert missing == []
