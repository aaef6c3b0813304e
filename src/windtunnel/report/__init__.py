"""Tables, JSON and statistics: pure functions of the record."""

from windtunnel.report.document import build_report, encode_report
from windtunnel.report.metrics import summarize
from windtunnel.report.requests import write_requests
from windtunnel.report.table import print_tables

__all__ = ["build_report", "encode_report", "print_tables", "summarize", "write_requests"]
