"""A scheduler for tests that ends its process where a certain token is in a step; knows no engine."""

import os
import signal

from llm_scheduler.scheduler import TokenBudgetScheduler

PROMPT_POISON = 4242
"""A prompt with this token ends the core in the first step with it."""
COUNT_POISON = 4243
"""A prompt with this token ends the core in the step that brings its `FATAL_OUTPUTS`th token."""
FATAL_OUTPUTS = 12


class Poisoned(TokenBudgetScheduler):
    """Dies as a broken kernel would: in the middle of a step, with no word."""

    def __init__(self, config, cache, **options):
        super().__init__(config, cache, **options)
        self.outputs = {}

    def add(self, request):
        super().add(request)
        self.outputs[request.request_id] = [request.token_ids.tolist(), len(request.output_token_ids)]

    def update(self, plan, result):
        for request_id in self._in_flight.oldest(plan).request_ids:
            prompt, count = self.outputs[request_id]
            if PROMPT_POISON in prompt or (COUNT_POISON in prompt and count + 1 >= FATAL_OUTPUTS):
                os.kill(os.getpid(), signal.SIGSEGV)
        made = super().update(plan, result)
        for output in made:
            self.outputs[output.request_id][1] += len(output.tokens)
        return made
