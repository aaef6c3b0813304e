"""The `mooncake-delta` trace format: Mooncake rows that hold only what a turn adds to its session.

The prompt of a turn is everything before it in the session, prompts and outputs, and then the tokens of its own row;
lengths and hash ids of a row count its own tokens only. The outputs are those that were really generated: a rejected
turn contributes its own tokens and no output. Source: the public replayer of Mooncake traces (Dynamo's
`mooncake-delta`). Rows cannot be told from those of `mooncake`, so it has to be named.
"""

from __future__ import annotations

from windtunnel.workload.traces.mooncake import Mooncake
from windtunnel.workload.traces.rows import Head


class MooncakeDelta(Mooncake):
    """Reader of the format."""

    name = "mooncake-delta"
    aliases = ("mooncake_delta",)
    row = "a row of mooncake that holds the tokens of one turn alone"
    accumulates = True

    def recognises(self, head: Head) -> bool:
        """Never: nothing in a row says that it is one."""
        return False
