"""Does the suite notice? Breaks one line of the vLLM engine at a time and runs the tests that should fail.

    python tests/mutants.py [WORD ...]

tries all mutants, or those whose description contains one of the words. Each is found by the recorded runs, by a
fixed number of random scenarios, or by nobody: then it is printed as ALIVE, and either the line makes no difference
(`equivalent` says why) or a test is missing. Exits with 1 if another one is alive. Not part of the suite: it takes
about ten minutes. As a pytest plugin (`-p mutants`) this module turns shrinking off, which is of no use here.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import Phase, settings

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "src" / "windtunnel"
FUZZ_FACTOR = 4  # of the quick suite's number of random scenarios
TIMEOUT_S = 240
MEMORY_BYTES = 4 << 30
SUITES = {
    "recorded runs": ["golden/test_goldens.py"],
    "random scenarios": ["engine/test_block_pool.py", "engine/test_decode_group.py", "engine/test_against_oracle.py"],
}


@dataclass(frozen=True)
class Mutant:
    """`before` stands exactly once in `file` and becomes `after`."""

    what: str
    file: str
    before: str
    after: str
    equivalent: str = ""


TREE = "engine/kv/prefix_tree.py"
POOL = "engine/kv/block_pool.py"
GROUP = "engine/decode_group.py"
DECODES = "engine/vllm_decodes.py"
VLLM = "engine/vllm.py"
ENGINE = "engine/engine.py"

MUTANTS = [
    # the prefix tree
    Mutant(
        "idle hits are looked up at the last copy",
        TREE,
        "if child.copies[0].ref == 0:",
        "if child.copies[-1].ref == 0:",
    ),
    Mutant(
        "a match goes one block beyond its limit",
        TREE,
        "            if end > limit_blocks:\n                end = limit_blocks\n",
        "            if end > limit_blocks + 1:\n                end = limit_blocks + 1\n",
    ),
    Mutant(
        "a match trusts the first block of a node",
        TREE,
        "            if child.content is not content:\n",
        "            if child.content is not content and child.size == 1:\n",
    ),
    Mutant("a match goes on behind a partial node", TREE, "            if count < child.size:\n                break", ""),
    Mutant(
        "a split puts the lower part behind the upper one",
        TREE,
        "                before = head.before\n                tail.before = before\n                tail.after = head\n"
        "                before.after = tail\n                head.before = tail\n",
        "                after = head.after\n                tail.after = after\n                tail.before = head\n"
        "                after.before = tail\n                head.after = tail\n",
    ),
    Mutant("a split forgets an earlier split", TREE, "tail.rest = head.rest", "tail.rest = None"),
    Mutant("a split loses holders", TREE, "tail.ref = head.ref", "tail.ref = min(head.ref, 1)"),
    Mutant("a split leaves the key of the lower part", TREE, "        node.key = node.content.key(", "        node.content.key("),
    Mutant("a child agrees at its first block only", TREE, "        if count < child.size:\n            return", "        if False:\n            return"),
    # the pool
    Mutant("a hit takes the last copy", POOL, "span = node.copies[0]", "span = node.copies[-1]"),
    Mutant("a shared span grows in place", POOL, "tip.ref == 1 and not node.children", "not node.children"),
    Mutant("a span with children grows in place", POOL, "tip.ref == 1 and not node.children and", "tip.ref == 1 and"),
    Mutant("one of two copies grows in place", POOL, " and len(node.copies) == 1:", ":"),
    Mutant("a grown span keeps its old content", POOL, "                node.content = content\n", ""),
    Mutant("a new copy becomes the first", POOL, "child.copies.append(span)", "child.copies.insert(0, span)"),
    Mutant("a table forgets its span is split when it stores", POOL, "if counts[-1] > tip.node.size:", "if False:"),
    Mutant("a node shrinks from its head", POOL, "self.tree.split(node, size - count)", "self.tree.split(node, count)"),
    Mutant("the eviction of a tail names other blocks", POOL, "CacheEvent(False, node.content, node.depth + size - count, node.depth + size)", "CacheEvent(False, node.content, node.depth, node.depth + count)"),
    Mutant("an evicted only copy stays in the tree", POOL, "                self.tree.remove(node)\n", "                pass\n"),
    Mutant("released blocks go to the front", POOL, "                last = queue.before\n                span.before = last\n                span.after = queue\n                last.after = span\n                queue.before = span\n", "                last = queue.after\n                span.after = last\n                span.before = queue\n                last.before = span\n                queue.after = span\n"),
    Mutant("a release loses a single unhashed block", POOL, "        self.blank += blank\n", "        self.blank += blank if blank != 1 else 0\n"),
    Mutant("a release forgets that a span is split", POOL, "            if counts[-1] > span.node.size:\n                span = self._tip(table)\n            spans.pop()", "            spans.pop()"),
    Mutant("idle hits stay free", POOL, "                self.free_blocks -= size\n", ""),
    Mutant("an idle hit stays in the queue", POOL, "                self._unlink(span)\n                self.free_blocks", "                self.free_blocks"),
    # the decode group
    Mutant("blocks open one token late", GROUP, "        slot = -base % self.block_size\n", "        slot = -(base + 1) % self.block_size\n"),
    Mutant("a run goes one block beyond the free ones", GROUP, "            if left < 0:\n", "            if left < -1:\n"),
    Mutant("a run stops one block early", GROUP, "            if left < 0:\n", "            if left < 1:\n"),
    Mutant("one pass more than whole cycles", GROUP, "fits = free_blocks // decodes * bs", "fits = free_blocks // decodes * bs + 1"),
    Mutant("a run that wraps around the ring counts too little", GROUP, "            if stop > bs:\n                need += sum(self.ring[: stop - bs])\n", ""),
    Mutant("slots stand in the order of joining", GROUP, "insort(self._slots[slot], request, key=_by_admission)", "self._slots[slot].append(request)"),
    Mutant("requests end in any order within a pass", GROUP, "heappush(self._finish, (finish, request.admission, request))", "heappush(self._finish, (finish, -request.admission, request))"),
    Mutant("the last admission is no maximum", GROUP, "        if request.admission > self.last_admission:\n            self.last_admission = request.admission\n", "        self.last_admission = request.admission\n"),
    Mutant("a member that left early still ends", GROUP, "        self._finish = [entry for entry in self._finish if entry[2] is not request]\n", ""),
    Mutant("busy steps miss those that fill a block", GROUP, "if ring[slot] or ring[(slot + 1) % bs])", "if ring[slot])"),
    Mutant("a group that is dissolved keeps its last admission", GROUP, "        self.finish_step = NEVER\n        self.last_admission = 0\n\n    def pop", "        self.finish_step = NEVER\n\n    def pop", "a stale maximum only makes passes go request by request"),
    # decodes and their blocks
    Mutant("openers and closers are not in batch order", DECODES, "order = sorted(openers + closers, key=lambda request: request.admission) if openers else closers", "order = openers + closers"),
    Mutant("closing members hash nothing", DECODES, "            if (computed + 1) % bs == 0:\n                self.catch_up(request)\n", ""),
    Mutant("a member's blocks are counted short", DECODES, "table.owned = -(-computed // bs)", "table.owned = computed // bs"),
    Mutant("hashing is caught up inside a pass request by request", DECODES, "        if self.suspended:\n            return\n", ""),
    Mutant("only requests that decode no more are caught up", DECODES, "if other is not None and other.decoding:", "if other is not None and not other.decoding:"),
    Mutant("a run in order stops a pass early", DECODES, "                if cycle + offset >= passes:\n", "                if cycle + offset >= passes - 1:\n"),
    # the scheduler: admission
    Mutant("the whole prompt may be hit", VLLM, "self.pool.match(content, (total - 1) // self.block_size)", "self.pool.match(content, total // self.block_size)"),
    Mutant("generated tokens are not hit again", VLLM, "self.pool.match(content, (total - 1) // self.block_size)", "self.pool.match(content, (request.prompt_tokens - 1) // self.block_size)"),
    Mutant("idle hits are free of charge", VLLM, "self.pool.free_blocks - match.idle_blocks + match.blocks", "self.pool.free_blocks + match.blocks"),
    Mutant("hits in use are charged", VLLM, "self.pool.free_blocks - match.idle_blocks + match.blocks", "self.pool.free_blocks"),
    Mutant("the watermark holds for the first request too", VLLM, "        if self.running:\n            spare -= self.watermark_blocks\n", "        spare -= self.watermark_blocks\n"),
    Mutant("the whole prompt is checked beyond the model's length", VLLM, "whole = min(request.prompt_tokens + request.output_tokens, self.max_model_len)", "whole = request.prompt_tokens + request.output_tokens", "no request is longer than the model: its output is cut when it is submitted"),
    Mutant("only the prompt is checked, not what was generated", VLLM, "whole = min(request.prompt_tokens + request.output_tokens, self.max_model_len)", "whole = min(request.prompt_tokens, self.max_model_len)"),
    Mutant("a refused request is skipped", VLLM, "                    observer.on_refusal(request, hit_tokens, self.pool.free_blocks)\n                return\n", "                    observer.on_refusal(request, hit_tokens, self.pool.free_blocks)\n                waiting.rotate(-1)\n                return\n"),
    Mutant("one request too many runs", VLLM, "while waiting and budget > 0 and len(running) < self.max_num_seqs:", "while waiting and budget > 0 and len(running) <= self.max_num_seqs:"),
    Mutant("a prompt is cut although chunking is off", VLLM, "            if not self.chunked and tokens > budget:\n", "            if not self.chunked and tokens > self.max_num_batched_tokens:\n"),
    # the scheduler: refused heads are left alone
    Mutant("a head that quotes a running output is left alone", VLLM, "self._head_refused = self.fast_forward and not content.sources\n", "self._head_refused = self.fast_forward\n"),
    Mutant("a refusal for budget beside a prompt lasts", VLLM, "self.fast_forward and not shape.chunk_tokens and not content.sources", "self.fast_forward and not content.sources"),
    Mutant("a refusal for budget lasts for a head that quotes", VLLM, "self.fast_forward and not shape.chunk_tokens and not content.sources", "self.fast_forward and not shape.chunk_tokens"),
    Mutant("an adaptive cap that shrinks is not seen", VLLM, "if not self.waiting or self.threshold_adaptive:", "if not self.waiting:"),
    Mutant("a completion leaves the head refused", VLLM, "        self.finished.append(request)\n        self._head_refused = False\n", "        self.finished.append(request)\n"),
    Mutant("an abort leaves the head refused", VLLM, "            self.waiting.remove(request)\n            request.note_wait(now_ms)\n        self._head_refused = False\n", "            self.waiting.remove(request)\n            request.note_wait(now_ms)\n"),
    Mutant("a preemption leaves the head refused", VLLM, "        self.waiting.appendleft(victim)\n        self._head_refused = False\n", "        self.waiting.appendleft(victim)\n"),
    # the scheduler: passes
    Mutant("a group may exceed the budget", VLLM, "if budget < 0 or (prefilling", "if (prefilling"),
    Mutant("a group although a prompt precedes a decode", VLLM, "prefilling[0].admission < group.last_admission", "False"),
    Mutant("a group lacks a block", VLLM, "        if need > self.pool.free_blocks:\n            return None\n        observer", "        if need > self.pool.free_blocks + 1:\n            return None\n        observer"),
    Mutant("a group does not count the blocks of chunks", VLLM, "            if lacks > 0:\n                need += lacks\n", ""),
    Mutant("runs go on beside prompts", VLLM, "            or self._prefilling\n", ""),
    Mutant("no catching up before a match", VLLM, "        if content.sources:\n            self.decodes.catch_up_sources(content)\n        match", "        match"),
    Mutant("no catching up before a store", VLLM, "            if table.content.sources:\n                self.decodes.catch_up_sources(table.content)\n            self.pool", "            self.pool"),
    Mutant("the victim waits at the back", VLLM, "self.waiting.appendleft(victim)", "self.waiting.append(victim)"),
    Mutant("the oldest request is the victim", VLLM, "victim = order.pop()", "victim = order.pop(0)"),
    Mutant("admissions after a preemption", VLLM, "        if not preempted:\n            before", "        if True:\n            before"),
    Mutant("a request that has no share ends the pass", VLLM, "            if not tokens:\n                continue\n", "            if not tokens:\n                break\n"),
    Mutant("the cap holds for a lone request", VLLM, "if not self.threshold_tokens or eligible <= 1:", "if not self.threshold_tokens:"),
    Mutant("only running requests count for the cap", VLLM, "eligible = len(self.running) + len(self.waiting)", "eligible = len(self.running)"),
    Mutant("the adaptive cap does not adapt", VLLM, "return max(self.threshold_tokens, self.max_num_batched_tokens // eligible)", "return self.threshold_tokens"),
    Mutant("a chunk may reach the model's length", VLLM, "room = self.max_model_len - request.computed - 1", "room = self.max_model_len - request.computed"),
    Mutant("generated tokens are not computed again", VLLM, "        tokens = request.prompt_tokens + request.output_tokens - request.computed\n", "        tokens = request.prompt_tokens + min(request.output_tokens, 1) - request.computed\n"),
    Mutant("a decode of a single pass emits nothing", VLLM, "                request.output_tokens += 1\n                request.note_decodes(end_ms)\n", "                request.note_decodes(end_ms)\n"),
    Mutant("a pass of its own loses its decodes' tokens", VLLM, "                request.note_tokens(last_pass, last_pass, end_ms)\n                if", "                if"),
    Mutant("decodes left out are taken as decoding", VLLM, "                request.note_wait(end_ms)\n        self._regroup()\n", "                request.note_decodes(end_ms)\n        self._regroup()\n"),
    # the engine
    Mutant("an arrival does not cut a run", ENGINE, "if self._planned and self.scheduler.may_admit():", "if self._planned and False:"),
    Mutant("a cut goes a pass too far", ENGINE, "reach = int(self._run_ends.searchsorted(now_ms)) + 1\n            if reach", "reach = int(self._run_ends.searchsorted(now_ms)) + 2\n            if reach"),
    Mutant("a cut at a boundary goes a pass too far", ENGINE, "reach = int(self._run_ends.searchsorted(now_ms)) + 1\n            if reach", "reach = int(self._run_ends.searchsorted(now_ms, side=\"right\")) + 1\n            if reach"),
    Mutant("a router sees a run's blocks as free", ENGINE, "            free -= self.scheduler.blocks_for(min(started, self._planned))\n", ""),
    Mutant("a cancelled request that completes leaves again", ENGINE, "                if request not in finished:\n", "                if True:\n"),
]  # fmt: skip


def found_by(mutant: Mutant) -> str:
    """Which suite notices, "" if none does.

    Raises:
        ValueError: the line to break is not there, or not unique.
    """
    source = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    if source.count(mutant.before) != 1:
        raise ValueError(f"{mutant.file} has {source.count(mutant.before)} times: {mutant.before!r}")
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        broken = Path(folder) / "windtunnel"
        shutil.copytree(PACKAGE, broken, ignore=shutil.ignore_patterns("__pycache__"))
        (broken / mutant.file).write_text(source.replace(mutant.before, mutant.after), encoding="utf-8")
        for name, files in SUITES.items():
            if not passes(Path(folder), files):
                return name
    return ""


def passes(package_folder: Path, files: list[str]) -> bool:
    """Whether test files pass with the package in a folder; not if they take too long or too much memory."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "mutants", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{package_folder}{os.pathsep}{TESTS}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "WINDTUNNEL_FUZZ": str(FUZZ_FACTOR),
    }
    try:
        run = subprocess.run(
            [*command, *(str(TESTS / file) for file in files)],
            cwd=TESTS.parent,
            env=environment,
            capture_output=True,
            timeout=TIMEOUT_S,
            preexec_fn=_limit_memory,
        )
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def pytest_configure() -> None:
    """As a plugin: one failure is enough, however large."""
    settings.register_profile("mutants", phases=[Phase.generate])
    settings.load_profile("mutants")


def main(words: list[str]) -> int:
    """Try the mutants; 1 if one is alive that should not be."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.what for word in words)]
    alive = 0
    for mutant in chosen:
        name = found_by(mutant)
        if name:
            print(f"found by {name}: {mutant.what}", flush=True)
        elif mutant.equivalent:
            print(f"equivalent: {mutant.what}: {mutant.equivalent}", flush=True)
        else:
            print(f"ALIVE: {mutant.what}", flush=True)
            alive += 1
    print(f"{len(chosen)} mutants, {alive} alive")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
