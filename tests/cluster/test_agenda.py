"""The agenda: what happens at a time of its own, and in which order at one instant."""

from __future__ import annotations

from windtunnel.cluster.agenda import Agenda, Kind

INFINITE = float("inf")


class Note:
    """Writes its name down when it happens, unless it has lost its point."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name
        self.due = True

    def is_due(self) -> bool:
        return self.due

    def happen(self, now_ms: float) -> None:
        self.log.append(f"{self.name} at {now_ms:g}")


def test_one_instant_goes_by_kind_then_rank_then_entry() -> None:
    log: list[str] = []
    agenda = Agenda()
    agenda.add(5.0, Kind.TIMEOUT, Note(log, "client 9"), rank=9)
    agenda.add(5.0, Kind.TIMEOUT, Note(log, "client 2"), rank=2)
    agenda.add(5.0, Kind.TRANSFER, Note(log, "first transfer"))
    agenda.add(5.0, Kind.TRANSFER, Note(log, "second transfer"))
    agenda.add(5.0, Kind.WORKER_READY, Note(log, "worker"))
    agenda.add(5.0, Kind.FAULT, Note(log, "fault"))
    agenda.add(4.0, Kind.TIMEOUT, Note(log, "early"), rank=1)
    agenda.happen(5.0)
    names = [line.removesuffix(" at 5") for line in log]
    assert names == ["early", "fault", "worker", "first transfer", "second transfer", "client 2", "client 9"]
    assert agenda.next_ms() == INFINITE


def test_what_lost_its_point_neither_happens_nor_moves_the_clock() -> None:
    log: list[str] = []
    agenda = Agenda()
    stale = Note(log, "stale")
    agenda.add(1.0, Kind.TRANSFER, stale)
    agenda.add(3.0, Kind.TRANSFER, Note(log, "live"))
    stale.due = False
    assert agenda.next_ms() == 3.0
    agenda.happen(2.0)
    assert log == []


def test_a_tick_waits_until_it_is_asked_for() -> None:
    log: list[str] = []
    agenda = Agenda()
    agenda.add(1.0, Kind.TICK, Note(log, "tick"))
    assert agenda.has_only_ticks()
    agenda.happen(1.0)
    assert log == []
    assert agenda.tick(1.0)
    assert log == ["tick at 1"]
    assert not agenda.tick(1.0)
