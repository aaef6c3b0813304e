"""Does the suite notice? Breaks one line of the vLLM engine at a time and runs the tests that should fail.

    python tests/mutants.py [WORD ...]

tries all mutants of mutants.yaml, or those whose description contains one of the words. Each is found by the
recorded runs, by a fixed number of random scenarios, or by nobody: then the line makes no difference, and the list
says why (`equivalent`), or a test is missing and it is printed as ALIVE. Exits with 1 if any is. Not part of the
suite: it takes half an hour. As a pytest plugin (`-p mutants`) this module turns shrinking off, which is of no use
here.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml
from hypothesis import Phase, settings

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "windtunnel"
FUZZ_FACTOR = 6  # of the quick suite's number of random scenarios
TIMEOUT_S = 240
MEMORY_BYTES = 4 << 30
DEEPEST_INDENT = 40
SUITES = {
    "recorded runs": ["golden/test_goldens.py"],
    "random scenarios": ["engine/test_block_pool.py", "engine/test_decode_group.py", "engine/test_against_oracle.py"],
}


@dataclass(frozen=True)
class Mutant:
    """A part of one line, or whole lines at any indentation, and what to put in their place."""

    file: str
    what: str
    before: str
    after: str
    equivalent: str = ""

    def break_source(self, source: str) -> str:
        """The source with this mutation.

        Raises:
            ValueError: what it changes is not there exactly once.
        """
        places = [(self.before, self.after)]
        if self.before.endswith("\n"):
            margins = [" " * indent for indent in range(0, DEEPEST_INDENT, 4)]
            places = [("\n" + textwrap.indent(self.before, m), "\n" + textwrap.indent(self.after, m)) for m in margins]
        found = [(before, after) for before, after in places if before in source]
        if len(found) != 1 or source.count(found[0][0]) != 1:
            raise ValueError(f"mutant {self.what!r}: not exactly once in {self.file}: {self.before!r}")
        return source.replace(*found[0])


def read_mutants() -> list[Mutant]:
    """All mutants of mutants.yaml."""
    listed = yaml.safe_load((TESTS / "mutants.yaml").read_text(encoding="utf-8"))
    return [Mutant(file, **row) for file, rows in listed.items() for row in rows]


def found_by(mutant: Mutant) -> str:
    """Which suite notices, "" if none does."""
    broken = mutant.break_source((PACKAGE / mutant.file).read_text(encoding="utf-8"))
    compile(broken, mutant.file, "exec")  # a mutant that is no program would be found by everybody
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        package = Path(folder) / "windtunnel"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / mutant.file).write_text(broken, encoding="utf-8")
        for name, files in SUITES.items():
            if not suite_passes(Path(folder), files):
                return name
    return ""


def suite_passes(package_folder: Path, files: list[str]) -> bool:
    """Whether test files pass with the package in a folder; not if they take too long or too much memory."""
    options = ["-q", "-x", "-p", "mutants", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{package_folder}{os.pathsep}{TESTS}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "WINDTUNNEL_FUZZ": str(FUZZ_FACTOR),
    }
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *(str(TESTS / file) for file in files)],
            cwd=TESTS.parent,
            env=environment,
            capture_output=True,
            timeout=TIMEOUT_S,
            preexec_fn=_limit_memory,
        )
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def pytest_configure() -> None:
    """As a plugin: one failure is enough, however large."""
    settings.register_profile("mutants", phases=[Phase.generate])
    settings.load_profile("mutants")


def main(words: list[str]) -> int:
    """Try the mutants; 1 if one is alive that should not be or does not fit, or if the tests fail without any."""
    if not all(suite_passes(PACKAGE.parent, files) for files in SUITES.values()):
        print("the tests fail without a mutant")
        return 1
    chosen = [mutant for mutant in read_mutants() if not words or any(word in mutant.what for word in words)]
    alive = 0
    stale = 0
    for mutant in chosen:
        try:
            name = found_by(mutant)
        except ValueError as error:
            print(error, flush=True)
            stale += 1
            continue
        if name:
            print(f"found by {name}: {mutant.what}", flush=True)
        elif mutant.equivalent:
            print(f"equivalent: {mutant.what}: {mutant.equivalent}", flush=True)
        else:
            print(f"ALIVE: {mutant.what}", flush=True)
            alive += 1
    print(f"{len(chosen)} mutants, {alive} alive, {stale} that do not fit the code")
    return 1 if alive or stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
