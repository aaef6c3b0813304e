"""What a trace holds and what is suspicious about it, without simulating anything."""

from windtunnel.inspection.facts import TraceFacts, describe_trace
from windtunnel.inspection.lint import Finding, lint

__all__ = ["Finding", "TraceFacts", "describe_trace", "lint"]
