"""An event whose time moves: what follows a link, or several, until something happens there next."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.cluster.agenda import Agenda, Kind

INFINITE = float("inf")


class Alarm:
    """Rings once at the time that it was last set to, among the transfers of that instant.

    Attributes:
        at_ms: when it rings; infinite if it does not.
    """

    __slots__ = ("_agenda", "_ring", "at_ms")

    def __init__(self, agenda: Agenda, ring: Callable[[float], None]) -> None:
        self.at_ms = INFINITE
        self._agenda = agenda
        self._ring = ring

    def set(self, at_ms: float) -> None:
        """Ring at another time, or not at all if that is infinite."""
        if at_ms != self.at_ms:
            self.at_ms = at_ms
            if at_ms != INFINITE:
                self._agenda.add(at_ms, Kind.TRANSFER, Setting(self, at_ms))

    def ring(self, now_ms: float) -> None:
        self.at_ms = INFINITE
        self._ring(now_ms)


class Setting:
    """One time that an alarm was set to."""

    __slots__ = ("_alarm", "_at_ms")

    def __init__(self, alarm: Alarm, at_ms: float) -> None:
        self._alarm = alarm
        self._at_ms = at_ms

    def is_due(self) -> bool:
        return self._alarm.at_ms == self._at_ms

    def happen(self, now_ms: float) -> None:
        self._alarm.ring(now_ms)
