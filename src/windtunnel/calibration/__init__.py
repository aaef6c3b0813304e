"""Fits the few physical parameters of a timing model to what somebody measured: passes of an engine, or benchmarks.

Observations are read here, predicted (passes by a sum, benchmarks by simulating the same closed loop), and compared.
The result is a configuration, so a calibration is used like any other option.
"""

from windtunnel.calibration.fit import Fit, calibrate
from windtunnel.calibration.observations import Benchmark, Observations, PassObservation
from windtunnel.calibration.reading import read_observations

__all__ = ["Benchmark", "Fit", "Observations", "PassObservation", "calibrate", "read_observations"]
