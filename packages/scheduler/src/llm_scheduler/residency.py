"""Who holds slots and cache blocks, from moving in to giving back; knows nothing of budgets or plans."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from llm_kvcache import KVCache

from llm_scheduler.caps import Caps
from llm_scheduler.deadlines import Deadlines
from llm_scheduler.metering import Meter
from llm_scheduler.ordering import OrderedRequests
from llm_scheduler.plan import Int32, Int64, Ragged
from llm_scheduler.quotas import Quotas
from llm_scheduler.remote_kv import Transfers
from llm_scheduler.request import RequestState
from llm_scheduler.rows import PlannedRows
from llm_scheduler.slots import FAILED, SlotTable
from llm_scheduler.waiting import WaitingQueue


class Residency:
    """The running requests and their blocks.

    Attributes:
        running: The running requests by rank; the last is preempted first.
        newcomers: By slot, those that no plan has named as admitted yet.
        quotas: Who is short by the quota of its tenant.

    Args:
        cache: The KV cache.
        table: The slots; this object decides who takes and leaves them.
        waiting: The queue that preempted requests go back to.
        meter: Told who takes and leaves a slot.
        caps: Told who takes and leaves a slot.
        deadlines: Told who waits again.
        transfers: Asked for KV that may be brought from elsewhere.
    """

    def __init__(
        self,
        cache: KVCache,
        table: SlotTable,
        waiting: WaitingQueue,
        meter: Meter,
        caps: Caps,
        deadlines: Deadlines,
        transfers: Transfers,
    ) -> None:
        self._cache = cache
        self._table = table
        self._waiting = waiting
        self._meter = meter
        self._caps = caps
        self._transfers = transfers
        self._deadlines = deadlines
        self._running_slots: Int64 | None = None
        self._running_states: list[RequestState] | None = None
        self._steps_of_one: Int32 = np.zeros(1, np.int32)
        self._refused: RequestState | None = None
        self._refused_at_blocks = 0
        self._refused_hit = 0
        self._unsound: set[int] = set()
        self.running = OrderedRequests("rank")
        self.quotas = Quotas(cache, table, self.running)
        self.newcomers: dict[int, RequestState] = {}
        self.num_preemptions = 0
        self._running_ids: list[str] = []
        self.prefix_queries = 0
        self.prefix_hits = 0

    def running_slots(self) -> Int64:
        """Return int64[R], the slots of running requests in policy order."""
        if self._running_slots is None:
            self._running_slots = np.array([state.slot for state in self.running], np.int64)
        return self._running_slots

    def states_at(self, slots: Int64) -> tuple[list[RequestState], list[str]]:
        """Return the requests of slots and their ids; not to be changed."""
        if slots is not self._running_slots:
            states = self._table.states_at(slots)
            return states, [state.request.request_id for state in states]
        if self._running_states is None:
            self._running_states = list(self.running)
            self._running_ids = [state.request.request_id for state in self._running_states]
        return self._running_states, self._running_ids

    # Moving in

    def move_in(self, state: RequestState) -> bool:
        """Give a waiting request a slot, its prefix hit and blocks for all its known tokens, or nothing.

        The caller has seen that a slot is free.

        Returns:
            Whether it moved in. It runs now, or ``state.is_loading``: KV is brought from elsewhere first.
            Where it did not, ``quotas.refuses`` tells whether the quota of its tenant is why.
        """
        if self.quotas.refuses(state):
            return False
        # Looking up a long prompt in every step until a block comes back would cost too much.
        if state is self._refused and self._num_available_blocks() <= self._refused_at_blocks:
            return False
        num_cached = self._match(state)
        has_room = self._cache.grow(state.seq, state.num_known_tokens - num_cached)
        if not has_room or self._would_thrash(state) or self.quotas.would_thrash(state):
            self._refuse(state, num_cached, has_room)
            return False
        self._refused = None
        self.quotas.forget(state)
        self._waiting.remove(state)
        self._table.take(state, num_cached)
        self._meter.enter(state)
        self._caps.entered(state.request)
        num_remote = self._transfers.num_offered(state, num_cached)
        if num_remote:
            groups = range(len(self._cache.groups))
            tables = tuple(self._cache.block_table(state.seq, group) for group in groups)
            self._transfers.start(state, tables, num_cached, num_remote)
        else:
            self._set_running(state)
        self._count_hit(state, num_cached)
        return True

    def _refuse(self, state: RequestState, num_cached: int, has_room: bool) -> None:
        """Give back what a request took that does not fit, and remember why."""
        if has_room:
            is_over_quota = self.quotas.would_thrash(state)
        else:
            is_over_quota = self.quotas.is_short(state, num_cached, state.num_known_tokens)
        self._cache.shrink(state.seq, 0)
        if is_over_quota:
            self.quotas.refuse(state)
            return
        self._refused, self._refused_at_blocks = state, self._num_available_blocks()
        self._refused_hit = num_cached

    # KV from elsewhere

    def finish_loading(self, request_id: str, num_tokens: int) -> bool:
        """Let a request run whose KV arrived, or give back what an abandoned transfer has held.

        Returns:
            Whether a request was waiting for it.

        Raises:
            InvalidResult: The transfer did not bring that many tokens.
        """
        transfer = self._transfers.take(request_id, num_tokens)
        if transfer is None:
            return False
        state = transfer.state
        if state is None:
            self._unsound.discard(transfer.seq)
            self._cache.release(transfer.seq)
            return False
        if state.seq in self._unsound:
            self._start_anew(state)
            return False
        if num_tokens:
            num_computed = transfer.num_local_tokens + num_tokens
            self._cache.commit(state.seq, num_computed)
            self._table.computed[state.slot] = num_computed
            self._meter.enter_at(state)
            state.num_cached_tokens += num_tokens
            self._table.cached[state.slot] = state.num_cached_tokens
        self._run_loaded(state)
        return True

    def give_up_loading(self) -> None:
        """Let requests that waited too long for their KV compute it."""
        for state in self._transfers.timed_out():
            if self._transfers.is_cancelled(state.request.request_id):
                self._run_loaded(state)
            else:
                # The transfer may still write into these blocks: the request starts anew with others.
                state.seq = -1
                self._leave_loading(state)
                self._waiting.add(state)
                self._deadlines.watch(state)

    def _run_loaded(self, state: RequestState) -> None:
        if state.seq in self._unsound:
            self._start_anew(state)
            return
        state.is_loading = False
        self._set_running(state)

    def lose_loads(self, seqs: list[int]) -> None:
        """Let requests start anew whose blocks were to come from the cache's host tier and did not.

        Args:
            seqs: As ``KVCache.finish_transfers`` names them.
        """
        states = [state for state in self._table.occupants() if state.seq in seqs and not state.finished]
        for state in states:
            if state.is_loading:
                # Other KV may still be written into its blocks: it starts anew when that transfer is over.
                self._unsound.add(state.seq)
            else:
                self.preempt(state)

    def _start_anew(self, state: RequestState) -> None:
        self._unsound.discard(state.seq)
        self._cache.shrink(state.seq, 0)
        self._leave_loading(state)
        self._waiting.add(state)
        self._deadlines.watch(state)

    def _leave_loading(self, state: RequestState) -> None:
        """Give back the slot, which no plan has named; the blocks are another matter."""
        state.is_loading = False
        self._meter.leave(state)
        self._caps.left(state.request)
        self._table.give_back([state.slot])

    def could_fit(self, state: RequestState) -> bool:
        """Tell whether a waiting request could have blocks if all less urgent ones gave up theirs.

        True where nothing speaks against it: blocks that they share with others do not come back.
        """
        if state is not self._refused:
            return True
        victims = takewhile(lambda other: other.yields_to(state), reversed(self.running))
        reserved = self._table.reserved[[victim.slot for victim in victims]]
        num_blocks = self._num_available_blocks()
        for group in self._cache.groups:
            num_blocks += (
                int((-(-reserved // group.block_size)).sum()) + self._refused_hit // group.block_size
            )
            num_blocks -= -(-state.num_known_tokens // group.block_size)
        return num_blocks >= 0

    def cached_tokens(self, state: RequestState) -> int:
        """Return how many tokens of a waiting request the prefix cache holds now."""
        if not state.request.match_prefix:
            return 0
        self._require_open(state)
        return self._cache.lookup(state.seq)

    def _match(self, state: RequestState) -> int:
        self._require_open(state)
        return self._cache.match(state.seq) if state.request.match_prefix else 0

    def _require_open(self, state: RequestState) -> None:
        """Tell the cache of a request at the first need."""
        request = state.request
        if state.seq < 0:
            state.seq = self._cache.open(
                state.known_token_ids(),
                salt=request.salt,
                lora=request.lora,
                media=request.media,
                tenant=request.tenant,
            )

    def _would_thrash(self, state: RequestState) -> bool:
        """Tell whether a preempted request would come back only to lose its blocks to the next growth."""
        return state.was_preempted and self._num_available_blocks() < len(self.running)

    def introduce(self, rows: PlannedRows) -> tuple[PlannedRows, list[RequestState]]:
        """Give the rows of newcomers their whole block tables.

        Returns:
            The rows, newcomers last, and the newcomers among them.
        """
        newcomers = self.newcomers
        if not newcomers:
            return rows, []
        is_new = np.isin(rows.slots, list(newcomers))
        slots = rows.slots[is_new]
        known = rows.take(np.flatnonzero(~is_new))
        new = PlannedRows(slots, rows.num_tokens[is_new], self._tables(slots))
        self._table.is_told[slots] = True
        return known.then(new), [newcomers.pop(slot) for slot in slots.tolist()]

    def _tables(self, slots: Int64) -> tuple[Ragged, ...]:
        """Return, per KV group, the whole block table of each slot."""
        seqs = self._table.seq[slots].tolist()
        return tuple(
            Ragged.from_rows([self._cache.block_table(seq, group) for seq in seqs])
            for group in range(len(self._cache.groups))
        )

    def _count_hit(self, state: RequestState, num_cached: int) -> None:
        if state.num_cached_tokens < 0:
            state.num_cached_tokens = num_cached
        self._table.cached[state.slot] = state.num_cached_tokens
        if state.request.match_prefix:
            self.prefix_queries += state.num_known_tokens
            self.prefix_hits += num_cached

    def _num_available_blocks(self) -> int:
        stats = self._cache.stats()
        return stats.num_blocks - stats.used

    # Results

    def append_singles(self, slots: Int64, tokens: Int32) -> None:
        """Tell the cache and the outputs one new token of each row.

        Args:
            slots: int64[R], slots of live requests.
            tokens: int32[R].
        """
        if not len(slots):
            return
        table = self._table
        if len(slots) + 1 > len(self._steps_of_one):
            self._steps_of_one = np.arange(len(slots) + 1, dtype=np.int32)
        self._cache.append_many(table.seq[slots], tokens, self._steps_of_one[: len(slots) + 1])
        table.outputs.append(slots, tokens, table.states)
        table.known[slots] += 1

    def flush_outputs(self, state: RequestState) -> None:
        """Bring ``state.outputs`` up to date."""
        if state.slot >= 0:
            self._table.outputs.flush(state)

    def append(self, states: list[RequestState], taken: list[list[int]]) -> None:
        """Tell the cache the tokens that requests took, preempted ones included."""
        if not states:
            return
        seqs = np.array([state.seq for state in states], np.int64)
        tokens = Ragged.from_rows(taken)
        self._cache.append_many(seqs, tokens.values, tokens.offsets)
        slots = np.array([state.slot for state in states], np.int64)
        resident = slots >= 0
        self._table.known[slots[resident]] += np.diff(tokens.offsets)[resident]

    def commit(self, slots: Int64, num_computed: Int32) -> None:
        """Tell the cache that KV was written, except for what failed.

        Args:
            slots: int64[R], slots of the step's rows that still have them.
            num_computed: int32[R], tokens of each row whose KV is written now.
        """
        table = self._table
        sound = table.ended[slots] != FAILED
        if not sound.all():
            slots, num_computed = slots[sound], num_computed[sound]
        if len(slots):
            # A request that ended computed a token more than it knows when a later plan was in flight.
            self._cache.commit_many(table.seq[slots], np.minimum(num_computed, table.known[slots]))

    # Leaving

    def preempt(self, state: RequestState) -> None:
        """Send a running request back to the queue.

        Its blocks are free at once, although a plan in flight may still write to them: plans run in order, so
        whoever gets them writes later.
        """
        slot = state.slot
        state.tokens_in_flight = int(self._table.in_flight[slot])
        state.was_preempted = True
        state.num_overtaken += 1  # Whoever it made room for was in the queue before it returns.
        self._table.outputs.flush(state)
        self._cache.shrink(state.seq, 0)
        self._leave_running(state)
        self._table.give_back([slot])
        self._waiting.add(state)
        self._deadlines.watch(state)
        self.num_preemptions += 1

    def end(self, state: RequestState, how: int) -> None:
        """Take out an ended request; what a running one holds stays until ``give_back_idle``."""
        if state.is_loading:
            if self._transfers.is_cancelled(state.request.request_id):
                self._cache.release(state.seq)
            self._leave_loading(state)
            return
        if state.slot >= 0:
            self._leave_running(state)
            self._table.mark_ended(state.slot, how)
            return
        self._waiting.remove(state)
        self._caps.withdrawn(state.request)
        if state is self._refused:
            self._refused = None
        self.quotas.forget(state)
        if state.seq >= 0:
            self._cache.release(state.seq)

    def give_back_idle(self, slots: Int64) -> None:
        """Free those of the slots whose request has ended and that no plan in flight holds."""
        table = self._table
        idle = slots[(table.ended[slots] != 0) & (table.plans[slots] == 0)]
        if len(idle):
            self._cache.release_many(table.seq[idle])
            table.give_back(idle.tolist())

    def _set_running(self, state: RequestState) -> None:
        self.newcomers[state.slot] = state
        self.running.add(state)
        self._running_slots = self._running_states = None

    def _leave_running(self, state: RequestState) -> None:
        self.running.remove(state)
        self.newcomers.pop(state.slot, None)
        self._meter.leave(state)
        self._caps.left(state.request)
        self._running_slots = self._running_states = None
