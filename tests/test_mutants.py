"""The list of mutants goes with the sources: each has exactly one place to break, or it tries nothing."""

from pathlib import Path

import pytest

from mutants import PACKAGE, Mutant, read_mutants


@pytest.mark.parametrize("mutant", read_mutants(), ids=lambda mutant: mutant.what)
def test_a_mutant_has_its_place_in_the_source(mutant: Mutant) -> None:
    source = Path(PACKAGE / mutant.file).read_text(encoding="utf-8")
    broken = mutant.break_source(source)
    assert broken != source
    compile(broken, mutant.file, "exec")
