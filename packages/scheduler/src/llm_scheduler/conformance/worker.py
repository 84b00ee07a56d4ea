"""A worker that rebuilds everything from plans alone and checks what they promise; calls no scheduler.

Token tables, block tables and KV contents follow from plans only. One full-attention KV group.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from llm_kvcache import COPY

from llm_scheduler.conformance.ledger import Entry, Ledger
from llm_scheduler.conformance.rules import Rule, RuleBroken, require
from llm_scheduler.conformance.worlds import World, extend_digest, first_digest
from llm_scheduler.plan import NewRow, Ragged, StepPlan, StepResult

_GARBAGE = -1
_INT32_FIELDS = ("slots", "num_tokens", "num_computed", "released", "transfers")


@dataclass(slots=True)
class SlotView:
    """What a worker knows of one slot.

    Attributes:
        entry: Its occupant.
        tokens: The token table: known tokens and those sampled since.
        digests: Of every prefix of ``tokens``; one more than tokens.
        limit: Tokens at which the request ends.
        blocks: The block table.
        num_computed: Tokens whose KV is written; -1 before the first step.
        is_poisoned: A step of it went wrong: its KV from there on is garbage.
    """

    entry: Entry
    tokens: list[int]
    digests: list[int]
    limit: int
    blocks: list[int] = field(default_factory=list)
    num_computed: int = -1
    is_poisoned: bool = False

    @property
    def request_id(self) -> str:
        """Its occupant's id."""
        return self.entry.name


class SimulatedWorker:
    """Executes plans in order.

    Args:
        world: Cache geometry and token rule.
        ledger: The requests, to check admissions against; nothing else is taken from it.
    """

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self._kv = [_GARBAGE] * (world.num_blocks * world.block_size)
        self._next_step = 0
        self.views: dict[int, SlotView] = {}

    def execute(self, plan: StepPlan, faulty_rows: Collection[int] = ()) -> StepResult:
        """Run a plan. Rows in ``faulty_rows`` write garbage, as a crash half way would.

        Raises:
            RuleBroken: The plan breaks its promises.
        """
        self._check_shape(plan)
        self._release(plan)
        for new in plan.admitted:
            self._admit(new)
        self._check_rows_of_slots(plan)
        self._append_blocks(plan)
        self._check_writers(plan)
        self._copy_blocks(plan)
        tokens = [self._run_row(plan, row, row in faulty_rows) for row in range(plan.num_rows)]
        return StepResult(plan.step_id, Ragged.from_rows(tokens))

    def holders(self) -> set[Entry]:
        """Return the requests that hold a slot, ended ones included."""
        return {view.entry for view in self.views.values()}

    # The plan as arrays

    def _check_shape(self, plan: StepPlan) -> None:
        message = f"step {self._next_step} is expected, the plan is {plan.step_id}"
        require(plan.step_id == self._next_step, Rule.STEP_IDS, message)
        self._next_step += 1
        for name in _INT32_FIELDS:
            found = getattr(getattr(plan, name), "dtype", type(getattr(plan, name)).__name__)
            require(found == np.int32, Rule.PLAN_ARRAYS, f"{name} is {found}, expected int32")
        samples = getattr(plan.samples, "dtype", type(plan.samples).__name__)
        require(samples == np.bool_, Rule.PLAN_ARRAYS, f"samples is {samples}, expected bool")
        lengths = [len(plan.num_tokens), len(plan.num_computed), len(plan.samples)]
        require(len(plan.new_blocks) == 1, Rule.PLAN_ARRAYS, "new_blocks needs one entry for each KV group")
        lengths.append(len(plan.new_blocks[0]))
        message = f"{len(plan.slots)} slots, but num_tokens, num_computed, samples, new_blocks have {lengths}"
        require(set(lengths) == {len(plan.slots)}, Rule.PLAN_ARRAYS, message)
        require(len(plan.slots), Rule.PLAN_HAS_ROWS, "the plan has no rows")
        self._check_rows(plan)

    def _check_rows(self, plan: StepPlan) -> None:
        slots, counts = plan.slots.tolist(), plan.num_tokens.tolist()
        doubled = sorted({slot for slot in slots if slots.count(slot) > 1})
        require(not doubled, Rule.ONE_ROW_A_SLOT, f"slots {doubled} have several rows")
        require(min(counts) >= 1, Rule.PLAN_ARRAYS, f"num_tokens is {counts}, expected at least 1 each")
        config = self._world.config
        message = f"{sum(counts)} tokens, max_num_batched_tokens is {config.max_num_batched_tokens}"
        require(sum(counts) <= config.max_num_batched_tokens, Rule.TOKEN_BUDGET, message)
        singles_end = next((row for row, count in enumerate(counts) if count > 1), len(counts))
        late = [row for row, count in enumerate(counts) if count == 1 and row > singles_end]
        require(not late, Rule.DECODE_ROWS_FIRST, f"num_tokens is {counts}")
        high = [slot for slot in slots if not 0 <= slot < config.max_num_seqs]
        require(not high, Rule.SLOT_RANGE, f"slots {high}, max_num_seqs is {config.max_num_seqs}")

    # Slots

    def _release(self, plan: StepPlan) -> None:
        for slot in plan.released.tolist():
            require(slot in self.views, Rule.SLOT_UNKNOWN, f"slot {slot} is released, but nobody holds it")
            del self.views[slot]

    def _admit(self, new: NewRow) -> None:
        name, slot = new.request_id, new.slot
        num_slots = self._world.config.max_num_seqs
        require(0 <= slot < num_slots, Rule.SLOT_RANGE, f"slot {slot}, max_num_seqs is {num_slots}")
        if slot in self.views:
            message = f"slot {slot} goes to {name}, but {self.views[slot].request_id} holds it"
            raise RuleBroken(Rule.SLOT_IN_USE, message)
        entry = self._ledger.get(name)
        if entry is None or not entry.is_live:
            raise RuleBroken(Rule.ENDED_ROWS, f"{name} is admitted, but is not live")
        require(entry not in self.holders(), Rule.ADMITTED_ONCE, f"{name} holds a slot already")
        request = entry.request
        tokens, known = np.asarray(new.token_ids).tolist(), entry.known_tokens()
        message = f"{name} is admitted with tokens {tokens}, known are {known}"
        require(tokens == known, Rule.ADMITTED_TOKENS, message)
        message = f"{name} has {len(request.token_ids)} prompt tokens, not {new.num_prompt_tokens}"
        require(new.num_prompt_tokens == len(request.token_ids), Rule.ADMITTED_TOKENS, message)
        require(new.payload is request.payload, Rule.ADMITTED_TOKENS, f"the payload of {name} was changed")
        digests = [first_digest(request)]
        for token in tokens:
            digests.append(extend_digest(digests[-1], token))
        self.views[slot] = SlotView(entry, tokens, digests, self._world.limit(request))

    def _check_rows_of_slots(self, plan: StepPlan) -> None:
        slots = plan.slots.tolist()
        for slot in slots:
            require(slot in self.views, Rule.SLOT_UNKNOWN, f"slot {slot} has a row, but nobody holds it")
            entry = self.views[slot].entry
            require(entry.is_live, Rule.ENDED_ROWS, f"{entry.name} has a row, but has ended")
        for new in plan.admitted:
            message = f"{new.request_id} is admitted to slot {new.slot} and has no row"
            require(new.slot in slots, Rule.ADMITTED_HAS_ROW, message)

    # Blocks

    def _append_blocks(self, plan: StepPlan) -> None:
        size, num_blocks = self._world.block_size, self._world.num_blocks
        for row, slot in enumerate(plan.slots.tolist()):
            view = self.views[slot]
            view.blocks.extend(plan.new_blocks[0].row(row).tolist())
            wrong = [block for block in view.blocks if not 0 <= block < num_blocks]
            message = f"{view.request_id} has blocks {wrong}, the cache has {num_blocks}"
            require(not wrong, Rule.BLOCK_TABLE, message)
            message = f"{view.request_id} has a block twice: {view.blocks}"
            require(len(set(view.blocks)) == len(view.blocks), Rule.BLOCK_TABLE, message)
            room, end = len(view.blocks) * size, int(plan.num_computed[row] + plan.num_tokens[row])
            message = f"{view.request_id} computes up to token {end}, its blocks hold {room}"
            require(room >= end, Rule.BLOCKS_ENOUGH, message)
        for new in plan.admitted:
            room = len(self.views[new.slot].blocks) * size
            message = f"{new.request_id} has {len(new.token_ids)} tokens, its blocks hold {room}"
            require(room >= len(new.token_ids), Rule.ADMISSION_BLOCKS, message)

    def _check_writers(self, plan: StepPlan) -> None:
        holders: dict[int, list[str]] = {}
        for view in self.views.values():
            for block in view.blocks:
                holders.setdefault(block, []).append(view.request_id)
        size = self._world.block_size
        for row, slot in enumerate(plan.slots.tolist()):
            start = int(plan.num_computed[row])
            end = start + int(plan.num_tokens[row])
            for block in self.views[slot].blocks[start // size : -(-end // size)]:
                message = (
                    f"block {block} is written by {self.views[slot].request_id}, held by {holders[block]}"
                )
                require(len(holders[block]) == 1, Rule.SHARED_WRITE, message)

    def _copy_blocks(self, plan: StepPlan) -> None:
        size, num_blocks = self._world.block_size, self._world.num_blocks
        for kind, source, target in plan.transfers.reshape(-1, 3).tolist():
            inside = 0 <= source < num_blocks and 0 <= target < num_blocks and kind == COPY
            message = (
                f"transfer {source} -> {target} of kind {kind}, the cache has {num_blocks} blocks, no host"
            )
            require(inside, Rule.BLOCK_TABLE, message)
            self._kv[target * size : (target + 1) * size] = self._kv[source * size : (source + 1) * size]

    # Rows

    def _run_row(self, plan: StepPlan, row: int, is_faulty: bool) -> list[int]:
        view = self.views[int(plan.slots[row])]
        start, samples = int(plan.num_computed[row]), bool(plan.samples[row])
        end = start + int(plan.num_tokens[row])
        self._check_positions(view, start, end)
        known = len(view.tokens)
        message = f"{view.request_id} computes [{start}, {end}) of {known} known tokens, samples is {samples}"
        require(samples == (end == known), Rule.SAMPLES, message)
        view.is_poisoned |= is_faulty
        self._read_and_write(view, start, end)
        view.num_computed = end
        if not samples:
            return []
        message = f"{view.request_id} samples token {end + 1}, its end is {view.limit}"
        require(end < view.limit, Rule.PAST_THE_END, message)
        token = self._world.next_token(view.digests[end])
        view.tokens.append(token)
        view.digests.append(extend_digest(view.digests[-1], token))
        return [token]

    def _check_positions(self, view: SlotView, start: int, end: int) -> None:
        if view.num_computed < 0:
            message = f"{view.request_id} starts at {start} although match_prefix is False"
            require(start == 0 or view.entry.request.match_prefix, Rule.PREFIX_OPT_OUT, message)
            view.num_computed = start
        message = f"{view.request_id} goes on at {start}, its slot has computed {view.num_computed}"
        require(start == view.num_computed, Rule.CONTIGUOUS, message)
        message = f"{view.request_id} computes up to token {end}, {len(view.tokens)} are known"
        require(end <= len(view.tokens), Rule.KNOWN_TOKENS_ONLY, message)

    def _read_and_write(self, view: SlotView, start: int, end: int) -> None:
        size, kv, blocks = self._world.block_size, self._kv, view.blocks
        places = [blocks[position // size] * size + position % size for position in range(end)]
        if view.is_poisoned:
            for place in places[start:]:
                kv[place] = _GARBAGE
            return
        for position, place in enumerate(places[:start]):
            if kv[place] != view.digests[position + 1]:
                message = f"{view.request_id} reads foreign KV at position {position} (block {place // size})"
                raise RuleBroken(Rule.KV_CONTENT, message)
        for position in range(start, end):
            kv[places[position]] = view.digests[position + 1]
