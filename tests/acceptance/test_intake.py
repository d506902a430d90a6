"""A producer that is ten times as fast as the consumer takes memory up to the mark, in a process of its own."""

from benchmarks.intake import measure

MARK = 500


def test_the_memory_of_a_fast_producer_follows_the_mark_and_not_what_it_sends():
    bounded = measure("memory", 40_000, MARK)
    free = measure("memory", 40_000, 10_000_000)
    assert bounded.backlog <= MARK + 512
    assert free.backlog > 20_000
    # In MB, of 40,000 payloads of 1 KB.
    assert bounded.peak < free.peak - 20


def test_it_is_held_back_on_a_durable_store_too():
    found = measure("sqlite", 5_000, MARK)
    assert found.backlog <= MARK + 512
