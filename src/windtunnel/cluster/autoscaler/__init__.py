"""Autoscalers: one file per policy, one protocol (`base.Autoscaler`)."""

from __future__ import annotations

from windtunnel.cluster.autoscaler.base import (
    Autoscaler,
    ClusterSnapshot,
    PoolSnapshot,
    ScalingDecision,
    TrafficWindow,
    WorkerSnapshot,
)
from windtunnel.cluster.autoscaler.slo import SloAutoscaler
from windtunnel.cluster.autoscaler.threshold import ThresholdAutoscaler

__all__ = [
    "Autoscaler",
    "ClusterSnapshot",
    "PoolSnapshot",
    "ScalingDecision",
    "SloAutoscaler",
    "ThresholdAutoscaler",
    "TrafficWindow",
    "WorkerSnapshot",
]
