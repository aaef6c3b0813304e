"""What a request remembers of its passes costs as much as there is of it."""

from __future__ import annotations

from windtunnel.engine.request import NO_BREAKS, EngineRequest
from windtunnel.workload.content import Content


def test_breaks_are_appended_and_never_copied() -> None:
    request = EngineRequest(0, Content.of([(1, 0, 4)]), 4, 4, 0.0)
    request.note_tokens(0, 0, 1.0)
    request.note_tokens(2, 2, 3.0)
    columns = request.break_before, request.break_after
    for number in range(4, 2000, 2):
        request.note_tokens(number, number, number + 1.0)
    assert (request.break_before, request.break_after) == columns
    assert request.break_before is columns[0]
    assert request.break_after is columns[1]
    assert list(zip(*columns, strict=True))[:2] == [(0, 2), (2, 4)]
    assert request.num_emitted == 1000
    assert not NO_BREAKS
