"""A tier index shared by threads: each call is atomic, so its own books and ours agree."""

import threading

from llm_kvcache import Tier, TierIndex
from llm_kvcache.errors import NoRoom


def test_threads_share_an_index():
    index = TierIndex([Tier("device", 8), Tier("host", 16)])
    failures = []

    def work(worker):
        mine = [bytes([worker]) * 16, bytes([worker + 100]) * 16]
        try:
            for _ in range(300):
                try:
                    begun = index.begin_store(mine, "host")
                    index.complete([transfer.id for transfer in begun.transfers])
                    up = index.promote(mine, "device")
                    index.fail([transfer.id for transfer in up.transfers[1:]])
                    index.complete([transfer.id for transfer in up.transfers[:1]])
                except NoRoom:
                    pass
                index.remove(mine)
                assert index.locate(mine) == []
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    index.check()
    assert index.num_in_flight == 0
    assert all(tier.resident + tier.leaving == 0 for tier in index.stats())
