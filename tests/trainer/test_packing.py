from hypothesis import given
from hypothesis import strategies as st

from rlhf.trainer.packing import cut, deal, pack

lengths = st.lists(st.integers(1, 700), max_size=60)


@given(lengths, st.integers(1, 600))
def test_every_sequence_is_in_exactly_one_row_and_rows_keep_their_bound(sizes: list[int], row_tokens: int) -> None:
    rows = pack(sizes, row_tokens)
    assert sorted(index for row in rows for index in row.members) == list(range(len(sizes)))
    assert all(row.tokens == sum(sizes[index] for index in row.members) for row in rows)
    assert all(row.tokens <= row_tokens or len(row.members) == 1 for row in rows)


@given(lengths)
def test_no_two_rows_could_have_been_one(sizes: list[int]) -> None:
    rows = pack(sizes, 512)
    assert sum(row.tokens <= 256 for row in rows) <= 1


@given(lengths, st.integers(1, 4))
def test_ranks_differ_by_at_most_one_row_of_tokens(sizes: list[int], ranks: int) -> None:
    rows = pack(sizes, 128)
    loads = [sum(row.tokens for row in share) for share in deal(rows, ranks)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= max((row.tokens for row in rows), default=0)


@given(lengths, st.integers(1, 2000))
def test_a_micro_batch_keeps_its_bound_counting_its_padding(sizes: list[int], tokens: int) -> None:
    rows = pack(sizes, 512)
    parts = cut(rows, tokens)
    assert [row for part in parts for row in part] == rows
    assert all(part[0].tokens * len(part) <= tokens or len(part) == 1 for part in parts)
