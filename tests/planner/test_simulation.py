"""How much of a pool holds tokens: the paper's bars, our own pool, the closed form, and both allocators."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv import PlanError, plan
from qkv.planner.allocators import BuddyAllocator, CountedPages, PooledPages
from qkv.planner.contiguous_runs import RESERVES, simulate_contiguous
from qkv.planner.lengths import ALPACA, SHAREGPT, find_lengths
from qkv.planner.paged_runs import simulate_paged
from qkv.planner.simulation import closed_form, mean_in_flight
from qkv.planner.utilisation import compare_utilisation

SLOTS, LONGEST = 15_700, 2048
"""OPT-13B in 12 GiB, as in Kwon et al. 2023, Fig. 2."""

PAPER = {
    "max": (20.4, 13.3, 57.3, 8.9),
    "power of two": (26.8, 17.9, 13.6, 41.6),
    "oracle": (38.2, 25.2, 0, 36.6),
}
"""Percent of all slots: tokens, reserved, internal, external."""
PAPER_PAGED = 96.3


def sharegpt(seed, count=3000):
    return SHAREGPT.draw(count, limit=LONGEST, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_papers_bars_come_out_within_three_points(seed):
    lengths = sharegpt(seed, 8000)
    for name, bars in PAPER.items():
        used = simulate_contiguous(name, lengths, SLOTS, LONGEST, ends=3000)
        shares = (used.token_states, used.reserved, used.internal, used.external)
        assert abs(100 * used.token_states - bars[0]) < 3, name
        assert np.abs(100 * np.array(shares) - bars).max() < 5, name
        assert sum(shares) == pytest.approx(1)
    paged = simulate_paged(lengths, CountedPages(SLOTS // 16), 16, ends=800)
    assert abs(100 * paged.token_states - PAPER_PAGED) < 3


def test_as_many_requests_run_at_once_as_in_the_paper():
    batches = [simulate_contiguous(name, sharegpt(0), SLOTS, LONGEST, 2000).batch for name in RESERVES]
    assert batches == pytest.approx([7.0, 9.81, 13.62], rel=0.05)


def test_our_own_pool_gives_the_same_pages_to_the_same_stream():
    lengths, ends = sharegpt(1), 300
    counted = simulate_paged(lengths, CountedPages(SLOTS // 16), 16, ends)
    pooled = PooledPages(SLOTS // 16, page_nbytes=16)
    assert simulate_paged(lengths, pooled, 16, ends) == counted
    pooled.pool.check_integrity()
    assert pooled.pool.peak_nbytes <= SLOTS


@pytest.mark.parametrize("page_size", [1, 16, 64, 256])
def test_the_closed_form_says_what_is_simulated(page_size):
    lengths = sharegpt(2)
    used = simulate_paged(lengths, CountedPages(SLOTS // page_size), page_size, ends=300)
    assert used.of_allocated == pytest.approx(closed_form(mean_in_flight(lengths), page_size), abs=0.015)


def test_above_95_percent_depends_on_requests_and_pages():
    def of_pool(model, page_size):
        lengths = model.draw(3000, limit=LONGEST, seed=3)
        return simulate_paged(lengths, CountedPages(SLOTS // page_size), page_size, ends=400).token_states

    assert of_pool(SHAREGPT, 16) > 0.95 > of_pool(SHAREGPT, 64)
    assert 0.95 > of_pool(ALPACA, 16) > of_pool(ALPACA, 64)


def test_a_stream_worked_out_by_hand():
    # Two requests of 2 + 2 tokens at a time in 8 slots: tokens 2, 3, then two new ones begin.
    used = simulate_contiguous("oracle", np.array([[2, 2]]), 8, 4, ends=100)
    assert (used.token_states, used.reserved, used.internal, used.external) == (5 / 8, 3 / 8, 0, 0)
    assert used.batch == 2


def paged_in_plain_loops(lengths, num_pages, P, ends):
    """Steps as lists of [tokens, final] in the order in which requests began; the slow twin."""
    waiting, running, position, ended, largest, target = [], [], 0, 0, 0, None
    steps = tokens = slots = requests = 0

    def pages(request):
        return -(-request[0] // P)

    while target is None or ended < target:
        while True:
            if not waiting:
                prompt, answer = lengths[position % len(lengths)]
                waiting.append([int(prompt), int(prompt + answer)])
                position += 1
            free = num_pages - sum(map(pages, running))
            if pages(waiting[0]) > free - num_pages // 100:
                break
            running.append(waiting.pop(0))
        largest = max(largest, len(running))
        if target is None and ended >= 4 * largest:
            target = ended + ends
        if target is not None:
            steps, requests = steps + 1, requests + len(running)
            tokens, slots = tokens + sum(r[0] for r in running), slots + P * sum(map(pages, running))
        grown = []
        while running:  # the first to come grows first; for its page the last to come is sent back
            request = running.pop(0)
            while (
                request[0] % P == 0 and sum(map(pages, [*grown, request, *running])) == num_pages and running
            ):
                waiting.insert(0, running.pop())
            if request[0] % P == 0 and sum(map(pages, [*grown, request])) == num_pages:
                waiting.insert(0, request)
                break
            grown.append([request[0] + 1, request[1]])
        ended += sum(tokens_held >= final for tokens_held, final in grown)
        running = [request for request in grown if request[0] < request[1]]
    area = steps * num_pages * P
    return tokens / area, (slots - tokens) / area, requests / steps


@pytest.mark.parametrize(("num_pages", "page_size"), [(7, 4), (103, 4), (61, 16), (211, 3)])
def test_the_simulator_does_what_plain_loops_do(num_pages, page_size):
    lengths = np.random.default_rng(5).integers(1, [12, 17], size=(41, 2))
    used = simulate_paged(lengths, CountedPages(num_pages), page_size, ends=150)
    expected = paged_in_plain_loops(lengths, num_pages, page_size, ends=150)
    assert (used.token_states, used.internal, used.batch) == pytest.approx(expected, rel=1e-12)


def test_a_request_that_was_sent_back_ends_all_the_same():
    # 3 pages of 4: two requests of 1 + 8 tokens begin, and only one has room to end.
    used = simulate_paged(np.array([[1, 8]]), CountedPages(3), 4, ends=50)
    assert 1 <= used.batch < 2.5


def test_a_pool_too_small_for_one_request_is_refused():
    with pytest.raises(PlanError, match="no run"):
        simulate_contiguous("max", np.array([[5, 5]]), 15, 16, ends=1)
    with pytest.raises(PlanError, match="too small"):
        simulate_paged(np.array([[99, 5]]), CountedPages(3), 16, ends=1)
    with pytest.raises(PlanError, match="does not hold one request"):
        compare_utilisation("sharegpt", num_slots=2000, longest=2048)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 300), st.randoms())
def test_buddies_never_overlap_and_all_come_back(sizes, num_slots, random):
    buddies, taken = BuddyAllocator(num_slots), {}
    for size in sizes:
        start = buddies.take(size)
        if start is not None:
            end = start + (1 << (size - 1).bit_length())
            assert end <= num_slots
            assert all(end <= other or start >= other_end for other, (other_end, _) in taken.items())
            taken[start] = (end, size)
        if taken and random.random() < 0.4:
            start = random.choice(sorted(taken))
            buddies.free(start, taken.pop(start)[1])
    for start, (_, size) in taken.items():
        buddies.free(start, size)
    assert buddies.take(1 << (num_slots.bit_length() - 1)) == 0  # joined again


@pytest.mark.parametrize("model", [SHAREGPT, ALPACA])
def test_lengths_have_the_papers_means_after_they_are_cut(model):
    drawn = model.draw(20_000, limit=LONGEST, seed=7)
    assert drawn.mean(axis=0) == pytest.approx([model.mean_prompt, model.mean_answer], rel=0.01)
    assert drawn.min() >= 1 and drawn.sum(axis=1).max() <= LONGEST


def test_lengths_of_ones_own_are_read_from_a_table(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time,prompt,answer\n2023-11-16,374,44\n2023-11-17,9000,7\n")
    assert find_lengths(path, 0, limit=2048).tolist() == [[374, 44], [2047, 1]]


@pytest.mark.parametrize("text", ["", "prompt,answer\n", "a,b\n1,2\n3\n", "1;2\n"])
def test_a_table_without_lengths_is_refused(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(PlanError, match="two integers a row"):
        find_lengths(path, 0, limit=2048)


def test_a_name_that_is_neither_distribution_nor_file_is_refused():
    with pytest.raises(PlanError, match="sharegpt, alpaca"):
        find_lengths("sharegtp", 0, limit=2048)
    with pytest.raises(PlanError, match="too little room"):
        SHAREGPT.draw(10, limit=600)


def test_a_model_without_slots_has_none_to_simulate():
    mamba = {"model_type": "mamba", "hidden_size": 48, "num_hidden_layers": 3, "expand": 2}
    with pytest.raises(PlanError, match="no slots"):
        plan({**mamba, "state_size": 5, "conv_kernel": 4}, context=2048, lengths="sharegpt")


def test_a_plan_simulates_the_pool_it_is_asked_about():
    made = plan("opt-13b", kv_memory="12GiB", lengths="sharegpt")
    assert made.utilisation is not None
    assert made.utilisation.num_slots == 15_728
    assert [row.strategy for row in made.utilisation.rows] == ["max", "power of two", "oracle", "pages of 16"]
    assert made.utilisation.closed_form == pytest.approx(made.utilisation.rows[-1].of_allocated, abs=0.01)
