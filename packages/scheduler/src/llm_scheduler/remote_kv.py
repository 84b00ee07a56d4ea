"""KV that is brought from elsewhere: a connector's protocol and which transfers go on; copies nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llm_scheduler.errors import InvalidResult
from llm_scheduler.plan import Int32
from llm_scheduler.request import Request, RequestState


class RemoteKV(Protocol):
    """Brings computed KV of prompts into blocks of this engine.

    None of the methods may wait for the transfer. Its end is told by ``TokenBudgetScheduler.kv_arrived``,
    exactly once for each ``load`` unless ``cancel`` returned True. They must not raise.
    """

    def find(self, request: Request, num_local_tokens: int) -> int:
        """Return how many prompt tokens after the first ``num_local_tokens`` it could bring; 0 for none."""
        ...

    def load(
        self, request: Request, block_tables: tuple[Int32, ...], num_local_tokens: int, num_tokens: int
    ) -> None:
        """Start to bring tokens.

        Args:
            request: The request.
            block_tables: Per KV group, all blocks of the request.
            num_local_tokens: Tokens already there; a multiple of the block size.
            num_tokens: Tokens to bring after those; at most what ``find`` returned.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """Try to stop the transfer of a request.

        Returns:
            True where it is certain that nothing is written any more; ``kv_arrived`` is then not called.
            False where the transfer goes on: the blocks stay set aside until ``kv_arrived``.
        """
        ...


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer that goes on.

    Attributes:
        request_id: Whose KV it is.
        state: The request, or None where it ended or went on without the transfer.
        seq: The sequence whose blocks are written.
        num_local_tokens: Tokens that were there before.
        num_tokens: Tokens to bring.
        timeout_at_s: When to give up.
    """

    request_id: str
    state: RequestState | None
    seq: int
    num_local_tokens: int
    num_tokens: int
    timeout_at_s: float


class Transfers:
    """The transfers that go on, oldest first; at most one for an id.

    Args:
        remote: The connector, or None to bring nothing.
        timeout_s: Seconds after which a request stops waiting.
        clock: Seconds.
    """

    def __init__(self, remote: RemoteKV | None, timeout_s: float, clock: Callable[[], float]) -> None:
        self._remote = remote
        self._timeout_s = timeout_s
        self._clock = clock
        self._by_id: dict[str, Transfer] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_awaited(self) -> int:
        """Requests that wait for a transfer."""
        return sum(transfer.state is not None for transfer in self._by_id.values())

    def num_offered(self, state: RequestState, num_local_tokens: int) -> int:
        """Return how many prompt tokens to bring for a request about to run; never its last known token."""
        request = state.request
        if self._remote is None or state.asked_remote or not request.match_prefix:
            return 0
        if request.request_id in self._by_id:
            return 0  # An ended request with this id still has a transfer going on.
        most = min(state.num_known_tokens - 1, state.num_prompt_tokens) - num_local_tokens
        return max(0, min(self._remote.find(request, num_local_tokens), most)) if most > 0 else 0

    def start(
        self, state: RequestState, tables: tuple[Int32, ...], num_local_tokens: int, num_tokens: int
    ) -> None:
        """Start a transfer for a request that has its slot and blocks."""
        assert self._remote is not None, "nothing was offered"
        state.asked_remote = state.is_loading = True
        request_id = state.request.request_id
        timeout_at_s = self._clock() + self._timeout_s
        self._by_id[request_id] = Transfer(
            request_id, state, state.seq, num_local_tokens, num_tokens, timeout_at_s
        )
        self._remote.load(state.request, tables, num_local_tokens, num_tokens)

    def take(self, request_id: str, num_tokens: int) -> Transfer | None:
        """Take out a transfer that ended with so many tokens; None where there is none.

        Raises:
            InvalidResult: It did not bring that many.
        """
        transfer = self._by_id.get(request_id)
        if transfer is None:
            return None
        if isinstance(num_tokens, bool) or not 0 <= num_tokens <= transfer.num_tokens:
            raise InvalidResult("num_tokens", f"{num_tokens}, asked for {transfer.num_tokens}")
        return self._by_id.pop(request_id)

    def is_cancelled(self, request_id: str) -> bool:
        """Try to stop a transfer; where it goes on nobody waits for it any more.

        Returns:
            True where it was stopped and taken out.
        """
        assert self._remote is not None, "there is no transfer"
        if self._remote.cancel(request_id):
            del self._by_id[request_id]
            return True
        self._by_id[request_id].state = None
        return False

    def timed_out(self) -> list[RequestState]:
        """Return the requests that have waited too long."""
        if not self._by_id:
            return []
        now_s = self._clock()
        return [
            transfer.state
            for transfer in self._by_id.values()
            if transfer.state is not None and transfer.timeout_at_s <= now_s
        ]
