from hypothesis import given
from hypothesis import strategies as st

from rlhf.trainer.batching.packing import cut_microbatches, deal, pack_rows, row_tokens_of

lengths = st.lists(st.integers(1, 700), max_size=60)


@given(lengths, st.integers(1, 600))
def test_every_sequence_is_in_exactly_one_row_and_rows_keep_their_bound(sizes: list[int], row_tokens: int) -> None:
    rows = pack_rows(sizes, row_tokens)
    assert sorted(index for row in rows for index in row) == list(range(len(sizes)))
    assert all(row_tokens_of(row, sizes) <= row_tokens or len(row) == 1 for row in rows)


@given(lengths)
def test_no_two_rows_could_have_been_one(sizes: list[int]) -> None:
    rows = pack_rows(sizes, 512)
    assert sum(row_tokens_of(row, sizes) <= 256 for row in rows) <= 1


@given(lengths, st.integers(1, 4))
def test_ranks_differ_by_at_most_one_row_of_tokens(sizes: list[int], ranks: int) -> None:
    rows = pack_rows(sizes, 128)
    loads = [sum(row_tokens_of(row, sizes) for row in share) for share in deal(rows, sizes, ranks)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max((row_tokens_of(row, sizes) for row in rows), default=0)


@given(lengths, st.integers(1, 2000))
def test_a_micro_batch_keeps_its_bound_counting_its_padding(sizes: list[int], tokens: int) -> None:
    rows = pack_rows(sizes, 512)
    parts = cut_microbatches(rows, sizes, tokens)
    assert [row for part in parts for row in part] == rows
    assert all(row_tokens_of(part[0], sizes) * len(part) <= tokens or len(part) == 1 for part in parts)


def test_sequences_go_longest_first_each_into_the_first_row_with_room_to_the_last_token() -> None:
    assert pack_rows([3, 6, 4, 5, 2], 10) == [(1, 2), (3, 0, 4)]


def test_sequences_of_one_length_keep_their_order() -> None:
    assert pack_rows([5, 5, 5], 10) == [(0, 1), (2,)]


def test_rows_come_longest_first() -> None:
    assert pack_rows([5, 4, 4, 9], 8) == [(3,), (1, 2), (0,)]


def test_each_row_goes_to_the_first_rank_with_the_fewest_tokens() -> None:
    rows, lengths = [(n,) for n in range(5)], [9, 6, 5, 3, 1]
    assert deal(rows, lengths, 2) == [[rows[0], rows[3]], [rows[1], rows[2], rows[4]]]
    assert deal(rows[:1], lengths, 2) == [[rows[0]], []]


def test_a_micro_batch_is_filled_to_its_last_token_by_the_length_of_its_longest_row() -> None:
    rows, lengths = [(n,) for n in range(6)], [5, 5, 4, 4, 3, 1]
    assert cut_microbatches(rows, lengths, 15) == [rows[:3], rows[3:5], rows[5:]]
    assert cut_microbatches(rows, lengths, 14) == [rows[:2], rows[2:5], rows[5:]]
    assert cut_microbatches(rows, lengths, 4) == [[one] for one in rows]
