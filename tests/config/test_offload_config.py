"""What a user may say about KV tiers, and what a mistake is answered with."""

from __future__ import annotations

import pytest

from windtunnel.assembly import simulate
from windtunnel.config.fields import FIELDS
from windtunnel.config.load import load_config, parse_set
from windtunnel.errors import InputError
from windtunnel.report.document import build_report
from windtunnel.report.requests import request_records

HOST = "engine.offload.host.num_blocks=100"
BYTES = "engine.offload.kv_bytes_per_token=1000"


def config_of(*assignments: str):
    return load_config(None, [parse_set(text) for text in assignments]).config


def complaint(*assignments: str) -> str:
    with pytest.raises(InputError) as caught:
        config_of(*assignments)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_both_engines_have_tiers(kind):
    offload = config_of(f"engine.kind={kind}", HOST, BYTES).engine.offload
    assert (offload.host.num_blocks, offload.host.read_gb_per_s, offload.disk) == (100, 32.0, None)


def test_a_capacity_in_bytes_is_one_in_whole_blocks():
    host = config_of("engine.offload.host.size_gb=0.001", BYTES).engine.offload.host
    assert host.capacity_blocks(block_bytes=300_000, unlimited=0) == 3


def test_one_capacity_is_needed_and_one_is_enough():
    assert "is needed" in complaint("engine.offload.host.read_gb_per_s=3", BYTES)
    assert "not both" in complaint(HOST, "engine.offload.host.size_gb=3", BYTES)
    assert "is needed" in complaint(HOST, BYTES, "engine.offload.disk.latency_ms=3")
    assert config_of(HOST, BYTES, "engine.offload.object_store.latency_ms=3").engine.offload.object_store is not None


def test_tiers_behind_the_host_need_a_host():
    assert "engine.offload.host" in complaint(BYTES, "engine.offload.disk.num_blocks=3")


def test_tiers_without_a_prefix_cache_are_an_error():
    assert "enable_prefix_caching" in complaint(HOST, BYTES, "engine.enable_prefix_caching=false")


def test_the_bytes_of_a_token_are_given_or_those_of_a_model():
    assert "kv_bytes_per_token" in complaint(HOST)
    assert config_of(HOST, "timing.model=llama-3.1-8b", "timing.gpu=h100-sxm").engine.offload is not None


@pytest.mark.parametrize("engine", ["engine", "prefill_engine", "decode_engine"])
def test_workers_that_hand_kv_over_have_no_tiers(engine):
    sets = [f"{engine}.offload.host.num_blocks=9", f"{engine}.offload.kv_bytes_per_token=1000"]
    found = complaint(*sets, "cluster.prefill_workers=1", "cluster.decode_workers=1")
    assert "is not modelled with" in found


def test_a_bandwidth_is_a_number_or_unlimited():
    assert config_of(HOST, BYTES, "engine.offload.host.read_gb_per_s=unlimited").engine.offload is not None
    assert "unlimited" in complaint(HOST, BYTES, "engine.offload.host.read_gb_per_s=0")


def test_every_field_says_what_it_is():
    fields = [field for path, field in FIELDS.items() if path.startswith("engine.offload")]
    assert len(fields) > 20
    assert all(field.description for field in fields)


def test_reports_say_what_the_tiers_did_only_if_there_are_any():
    load = ("workload.synthetic.requests=3", "workload.synthetic.interval_ms=1", "workload.synthetic.isl=200")
    plain = simulate(config_of(*load, "workload.synthetic.osl=2"))
    assert not [key for key in build_report(plain)["summary"] if "host" in key or "offload" in key]
    tiered = simulate(config_of(*load, "workload.synthetic.osl=2", HOST, BYTES))
    summary = build_report(tiered)["summary"]
    assert summary["host_stored_tokens"] == 3 * 192
    assert (summary["offload_lookups"], summary["host_hit_tokens"], summary["mean_transfer_ms"]) == (3, 0, 0.0)
    assert [record["restored_host_tokens"] for record in request_records(tiered)] == [0, 0, 0]
    assert "restored_host_tokens" not in next(request_records(plain))
