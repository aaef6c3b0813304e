"""The tables in docs/topologies.md are what the commands above them give. Run as a program, it prints them."""

from __future__ import annotations

from pathlib import Path

from windtunnel import simulate
from windtunnel.config.load import load_config, parse_set
from windtunnel.config.slo import parse_slo
from windtunnel.report.metrics import summarize

DOCUMENT = Path(__file__).parents[2] / "docs" / "topologies.md"
TRANSFER = ("cluster.transfer.bandwidth_gb_per_s=25", "cluster.transfer.kv_bytes_per_token=131072")
DEPLOYMENTS = {
    "do both": ("cluster.workers=4",),
    "2 prefill, 2 decode": ("cluster.prefill_workers=2", "cluster.decode_workers=2", *TRANSFER),
    "3 prefill, 1 decode": ("cluster.prefill_workers=3", "cluster.decode_workers=1", *TRANSFER),
}
FAULTS = "- {at_s: 61, what: crash, worker: 0, for_s: 30}\n"
POLICIES = {
    "nothing breaks": "",
    "worker 0 dies at 61 s, for 30 s; retried": "retry",
    "the same, failed": "fail",
}


def deployed(texts: tuple[str, ...]) -> tuple[dict[str, float], list[str]]:
    """The summary, and what each fault took."""
    assignments = [parse_set(text) for text in texts] + parse_slo("ttft=2s,itl=25ms")
    config = load_config(None, assignments, sample_workers=4).config
    result = simulate(config)
    lost = []
    for fault in result.record.faults:
        took = f"{len(fault.requests)} request, {fault.lost_tokens} tokens"
        lost.append(f"{took}; it has ended {fault.recovery_ms / 1000.0:.1f} s later" if fault.recovery_ms else took)
    return summarize(result.workload, result.record, config.slo), lost


def topology_row(name: str) -> str:
    found, _ = deployed(DEPLOYMENTS[name])
    return (
        f"| {name} | {found['mean_ttft_ms']:,.0f} / {found['p99_ttft_ms']:,.0f} ms "
        f"| {found['mean_itl_ms']:.1f} / {found['p99_itl_ms']:.1f} / {found['max_itl_ms']:.0f} ms "
        f"| {found['goodput_completed_requests']} of {found['num_requests']} |"
    )


def fault_row(name: str, faults: Path) -> str:
    policy = POLICIES[name]
    broken = (f"cluster.failures.faults={faults}", f"cluster.failures.on_crash={policy}") if policy else ()
    found, lost = deployed(("cluster.workers=4", *broken))
    return (
        f"| {name} | {found['completed_requests']} | {found['goodput_completed_requests']} "
        f"| {found['mean_ttft_ms']:,.0f} / {found['p99_itl_ms']:.0f} ms | {'; '.join(lost)} |".replace("|  |", "| |")
    )


def test_the_tables_are_what_the_commands_give(tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text(FAULTS)
    text = DOCUMENT.read_text()
    assert FAULTS in text
    rows = [topology_row(name) for name in DEPLOYMENTS] + [fault_row(name, faults) for name in POLICIES]
    assert [row for row in rows if row not in text] == []


if __name__ == "__main__":
    here = Path("faults.yaml")
    here.write_text(FAULTS)
    print("\n".join([*map(topology_row, DEPLOYMENTS), *(fault_row(name, here) for name in POLICIES)]))
