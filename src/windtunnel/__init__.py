"""Windtunnel: what would this LLM serving deployment do under this load?"""

from windtunnel._version import __version__
from windtunnel.assembly import Result, load_workload, simulate
from windtunnel.cluster.router import RoutedRequest, Router, WorkerView
from windtunnel.config.schema import Config
from windtunnel.errors import InputError, PluginError, StalledError, WindtunnelError
from windtunnel.timing.base import PassShape, TimingModel
from windtunnel.workload.session import Workload

__all__ = [
    "Config",
    "InputError",
    "PassShape",
    "PluginError",
    "Result",
    "RoutedRequest",
    "Router",
    "StalledError",
    "TimingModel",
    "WindtunnelError",
    "WorkerView",
    "Workload",
    "__version__",
    "load_workload",
    "simulate",
]
