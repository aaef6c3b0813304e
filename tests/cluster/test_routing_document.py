"""The table in docs/routing.md is what the commands above it give. Run as a program, it prints the table."""

from __future__ import annotations

import re
from pathlib import Path

from windtunnel import simulate
from windtunnel.config.load import load_config, parse_set
from windtunnel.report.metrics import summarize

DOCUMENT = Path(__file__).parents[2] / "docs" / "routing.md"
ROUTERS = (
    "round-robin",
    "random",
    "least-loaded",
    "power-of-two",
    "prefix-hash",
    "weighted",
    "kv",
    "kv, overlap_credit=0",
    "kv, index=approximate",
    "kv, event_delay_ms=1000",
    "kv, prefill_load_decay=true",
    "kv, tie_break=random",
    "kv, prefill_load_scale=4",
)


def row(router: str) -> str:
    kind, _, option = router.partition(", ")
    texts = ["workload.spread=true", "cluster.workers=4", f"cluster.router.kind={kind}"]
    if option:
        texts.append(f"cluster.router.{option}")
    config = load_config(None, [parse_set(text) for text in texts], sample_workers=4).config
    result = simulate(config)
    found = summarize(result.workload, result.record, config.slo)
    name = f"`{kind}`" + (f", `{option}`" if option else "")
    return (
        f"| {name} | {found['mean_ttft_ms']:.0f} | {found['p99_ttft_ms']:,.0f} "
        f"| {found['mean_tpot_ms']:.2f} | {found['prefix_cache_hit_ratio']:.1%} |"
    )


def test_the_table_of_routers_is_what_they_give() -> None:
    shown = re.findall(r"^\| `[a-z].*\|.*%\s*\|$", DOCUMENT.read_text(), re.MULTILINE)
    assert shown == [row(router) for router in ROUTERS]


if __name__ == "__main__":
    print("\n".join(map(row, ROUTERS)))
