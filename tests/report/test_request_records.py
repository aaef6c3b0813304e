import io
import json

import pytest
from handmade import add_passes, complete, empty_result, end, four_outputs

from windtunnel.engine.request import EngineRequest
from windtunnel.record.columns import Status
from windtunnel.record.recorder import Recorder
from windtunnel.report.requests import request_records, write_requests
from windtunnel.workload.content import Content
from windtunnel.workload.session import Workload

PARTS = ("queued_ms", "prefill_ms", "stalled_ms", "preempted_ms", "transfer_ms", "decode_ms")


def test_record_of_a_completed_request():
    result = empty_result(1, num_workers=2)
    add_passes(result, 1, [30.0, 36.0, 50.0])
    complete(result, 0, [0, 1, 2], worker=1, arrival_ms=5.0, input_tokens=512)
    requests = result.record.requests
    result.workload.output_tokens[0] = 8
    requests.first_admit_ms[0], requests.queued_ms[0], requests.prefill_ms[0] = 7.0, 2.0, 23.0
    requests.hit_tokens[0], requests.reused_tokens[0], requests.preemptions[0] = 64, 448, 1
    assert list(request_records(result)) == [
        {
            "request_id": "0",
            "session_id": None,
            "turn_index": 0,
            "terminal_status": "completed",
            "reason": None,
            "arrival_time_ms": 5.0,
            "first_admit_ms": 7.0,
            "first_token_ms": 30.0,
            "last_token_ms": 50.0,
            "terminal_time_ms": 50.0,
            "ttft_ms": 25.0,
            "ttst_ms": 6.0,
            "tpot_ms": 10.0,
            "e2e_latency_ms": 45.0,
            "input_length": 512,
            "requested_output_length": 8,
            "output_length": 3,
            "prefix_hit_tokens": 64,
            "reused_input_tokens": 448,
            "preemptions": 1,
            "worker": 1,
            "queued_ms": 2.0,
            "prefill_ms": 23.0,
            "stalled_ms": 0.0,
            "preempted_ms": 0.0,
            "transfer_ms": 0.0,
            "decode_ms": 20.0,
        }
    ]


def test_rejected_request_keeps_its_reason_and_has_nulls():
    result = empty_result(1)
    end(result, 0, Status.REJECTED, at_ms=3.0, arrival_ms=3.0, reason="needs 160 blocks, the pool has 100")
    (record,) = request_records(result)
    assert record["terminal_status"] == "rejected"
    assert record["reason"] == "needs 160 blocks, the pool has 100"
    assert record["terminal_time_ms"] == 3.0
    assert record["output_length"] == 0
    nulls = {name for name, value in record.items() if value is None}
    latencies = {"ttft_ms", "ttst_ms", "tpot_ms", "e2e_latency_ms"}
    assert nulls == {"session_id", "worker", "first_admit_ms", "first_token_ms", "last_token_ms"} | latencies


def test_records_are_in_order_of_arrival_and_the_never_arrived_come_last():
    result = empty_result(6)
    for request, arrival_ms in ((1, 20.0), (2, 10.0), (4, 10.0), (5, 0.0)):
        end(result, request, Status.UNFINISHED, at_ms=30.0, arrival_ms=arrival_ms)
    records = list(request_records(result))
    assert [record["request_id"] for record in records] == ["5", "2", "4", "1", "0", "3"]
    assert [record["terminal_status"] for record in records] == ["unfinished"] * 4 + ["not_arrived"] * 2
    assert records[-1]["arrival_time_ms"] is None


def test_names_come_from_the_workload():
    result = empty_result()
    workload = result.workload = Workload("handmade")
    workload.add([(0, 0, 8)], 1)
    workload.add([(0, 0, 16)], 1, session=0)
    workload.add([(1, 0, 8)], 1)
    workload.request_ids = ["a", "b", "c"]
    workload.session_ids = ["x", "y"]
    result.record = empty_result(3).record
    names = [(r["request_id"], r["session_id"], r["turn_index"]) for r in request_records(result)]
    assert names == [("a", "x", 0), ("b", "x", 1), ("c", "y", 0)]


@pytest.mark.parametrize("output", [0, 2])
def test_parts_add_up_to_e2e(output):
    result = empty_result(1)
    add_passes(result, 0, [24.385704, 30.556137])
    if output:
        complete(result, 0, [0, 1], arrival_ms=1.5)
    else:
        end(result, 0, Status.COMPLETED, at_ms=24.385704, arrival_ms=1.5)
    (record,) = request_records(result)
    assert record["e2e_latency_ms"] == record["terminal_time_ms"] - 1.5
    assert sum(record[part] for part in PARTS) == pytest.approx(record["e2e_latency_ms"], abs=1e-9)


def test_lines_are_compact_json_of_the_records():
    result = four_outputs()
    file = io.BytesIO()
    write_requests(result, file)
    lines = file.getvalue().splitlines(keepends=True)
    assert all(line.endswith(b"}\n") and b": " not in line for line in lines)
    assert [json.loads(line) for line in lines] == list(request_records(result))


def test_more_requests_than_a_batch_are_all_written_in_order():
    result = empty_result(9000)
    for request in range(9000):
        end(result, request, Status.FAILED, at_ms=9000.0, arrival_ms=float(9000 - request))
    file = io.BytesIO()
    write_requests(result, file)
    ids = [json.loads(line)["request_id"] for line in file.getvalue().splitlines()]
    assert ids == [str(request) for request in reversed(range(9000))]


def test_no_requests_write_nothing():
    file = io.BytesIO()
    write_requests(empty_result(), file)
    assert file.getvalue() == b""


def test_time_in_transfers_is_a_part_of_its_own():
    result = empty_result(1)
    request = EngineRequest(0, Content.of([(0, 0, 10)]), 10, 1, 2.0)
    request.note_wait(5.0)
    request.note_transfer(9.0)
    Recorder(result.record).ended(request, 0, Status.CANCELLED, 9.0)
    (record,) = request_records(result)
    assert [record[part] for part in PARTS] == [3.0, 0.0, 0.0, 0.0, 4.0, 0.0]
