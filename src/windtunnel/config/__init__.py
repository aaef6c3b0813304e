"""What a simulation is made of: one schema, and the ways to fill it."""

from windtunnel.config.load import dump_config, load_config, load_config_file
from windtunnel.config.schema import (
    SAMPLE_TRACE,
    ClusterConfig,
    Config,
    OutputConfig,
    RouterConfig,
    SglangConfig,
    SloConfig,
    SyntheticConfig,
    TimingConfig,
    VllmConfig,
    WorkloadConfig,
)

__all__ = [
    "SAMPLE_TRACE",
    "ClusterConfig",
    "Config",
    "OutputConfig",
    "RouterConfig",
    "SglangConfig",
    "SloConfig",
    "SyntheticConfig",
    "TimingConfig",
    "VllmConfig",
    "WorkloadConfig",
    "dump_config",
    "load_config",
    "load_config_file",
]
