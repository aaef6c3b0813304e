"""Routers: one file per policy, one protocol (`base.Router`)."""

from __future__ import annotations

from windtunnel.cluster.router.base import (
    QUEUED,
    RefusalError,
    RoutedRequest,
    Router,
    TrackingRouter,
    WorkerView,
)
from windtunnel.cluster.router.kv import KvRouter
from windtunnel.cluster.router.least_loaded import LeastLoadedRouter
from windtunnel.cluster.router.round_robin import RoundRobinRouter
from windtunnel.cluster.router.uniform import RandomRouter

__all__ = [
    "QUEUED",
    "KvRouter",
    "LeastLoadedRouter",
    "RandomRouter",
    "RefusalError",
    "RoundRobinRouter",
    "RoutedRequest",
    "Router",
    "TrackingRouter",
    "WorkerView",
]
