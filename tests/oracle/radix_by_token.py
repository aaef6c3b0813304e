"""SGLang's radix tree over lists of token ids: what the radix cache of windtunnel.engine.kv must be equal to.

Every node holds its tokens; an access stamps every node of its path; eviction looks at all leaves each time. Slow and
obvious on purpose. Rules of SGLang 0.5.23; it shares no code with the cache that it judges.
"""

from __future__ import annotations

from golden.sglang_format import RawEvent

PATH_STEP = 1e-5  # how much older than the node below a node of an accessed path is


class TreeNode:
    """Tokens of the tree that are locked, split and evicted together; `hashes` are those of their pages."""

    def __init__(self, tokens: list[int], parent: TreeNode | None, now: float) -> None:
        self.tokens = tokens
        self.parent = parent
        self.children: dict[tuple[int, ...], TreeNode] = {}
        self.hashes: list[int] = []
        self.locks = 0
        self.hits = 0
        self.last = now
        self.born = now


class RadixByToken:
    """The tree, and the free tokens of its pool.

    Attributes:
        free, evictable, protected: tokens.
        events: what was stored and removed since the owner last cleared it.
    """

    def __init__(self, tokens: int, page_size: int, policy: str = "lru", caching: bool = True) -> None:
        self.page_size = page_size
        self.policy = policy
        self.caching = caching
        self.free = tokens // page_size * page_size
        self.evictable = 0
        self.protected = 0
        self.events: list[RawEvent] = []
        self._now = 0
        self._hashes: dict[tuple[int | None, tuple[int, ...]], int] = {}
        self.root = TreeNode([], None, self._tick())
        self.root.locks = 1

    def match(self, tokens: list[int]) -> tuple[int, TreeNode]:
        """Length of the cached prefix in whole pages, and the node where it ends, which is split if need be."""
        node, at = self.root, 0
        tokens = self._whole(tokens)
        if not self.caching or not tokens:
            return 0, node
        while at < len(tokens):
            child = self._child(node, tokens, at)
            if child is None:
                break
            common = self._common(child, tokens, at)
            at += common
            if common < len(child.tokens):
                node = self._split(child, common)
                break
            node = child
        stamp: float = self._tick()
        visited: TreeNode | None = node
        while visited is not None:
            visited.last = stamp
            stamp -= PATH_STEP
            visited = visited.parent
        return at, node

    def insert(self, tokens: list[int], held: int, inserted: int) -> tuple[TreeNode, int]:
        """Put whole pages into the tree; the node where they end, and how many the inserter has in vain.

        Its first `held` tokens are the tree's; `inserted` of them it has inserted before.
        """
        node, at, duplicate = self.root, 0, 0
        while at < len(tokens):
            child = self._child(node, tokens, at)
            if child is None:
                break
            child.last = self._tick()
            common = self._common(child, tokens, at)
            if common < len(child.tokens):
                child = self._split(child, common)
            duplicate += max(0, common - max(0, held - at))
            if at + common > inserted:
                child.hits += 1
            node, at = child, at + common
        if at < len(tokens):
            leaf = TreeNode(tokens[at:], node, self._tick())
            parent = node.hashes[-1] if node.hashes else None
            before = parent
            for start in range(0, len(leaf.tokens), self.page_size):
                page = (before, tuple(leaf.tokens[start : start + self.page_size]))
                before = self._hashes.setdefault(page, len(self._hashes))
                leaf.hashes.append(before)
            node.children[self._key(tokens, at)] = leaf
            self.evictable += len(leaf.tokens)
            self.events.append(("S", parent, leaf.hashes))
            if len(tokens) > inserted:
                leaf.hits += 1
            node = leaf
        return node, duplicate

    def lock(self, node: TreeNode, change: int) -> None:
        """Add to the locks of a path, from `node` up."""
        while self.caching and node.parent is not None:
            size = len(node.tokens)
            if change > 0 and node.locks == 0:
                self.evictable -= size
                self.protected += size
            node.locks += change
            if change < 0 and node.locks == 0:
                self.evictable += size
                self.protected -= size
            node = node.parent

    def evict_until(self, tokens: int) -> None:
        """Free whole leaves that nobody locks, in the order of the policy, until so many tokens are free."""
        while self.caching and self.free < tokens:
            leaves = [node for node in self.nodes() if not node.children and not node.locks]
            if not leaves:
                return
            leaf = min(leaves, key=self._rank)
            self.free += len(leaf.tokens)
            self.evictable -= len(leaf.tokens)
            self.events.append(("R", None, leaf.hashes))
            assert leaf.parent is not None
            del leaf.parent.children[self._key(leaf.tokens, 0)]

    def nodes(self) -> list[TreeNode]:
        """All nodes but the root, parents first."""
        found = [self.root]
        for node in found:
            found += node.children.values()
        return found[1:]

    def _rank(self, node: TreeNode) -> tuple[float, float]:
        if self.policy == "lfu":
            return node.hits, node.last
        return {"lru": node.last, "mru": -node.last, "fifo": node.born}[self.policy], 0.0

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def _whole(self, tokens: list[int]) -> list[int]:
        return tokens[: len(tokens) // self.page_size * self.page_size]

    def _key(self, tokens: list[int], at: int) -> tuple[int, ...]:
        return tuple(tokens[at : at + self.page_size])

    def _child(self, node: TreeNode, tokens: list[int], at: int) -> TreeNode | None:
        return node.children.get(self._key(tokens, at))

    def _common(self, node: TreeNode, tokens: list[int], at: int) -> int:
        """Tokens, in whole pages, that a node has in common with `tokens` from `at` on."""
        same = 0
        for own, other in zip(node.tokens, tokens[at : at + len(node.tokens)], strict=False):
            if own != other:
                break
            same += 1
        return same // self.page_size * self.page_size

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut the first `at` tokens off a node; they become its parent, which is returned."""
        assert node.parent is not None
        upper = TreeNode(node.tokens[:at], node.parent, self._tick())
        upper.locks, upper.hits, upper.born = node.locks, node.hits, node.born
        upper.hashes, node.hashes = node.hashes[: at // self.page_size], node.hashes[at // self.page_size :]
        node.parent.children[self._key(upper.tokens, 0)] = upper
        node.tokens = node.tokens[at:]
        node.parent = upper
        upper.children[self._key(node.tokens, 0)] = node
        node.last = self._tick()
        return upper
