"""Routers: one file per policy, one protocol (`base.Router`)."""

from __future__ import annotations

from windtunnel.cluster.router.base import RoutedRequest, Router, WorkerView
from windtunnel.cluster.router.least_loaded import LeastLoadedRouter
from windtunnel.cluster.router.round_robin import RoundRobinRouter
from windtunnel.cluster.router.uniform import RandomRouter

__all__ = ["LeastLoadedRouter", "RandomRouter", "RoundRobinRouter", "RoutedRequest", "Router", "WorkerView"]
