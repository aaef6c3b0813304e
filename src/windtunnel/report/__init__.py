"""Reports: pure functions of the record, the workload and the configuration.

Nothing here looks at an engine or a cluster, or decides what happened.

token_times: when tokens were emitted, from the pass columns.
distribution: statistics of samples with multiplicities.
metrics: latencies of each request, and the summary.
document: the JSON report. requests: one JSON line a request. table: the terminal.
"""
