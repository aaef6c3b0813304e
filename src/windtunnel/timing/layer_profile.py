"""Measured times of single layers, composed to passes: embedding, so many layers, and the head.

A layer is two norms, the projections, attention, and an MLP or routed experts. How many layers there are, which experts
a batch hits and what GPUs that share a layer tell each other is not in such tables: the deployment says it.
Everything but attention costs by the tokens of the pass; the head by its requests, one row each.
Source: the categories of LLMServingSim's profiler (dense, per_sequence, attention, moe), times in us of eager kernels.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from windtunnel.errors import InputError
from windtunnel.timing.attention_table import AttentionTable, Rows
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.decode_curve import DecodeCurve, linear_curve
from windtunnel.timing.deployment import Deployment
from windtunnel.timing.efficiency import load_efficiency
from windtunnel.timing.kernels import ACTIVATION_BYTES, Kernels
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.tabulated import FLOOR_MS

TABLES = {
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
    "attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    "moe": ("tokens", "activated_experts", "time_us"),
}
# How often a pass runs each dense layer: once in all, and in every layer of the model.
ONCE = {"embedding": 1, "final_layernorm": 1}
EACH = {
    "layernorm": 2,
    "qkv_proj": 1,
    "qk_norm": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
HEAD = ("lm_head", "sampler")
US = 1e-3  # in ms


@dataclass(frozen=True)
class LayerStack:
    """What the tables do not say of the model they were measured for.

    Attributes:
        num_layers: layers of the model.
        num_experts, experts_per_token: of a layer with routed experts, 0 without.
        tp: GPUs that split a layer, whose tables these are.
        ep: GPUs among which the experts are spread; each computes its share of all picks.
        collective_ms: what the GPUs that share a layer spend on telling each other, per layer, by tokens of the pass.
    """

    num_layers: int
    num_experts: int = 0
    experts_per_token: int = 0
    tp: int = 1
    ep: int = 1
    collective_ms: Callable[[int], float] | None = None


def layer_stack(deployment: Deployment) -> LayerStack:
    """What tables of layers need to know of a deployment.

    Collectives are priced as the roofline prices them: two all-reduces a layer among the GPUs that split it, and where
    ranks share experts a gathering of their tokens and a scattering back.

    Raises:
        InputError: it has pipeline stages.
    """
    if deployment.pp > 1:
        raise InputError("tables of layers are composed to one pipeline stage only: expected 1", field="timing.pp")
    model = deployment.model
    kernels = Kernels(deployment.gpu, load_efficiency(deployment.gpu.name))

    def collective_ms(tokens: int) -> float:
        sent = np.array([float(tokens * model.hidden) * ACTIVATION_BYTES])
        total = 2.0 * kernels.all_reduce_ms(sent, deployment.tp)
        if model.num_experts and deployment.dp > 1:
            ranks = deployment.dp * deployment.tp
            total = kernels.all_reduce_ms(sent, deployment.tp) + 2.0 * kernels.all_gather_ms(
                sent * deployment.dp, ranks
            )
        return float(total[0])

    split = deployment.tp > 1 or (deployment.dp > 1 and bool(model.num_experts))
    return LayerStack(
        num_layers=model.num_layers,
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
        tp=deployment.tp,
        ep=deployment.ep,
        collective_ms=collective_ms if split else None,
    )


class LayerProfile:
    """Prices passes from tables of layers.

    Args:
        tables: rows by category, columns as in `TABLES`; `moe` only for models with experts.
        source: where they came from, for errors.
        skew: share of the distance between contexts that are all the longest and their mean, which unequal ones cost.

    Raises:
        InputError: a table or a layer is missing or makes no sense, or tables and model do not go together.
    """

    def __init__(
        self, tables: Mapping[str, Sequence[Sequence[Any]]], stack: LayerStack, source: str, skew: float = 0.0
    ) -> None:
        self.stack = stack
        self.skew = skew
        missing = [name for name in ("dense", "per_sequence", "attention") if not tables.get(name)]
        if missing:
            raise InputError(f"expected tables {', '.join(missing)} too", source=source)
        has_experts = bool(tables.get("moe"))
        if has_experts != bool(stack.num_experts):
            what = (
                "has a table moe, but the model no experts"
                if has_experts
                else "has no table moe for the model's experts"
            )
            raise InputError(what, source=source)
        dense = _lines(tables["dense"], source, "dense")
        self._most_tokens = int(max(xs[-1] for xs, _ in dense.values()))
        known = (*ONCE, *EACH)
        unknown = [name for name in dense if name not in known]
        if unknown:
            raise InputError(f"unknown layer {unknown[0]!r}: expected {', '.join(known)}", source=source, field="dense")
        tokens = np.arange(self._most_tokens + 1, dtype=np.float64)
        once = sum((ONCE[name] * np.interp(tokens, *dense[name]) for name in dense if name in ONCE), np.zeros(1))
        each = sum((EACH[name] * np.interp(tokens, *dense[name]) for name in dense if name in EACH), np.zeros(1))
        self._experts_ms: list[float] = []  # of a pass by its tokens, where other ranks have as many
        if has_experts:
            experts = self._experts_us(tokens, tables["moe"], source)
            self._experts_ms = (experts * (stack.num_layers * US)).tolist()
            each = each + experts
        self._dense_us: list[float] = (once + each * stack.num_layers).tolist()
        head = _lines(tables["per_sequence"], source, "per_sequence")
        if not set(HEAD) >= set(head):
            raise InputError(f"expected the layers {' and '.join(HEAD)}", source=source, field="per_sequence")
        self._most_sequences = int(max(xs[-1] for xs, _ in head.values()))
        sequences = np.arange(self._most_sequences + 1, dtype=np.float64)
        self._head_us: list[float] = sum((np.interp(sequences, *line) for line in head.values()), np.zeros(1)).tolist()
        try:
            self.attention = AttentionTable(_attention_rows(tables["attention"], source))
        except ValueError as error:
            raise InputError(str(error), source=source, field="attention") from None
        contexts = self.attention.contexts
        self.measured = MeasuredRange(
            decodes=(1, self.attention.most_decodes),
            context_tokens=(float(contexts[0]), float(contexts[-1])),
            pass_tokens=(1, self._most_tokens),
        )
        self.notes = [
            f"{source}: kernels of single layers, composed to {stack.num_layers} layers; no host overhead in it"
        ]

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        contexts = self.attention.contexts
        attention = self.attention.decodes_at(num_decodes) * (self.stack.num_layers * US)
        return linear_curve(contexts * num_decodes, attention + self._rest_ms(num_decodes, num_decodes), FLOOR_MS)

    def price_prompts_ms(self, shape: PassShape, decode_ms: float) -> float:
        table = self.attention
        tokens = sum(shape.chunk_tokens)
        attention = table.floor
        before = 0
        for start, count in zip(shape.chunk_starts, shape.chunk_tokens, strict=True):
            attention += table.prompt(count, start) - table.floor
            before += count * start
        decodes = shape.num_decodes
        in_layers = self.stack.num_layers * US
        ms = attention * in_layers
        if decodes:
            alone = decode_ms - self._rest_ms(decodes, decodes)  # the attention of the decodes
            extra = table.extra(tokens, before / tokens, decodes, shape.decode_context_tokens / decodes) * in_layers
            ms = max(ms + alone + extra, ms, alone)
        if shape.group_tokens and self._experts_ms:  # the ranks are not alike: they compute these together
            ms += _on(self._experts_ms, shape.group_tokens // self.stack.ep) - _on(self._experts_ms, tokens + decodes)
        return max(ms + self._rest_ms(tokens + decodes, decodes + len(shape.chunk_tokens)), FLOOR_MS)

    def _rest_ms(self, tokens: int, sequences: int) -> float:
        """Everything but attention."""
        ms = (_on(self._dense_us, tokens) + _on(self._head_us, sequences)) * US
        tell = self.stack.collective_ms
        return ms if tell is None else ms + self.stack.num_layers * tell(tokens)

    def _experts_us(self, tokens: FloatArray, rows: Sequence[Sequence[Any]], source: str) -> FloatArray:
        """Time of the routed experts of a layer on one GPU, by tokens of its pass.

        Of E experts that tokens pick k of at random, T tokens hit E (1 - (1 - k/E)^T). Spread over GPUs, each holds its
        share of the experts and computes its share of the picks of all: as many as its own tokens make, over fewer.
        """
        stack = self.stack
        by_experts: dict[int, list[tuple[float, float]]] = {}
        for count, experts, time in _numbers(rows, source, "moe"):
            by_experts.setdefault(int(experts), []).append((count, time))
        held = sorted(by_experts)
        lines = np.array([_over(tokens, np.array(sorted(by_experts[e])).T) for e in held])
        everywhere = tokens * stack.ep
        hit = stack.num_experts / stack.ep * (1.0 - (1.0 - stack.experts_per_token / stack.num_experts) ** everywhere)
        j = np.clip(np.searchsorted(held, hit, side="right") - 1, 0, len(held) - 2)
        axis = np.array(held, dtype=np.float64)
        share = np.clip((hit - axis[j]) / (axis[j + 1] - axis[j]), 0.0, 1.0)
        columns = np.arange(len(tokens))
        times: FloatArray = lines[j, columns] * (1.0 - share) + lines[j + 1, columns] * share
        return times


def read_skew(meta_yaml: str, tp: int) -> float:
    """What the profiler fitted to launches of unequal contexts, by its `meta.yaml`; 0 if it did not."""
    try:
        return float(yaml.safe_load(meta_yaml)["skew_fit"]["per_tp"][tp]["alpha_default"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        return 0.0


def read_layer_directory(directory: Path) -> dict[str, list[list[Any]]]:
    """The tables of a directory of LLMServingSim's profiler: `attention.csv`, `dense.csv` and so on.

    Raises:
        InputError: a file cannot be read, or lacks a column.
    """
    tables = {}
    for name, columns in TABLES.items():
        path = directory / f"{name}.csv"
        if not path.is_file():
            continue
        try:
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                absent = [column for column in columns if column not in (reader.fieldnames or ())]
                if absent:
                    raise InputError(f"expected the columns {', '.join(columns)}", source=str(path))
                tables[name] = [[row[column] for column in columns] for row in reader]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"cannot be read as CSV: {error}", source=str(path)) from None
    return tables


def read_layer_document(document: Mapping[str, Any], source: str) -> dict[str, list[list[Any]]]:
    """The same tables from JSON: {"tables": {name: {"columns": [...], "rows": [[...]]}}}.

    Raises:
        InputError: it has another form.
    """
    tables = {}
    for name, columns in TABLES.items():
        table = document["tables"].get(name) if isinstance(document.get("tables"), dict) else None
        if table is None:
            continue
        if (
            not isinstance(table, dict)
            or table.get("columns") != list(columns)
            or not isinstance(table.get("rows"), list)
        ):
            raise InputError(f"expected columns {', '.join(columns)} and rows", source=source, field=f"tables.{name}")
        tables[name] = table["rows"]
    return tables


def _on(table: list[float], index: int) -> float:
    """The entry, or beyond the last one what that grows by in proportion."""
    last = len(table) - 1
    return table[index] if index <= last else table[last] * (index / last)


def _over(xs: FloatArray, points: FloatArray) -> FloatArray:
    """Linear through points (two rows), and held beyond them."""
    line: FloatArray = np.interp(xs, points[0], points[1])
    return line


def _numbers(rows: Sequence[Sequence[Any]], source: str, name: str) -> list[tuple[float, ...]]:
    numbers = []
    for number, row in enumerate(rows):
        try:
            values = tuple(float(value) for value in row)
        except (TypeError, ValueError):
            raise InputError(f"row {number} holds {row!r}, expected numbers", source=source, field=name) from None
        if not (all(0 <= value < float("inf") for value in values) and values[-1] > 0):
            raise InputError(f"row {number} holds {row!r}, expected a time above 0", source=source, field=name)
        numbers.append(values)
    return numbers


def _lines(rows: Sequence[Sequence[Any]], source: str, name: str) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Times of each layer by the only axis of its table."""
    points: dict[str, dict[float, float]] = {}
    for row, (x, time) in zip(rows, _numbers([row[1:] for row in rows], source, name), strict=True):
        points.setdefault(str(row[0]), {})[x] = time
    return {
        layer: (np.array(sorted(times)), np.array([times[x] for x in sorted(times)])) for layer, times in points.items()
    }


def _attention_rows(rows: Sequence[Sequence[Any]], source: str) -> Rows:
    return [(int(a), int(b), int(c), int(d), time) for a, b, c, d, time in _numbers(rows, source, "attention")]
