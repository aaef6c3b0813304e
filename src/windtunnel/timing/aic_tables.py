"""AIConfigurator's prices as tables: asked once per deployment, kept on disk, looked up ever after.

Decodes have one row for every batch size (the rough axis) and knots along the context (the smooth one). Prompts are
what is not attention, by the tokens of the pass, plus attention, by the length each chunk reaches; models with latent
attention, which the library does not split, have one table of new and cached tokens. Mixed passes are composed here:
the prompts add to a decode pass what their tokens add to everything but attention, and their attention.
A file is named by the content of the deployment, never by a path, and serves without the library too.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from bisect import bisect_right
from dataclasses import asdict
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import InputError
from windtunnel.timing.aic_library import NO_LIBRARY, AicDeployment, AicEngine, compile_engine, library_version
from windtunnel.timing.base import FloatArray, PassShape
from windtunnel.timing.decode_curve import DecodeCurve, linear_curve
from windtunnel.timing.measured_range import MeasuredRange
from windtunnel.timing.tabulated import FLOOR_MS

FORMAT = 1  # of the files; goes up when what is in them changes
CACHE_VARIABLE = "WINDTUNNEL_CACHE_DIR"

LONGEST_CONTEXT = 262_144
MEASURED_CONTEXT = 131_072  # of the library's own grids
MOST_TOKENS = 131_072
MEASURED_TOKENS = 16_384  # of one prompt
STEP = 16  # of the table of attention, tokens
MOST_PROMPTS = 256  # in one pass, of the library's own grids
ROWS = 64  # batch sizes come in multiples of so many rows


class AicTables:
    """The tables of one deployment, and what passes cost by them.

    Attributes:
        decode_ms: (batch sizes from 1, contexts) of whole decode passes; `contexts` are mean contexts in tokens.
        shared_ms: everything but attention by prompt tokens of the pass, from 0.
        attention_ms: causal attention of one prompt by its length in steps of 16 tokens; attention_fixed_ms: the share
            of it that does not depend on length; batch_share: (equal prompts in powers of 2, their length) what each
            of several costs, compared with one alone. Not with latent attention.
        prompt_ms: (new tokens, cached tokens) of whole prompts, with latent attention.
        version: library that they were made with.
    """

    def __init__(self, arrays: dict[str, FloatArray], version: str, name: str) -> None:
        self.contexts = arrays["contexts"]
        self.decode_ms = arrays["decode_ms"]
        self.arrays = arrays
        self.version = version
        self.has_latent_attention = "prompt_ms" in arrays
        self.measured = MeasuredRange((1, len(self.decode_ms)), (1.0, MEASURED_CONTEXT), (1, MEASURED_TOKENS))
        self.notes = [f"{name}: kernels as {version} has them, KV cache dtype given by us; no host overhead in it"]
        if self.has_latent_attention:
            self._new = arrays["new_tokens"]
            self._cached = arrays["cached_tokens"]
            self._prompt_ms = arrays["prompt_ms"]
            return
        self._shared: list[float] = _dense(arrays["token_knots"], arrays["shared_ms"], 1)
        self._attention: list[float] = _dense(arrays["length_knots"], arrays["attention_ms"], STEP)
        self._attention_fixed_ms = float(arrays["attention_fixed_ms"])
        self._share_lengths: list[float] = np.log2(arrays["share_lengths"]).tolist()
        self._batch_share: list[list[float]] = arrays["batch_share"].tolist()

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        rows = len(self.decode_ms)
        prices = self.decode_ms[min(num_decodes, rows) - 1]
        if num_decodes > rows:  # on along the last rows, which are enough to be past any step
            earlier = self.decode_ms[rows // 2 - 1]
            prices = prices + (prices - earlier) * ((num_decodes - rows) / (rows - rows // 2))
        return linear_curve(self.contexts * num_decodes, prices, FLOOR_MS)

    def price_prompts_ms(self, shape: PassShape, decode_ms: float) -> float:
        if self.has_latent_attention:
            ms = self._latent_ms(shape)
            if shape.num_decodes:
                ms += decode_ms - min(float(self._prompt_ms[0, 0]), decode_ms, ms)
            return max(ms, FLOOR_MS)
        total = sum(shape.chunk_tokens)
        if shape.num_decodes:
            decodes = shape.num_decodes
            shared = decode_ms + max(self._shared_ms(decodes + total) - self._shared_ms(decodes), 0.0)
        else:
            shared = self._shared_ms(total)
        return shared + self._attention_fixed_ms + self._attention_ms(shape.chunk_starts, shape.chunk_tokens)

    def _shared_ms(self, tokens: int) -> float:
        table = self._shared
        last = len(table) - 1
        if tokens <= last:
            return table[tokens]
        return table[last] * (tokens / last)

    def _attention_ms(self, starts: list[int], tokens: list[int]) -> float:
        """Attention of all chunks in one launch. Several fill a GPU better than one: each costs its share then.

        Unequal chunks count as so many equal ones as have the same spread, and by the length where the work is.
        """
        work = 0.0
        squares = 0.0
        lengths = 0.0
        for start, count in zip(starts, tokens, strict=True):
            length = start + count
            ms = self._causal_ms(length)
            if start:
                cached = start / length
                ms *= 1.0 - cached * cached
            work += ms
            squares += ms * ms
            lengths += ms * length
        if len(tokens) == 1 or work == 0.0:
            return work
        return work * self._share(work * work / squares, lengths / work)

    def _share(self, batch: float, length: float) -> float:
        """What each of `batch` prompts of this length costs, compared with one alone."""
        rows, lengths = self._batch_share, self._share_lengths
        i, u = _between(log2(batch), len(rows))
        x = min(max(log2(length), lengths[0]), lengths[-1])
        j = min(max(bisect_right(lengths, x) - 1, 0), len(lengths) - 2)
        v = (x - lengths[j]) / (lengths[j + 1] - lengths[j])
        low = rows[i][j] + v * (rows[i][j + 1] - rows[i][j])
        high = rows[i + 1][j] + v * (rows[i + 1][j + 1] - rows[i + 1][j])
        return low + u * (high - low)

    def _causal_ms(self, length: int) -> float:
        """Attention of one prompt of this length, all of it computed."""
        table = self._attention
        index, rest = divmod(length, STEP)
        if index >= len(table) - 1:
            over = length / ((len(table) - 1) * STEP)
            return table[-1] * over * over
        low = table[index]
        return low + (table[index + 1] - low) * rest / STEP

    def _latent_ms(self, shape: PassShape) -> float:
        """One prompt of as many tokens, after as many cached ones as make its attention that of all chunks."""
        total = sum(shape.chunk_tokens)
        area = sum(n * (n + 2 * p) for p, n in zip(shape.chunk_starts, shape.chunk_tokens, strict=True))
        cached = (area / total - total) / 2.0
        i = min(max(int(np.searchsorted(self._new, total, side="right")) - 1, 0), len(self._new) - 2)
        j = min(max(int(np.searchsorted(self._cached, cached, side="right")) - 1, 0), len(self._cached) - 2)
        u = (total - self._new[i]) / (self._new[i + 1] - self._new[i])
        v = (cached - self._cached[j]) / (self._cached[j + 1] - self._cached[j])
        z = self._prompt_ms
        low = z[i, j] + v * (z[i, j + 1] - z[i, j])
        high = z[i + 1, j] + v * (z[i + 1, j + 1] - z[i + 1, j])
        return float(low + u * (high - low))


def load_tables(deployment: AicDeployment, max_decodes: int) -> AicTables:
    """The tables of a deployment for batches up to `max_decodes`: those on disk, or new ones, which are kept there.

    Raises:
        InputError: the library is not installed and nothing is on disk, or it has no data for the deployment.
    """
    rows = -(-max_decodes // ROWS) * ROWS
    name = f"{deployment.model} on {deployment.system} ({deployment.backend}, tp {deployment.tp})"
    installed = library_version()
    path = _path(deployment)
    kept = _read(path)
    if kept is not None:
        version, arrays = kept
        if installed in (None, version) and (installed is None or len(arrays["decode_ms"]) >= rows):
            return AicTables(arrays, version, name)
    if installed is None:
        raise InputError(NO_LIBRARY, field="timing.kind")
    arrays = build_arrays(compile_engine(deployment), rows)
    _write(path, installed, deployment, arrays)
    return AicTables(arrays, installed, name)


def has_tables(deployment: AicDeployment) -> bool:
    """Whether its tables are on disk."""
    return _read(_path(deployment)) is not None


def build_arrays(engine: AicEngine, rows: int) -> dict[str, FloatArray]:
    """All that the tables hold, asked from the library: some 20,000 prices."""
    contexts = _octaves(LONGEST_CONTEXT, 4)
    decode_ms = np.array([[engine.decode_ms(batch, int(c)) for c in contexts] for batch in range(1, rows + 1)])
    arrays = {"contexts": contexts, "decode_ms": decode_ms}
    if engine.prompt_parts_ms(1024)[1] == 0.0:  # latent attention: the library does not split it off
        new = np.unique(np.concatenate([np.arange(1.0, 65.0), _octaves(MOST_TOKENS, 16)]))
        cached = np.concatenate([[0.0], _octaves(MOST_TOKENS, 4)[4:]])
        prices = [[engine.prefill_ms(1, int(n), int(p)) for p in cached] for n in new]
        return {**arrays, "new_tokens": new, "cached_tokens": cached, "prompt_ms": np.array(prices)}
    tokens = np.unique(np.concatenate([np.arange(1.0, 513), np.arange(512.0, 2049, 4), np.arange(2048.0, 16385, 16)]))
    tokens = np.unique(np.concatenate([tokens, _octaves(MOST_TOKENS, 32)]))
    lengths = np.unique(np.concatenate([[1.0], np.arange(16.0, 16385, STEP), _octaves(MOST_TOKENS, 64)]))
    lengths = lengths[(lengths % STEP == 0) | (lengths == 1)]
    shared = np.array([engine.prompt_parts_ms(int(m))[0] for m in tokens])
    attention = np.array([engine.prompt_parts_ms(int(f))[1] for f in lengths])
    # Computing the second half of a prompt takes 3/4 of its attention, and all of what does not depend on length.
    half = engine.prompt_parts_ms(4096, 4096)[1]
    fixed = max((half - 0.75 * engine.prompt_parts_ms(8192)[1]) / 0.25, 0.0)
    share_lengths = _octaves(MEASURED_TOKENS, 2)[4:]
    return {
        **arrays,
        "share_lengths": share_lengths,
        "batch_share": _batch_share(engine, share_lengths, fixed),
        "token_knots": tokens,
        "shared_ms": shared,
        "length_knots": lengths,
        "attention_ms": np.maximum(attention - fixed, 0.0),
        "attention_fixed_ms": np.array(fixed),
    }


def _batch_share(engine: AicEngine, lengths: FloatArray, fixed_ms: float) -> FloatArray:
    """What each of 1, 2, 4, ... equal prompts costs in attention, compared with one alone."""
    alone = np.array([max(engine.prompts_attention_ms(1, int(f)) - fixed_ms, 1e-9) for f in lengths])
    rows = [
        [max(engine.prompts_attention_ms(1 << k, int(f)) - fixed_ms, 1e-9) / (1 << k) for f in lengths]
        for k in range(MOST_PROMPTS.bit_length())
    ]
    share: FloatArray = np.array(rows) / alone
    return share


def _between(x: float, rows: int) -> tuple[int, float]:
    """The row below x and how far x is on to the next; x within the rows."""
    i = min(int(x), rows - 2)
    return i, min(x - i, 1.0)


def _octaves(last: int, per_octave: int) -> FloatArray:
    """Whole numbers up to `last`, so many and evenly in each octave."""
    numbers = [float(1 << k) * (1 + i / per_octave) for k in range(last.bit_length() - 1) for i in range(per_octave)]
    return np.array([n for n in numbers if n == int(n)] + [float(last)])


def _dense(knots: FloatArray, values: FloatArray, step: int) -> list[float]:
    """Values at 0, step, 2 step, ... up to the last knot."""
    dense: list[float] = np.interp(np.arange(0.0, knots[-1] + 1.0, step), knots, values).tolist()
    return dense


def _path(deployment: AicDeployment) -> Path:
    return _cache_directory() / f"aic-{deployment.digest()[:32]}-{FORMAT}.npz"


def _cache_directory() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "windtunnel"


def _read(path: Path) -> tuple[str, dict[str, FloatArray]] | None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):  # none, or not whole
        return None
    version = str(arrays.pop("version"))
    arrays.pop("deployment")
    return version, arrays


def _write(path: Path, version: str, deployment: AicDeployment, arrays: dict[str, FloatArray]) -> None:
    """Keep the tables; a directory that cannot be written to costs time at the next run, nothing else."""
    described = json.dumps(asdict(deployment), sort_keys=True)
    content: dict[str, Any] = {"version": version, "deployment": described, **arrays}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            np.savez(file, **content)
        os.replace(file.name, path)
    except OSError:
        return
