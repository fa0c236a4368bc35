import hashlib

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.shards import LONGEST, Cutter, Names, cut, opens_shard


def _ids(count, salt=""):
    return [hashlib.sha256(f"{salt}{number}".encode()).hexdigest() for number in range(count)]


def _shards(ids, mean=50):
    ranges = cut(ids, mean)
    names = Names()
    return {names.of(ids[rows.start]): ids[rows.start : rows.stop] for rows in ranges}


@given(st.lists(st.sampled_from(_ids(30)), max_size=60), st.integers(1, 8))
def test_shards_cover_all_rows_in_order_under_distinct_names(ids, mean):
    ranges = cut(ids, mean)
    assert [row for rows in ranges for row in rows] == list(range(len(ids)))
    names = Names()
    assert len({names.of(ids[rows.start]) for rows in ranges}) == len(ranges)


@given(st.lists(st.sampled_from(_ids(30)), max_size=60), st.integers(1, 8), st.integers(1, 9))
def test_parts_are_cut_like_the_whole(ids, mean, size):
    cutter, starts = Cutter(mean), []
    for at in range(0, len(ids), size):
        starts += [at + row for row in cutter.feed(ids[at : at + size])]
    assert starts == [rows.start for rows in cut(ids, mean)]


def test_no_shard_grows_without_bound():
    ids = [prompt_id for prompt_id in _ids(4000, "x") if not opens_shard(prompt_id, 50)]
    assert max(map(len, cut(ids, 50))) == LONGEST * 50


def test_turns_of_one_prompt_stay_together():
    ids = [prompt_id for prompt_id in _ids(400) for _ in range(3)]
    assert all(rows.start % 3 == 0 for rows in cut(ids, 10))


def test_an_edit_moves_few_shards():
    ids = _ids(5000)
    before = _shards(ids)
    assert 60 < len(before) < 150
    edited = ids[:1000] + _ids(10, "new") + ids[1000:] + _ids(20, "appended")
    after = _shards(edited)
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    assert 0 < len(changed) <= 6
