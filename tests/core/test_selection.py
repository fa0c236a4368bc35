from pipeline.core.selection import in_validation, shuffle_key

_IDS = [f"c{number // 3}" for number in range(3000)]


def _order(seed):
    return sorted(range(3000), key=lambda row: shuffle_key(_IDS[row], seed))


def test_a_shuffle_keeps_conversations_whole_and_in_order():
    order = _order(1)
    assert order != list(range(3000))
    assert order != _order(2)
    assert all(order[at : at + 3] == [order[at], order[at] + 1, order[at] + 2] for at in range(0, 3000, 3))


def test_the_split_is_the_conversations_own():
    share = sum(in_validation(name, 0.1) for name in set(_IDS)) / 1000
    assert 0.07 < share < 0.13
    assert not any(in_validation(name, 0.0) for name in _IDS)
    assert all(in_validation(name, 1.0) for name in _IDS)
