"""Requests of which only lengths are known: every prompt is unique, so that no cache ever serves any of it."""

from __future__ import annotations

from windtunnel.workload.content import Run


def unique_prompt(number: int, tokens: int) -> list[Run]:
    """A prompt whose content is that of request (or session) `number` alone."""
    return [(number, 0, tokens)]
