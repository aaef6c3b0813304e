"""Replays the silicon sample: 3,619 benchmark rows of real deployments, each a closed loop with its mean TTFT and TPOT.

A row says which model, GPU, engine, parallelism, lengths and requests in flight. Lengths were drawn from 0.8 to 1.0 of
the nominal ones, and ten times as many requests sent as were in flight, the first of them at once. What a row does not
say is taken from the public launch scripts of the benchmark (`silicon_launch`). One grid of lengths is none of that
benchmark's: its requests are of exactly the nominal lengths here. Nothing is fitted to any row.
Source: `silicon_sample.csv` of AIConfigurator 0.12, which was derived from InferenceX (Apache-2.0 both).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.assembly import simulate
from windtunnel.config.schema import Config
from windtunnel.errors import InputError
from windtunnel.timing.base import TimingModel
from windtunnel.validation.errors import Comparison
from windtunnel.validation.silicon_launch import Launch, launch
from windtunnel.workload.session import Workload
from windtunnel.workload.streams import named_stream

FILE = "aiconfigurator_silicon_sample.json"
REQUESTS = 200  # that count, after as many as are in flight
SHORTEST = 0.8  # of the nominal lengths
# A grid that InferenceX does not have. Its rows fit requests of exactly these lengths, whose waves stay together.
FIXED = tuple((isl, osl) for isl in (1024, 2048, 4096) for osl in (128, 256, 512))
BURST = 0.1  # share of a benchmark's requests that are sent at once at its start
MOST_GPUS = 8  # of a node


@dataclass(frozen=True)
class SiliconRow:
    """One benchmark of an aggregated deployment.

    Attributes:
        number: of the row in the sample.
        engine: vllm, sglang or trtllm. model: as on the hub. gpu: as in `h200`.
        gemm, moe: dtypes of the weights in AIConfigurator's words, None if it does not say.
        tp, dp, moe_tp, moe_ep: sizes of the groups, made consistent: see `read_silicon`.
        isl, osl: nominal lengths. concurrency: requests in flight.
        launch: what the launch script said.
    """

    number: int
    engine: str
    version: str
    model: str
    gpu: str
    precision: str
    gemm: str | None
    moe: str | None
    tp: int
    dp: int
    moe_tp: int
    moe_ep: int
    isl: int
    osl: int
    concurrency: int
    launch: Launch
    ttft_ms: float
    tpot_ms: float

    @property
    def group(self) -> tuple[str, ...]:
        return (self.engine, self.model.rpartition("/")[2], self.gpu, self.precision)


# A timing model for a row, or why there is none.
Pricer = Callable[[SiliconRow], TimingModel | str]


def read_silicon(directory: Path) -> tuple[list[SiliconRow], dict[str, int]]:
    """The rows of the sample, and how many could not be used, by reason.

    Where `tp_size` is more than a node has and the product of the expert groups, the sample multiplied both groups: the
    run had the larger one. With data-parallel attention `tp_size` is the number of GPUs.

    Raises:
        InputError: the file is missing or of another form.
    """
    path = directory / FILE
    try:
        table = json.loads(path.read_bytes())["agg"]
        columns, rows = table["columns"], table["rows"]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None
    except (ValueError, KeyError, TypeError):
        raise InputError("is not the silicon sample: expected agg.columns and agg.rows", source=str(path)) from None
    found = []
    unusable: dict[str, int] = {}
    for number, values in enumerate(rows):
        row = _row(number, dict(zip(columns, values, strict=True)))
        if isinstance(row, str):
            unusable[row] = unusable.get(row, 0) + 1
        else:
            found.append(row)
    return found, unusable


def _row(number: int, row: dict[str, Any]) -> SiliconRow | str:
    if row["concurrency"] is None:
        return "no number of requests in flight"
    tp, dp = row["tp_size"], row["attention_dp_size"] or 1
    moe_tp, moe_ep = row["moe_tp_size"] or 1, row["moe_ep_size"] or 1
    if dp > 1:
        tp, moe_tp, moe_ep = max(tp // dp, 1), 1, max(tp, dp)
    elif tp > MOST_GPUS and tp == moe_tp * moe_ep and max(moe_tp, moe_ep) <= MOST_GPUS:
        tp = max(moe_tp, moe_ep)
        moe_tp, moe_ep = tp // moe_ep, moe_ep
    elif moe_tp * moe_ep != tp:
        moe_tp, moe_ep = (1, tp) if moe_ep > 1 else (tp, 1)
    if tp > MOST_GPUS:
        return "more GPUs than a node has"
    gpu = row["system"].removesuffix("_sxm")
    precision = row["precision"] or "?"
    return SiliconRow(
        number=number,
        engine=row["backend"],
        version=row["backend_version"] or "?",
        model=row["model_path"],
        gpu=gpu,
        precision=precision,
        gemm=row["gemm_quant_mode"],
        moe=row["moe_quant_mode"],
        tp=tp,
        dp=dp,
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        isl=row["isl"],
        osl=row["osl"],
        concurrency=row["concurrency"],
        launch=launch(
            row["backend"],
            row["model_path"].rpartition("/")[2],
            gpu,
            precision,
            tp,
            row["isl"],
            row["concurrency"],
        ),
        ttft_ms=row["ttft_ms"],
        tpot_ms=row["tpot_ms"],
    )


def replay_row(row: SiliconRow, timing: TimingModel, blocks: int, seed: int) -> list[Comparison]:
    """Simulate the closed loop of a row and compare.

    TPOT is that of 200 requests after as many as are in flight, and with as many behind them, so that prompts go on to
    interrupt them. TTFT weighs the first burst as the benchmark did.
    TensorRT-LLM's scheduler is not modelled: vLLM stands in for it.

    Args:
        blocks: KV blocks of 16 tokens of each rank.
    """
    draw = named_stream(seed, f"silicon-{row.number}").random
    workload = Workload("silicon")
    shortest = 1.0 if (row.isl, row.osl) in FIXED else SHORTEST
    for number in range(2 * row.concurrency + REQUESTS):  # the loop stays full until the last that counts has ended
        tokens, output = (max(int(n * (shortest + (1.0 - shortest) * draw())), 1) for n in (row.isl, row.osl))
        workload.add([(number, 0, tokens)], output)
    config = Config.model_validate(
        {
            "engine": _engine(row, blocks),
            "cluster": {"dp_size": row.dp},
            "workload": {"concurrency": row.concurrency},
        }
    )
    record = simulate(config, workload=workload, timing=timing).record
    requests = record.requests
    arrival, first, last = (np.array(t) for t in (requests.arrival_ms, requests.first_token_ms, requests.last_token_ms))
    generated = np.array(requests.output_tokens)
    counted = slice(row.concurrency, row.concurrency + REQUESTS)
    ttft = first - arrival
    burst, steady = float(ttft[: row.concurrency].mean()), float(ttft[counted].mean())
    tpot = float(((last - first)[counted] / np.maximum(generated[counted] - 1, 1)).mean())
    # A scheduler that looks for requests every so many passes finds one half of that later, on average.
    unseen = 0.5 * (row.launch.receive_interval - 1) * tpot
    predicted_ttft = BURST * burst + (1.0 - BURST) * steady + unseen
    # The sample has no throughput; by Little's law it is the requests in flight over the time of one.
    tokens_out = 0.9 * row.osl
    predicted, measured = (
        row.concurrency * tokens_out / (first_ms + gap_ms * (tokens_out - 1.0))
        for first_ms, gap_ms in ((predicted_ttft, tpot), (row.ttft_ms, row.tpot_ms))
    )
    is_apart = row.engine == "trtllm"
    return [
        Comparison(row.group, "tpot", tpot, row.tpot_ms, is_apart),
        Comparison(row.group, "ttft", predicted_ttft, row.ttft_ms, is_apart),
        Comparison(row.group, "throughput", predicted, measured, is_apart),
    ]


def _engine(row: SiliconRow, blocks: int) -> dict[str, Any]:
    if row.engine != "sglang":
        return {
            "num_gpu_blocks": blocks,
            "block_size": 16,
            "max_num_seqs": 1024,
            "max_num_batched_tokens": row.launch.prefill_tokens,
            "async_scheduling": False,
        }
    return {
        "kind": "sglang",
        "num_gpu_blocks": blocks * 16,
        "max_running_requests": 1024,
        "chunked_prefill_size": row.launch.prefill_tokens,
        "max_prefill_tokens": row.launch.prefill_tokens,
        "overlap_schedule": row.dp == 1,
    }
