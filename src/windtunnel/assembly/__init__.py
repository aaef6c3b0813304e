"""Builds the parts that a configuration names, and runs them."""

from windtunnel.assembly.deployment import Result, simulate
from windtunnel.assembly.engines import build_engine
from windtunnel.assembly.pricing import build_kernels, build_timing
from windtunnel.assembly.requests import load_workload
from windtunnel.assembly.surroundings import build_router

__all__ = ["Result", "build_engine", "build_kernels", "build_router", "build_timing", "load_workload", "simulate"]
