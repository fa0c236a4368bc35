from pipeline.core.selection import in_validation, shuffled

_IDS = [f"c{number // 3}" for number in range(3000)]


def test_no_seed_keeps_the_source_order():
    assert shuffled(_IDS, None) == list(range(3000))


def test_a_shuffle_keeps_conversations_whole_and_in_order():
    order = shuffled(_IDS, 1)
    assert sorted(order) == list(range(3000))
    assert order != list(range(3000))
    assert order != shuffled(_IDS, 2)
    assert all(order[at : at + 3] == [order[at], order[at] + 1, order[at] + 2] for at in range(0, 3000, 3))


def test_the_split_is_the_conversations_own():
    share = sum(in_validation(name, 0.1) for name in set(_IDS)) / 1000
    assert 0.07 < share < 0.13
    assert not any(in_validation(name, 0.0) for name in _IDS)
    assert all(in_validation(name, 1.0) for name in _IDS)
