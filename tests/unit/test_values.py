"""Values: by rank, loaded when looked at."""

from __future__ import annotations

import pytest

from nb_accelerate.errors import LaunchError
from nb_accelerate.launch.values import Values


def test_a_value_is_loaded_once_and_only_when_it_is_looked_at():
    loaded = []
    values = Values([lambda: loaded.append(0) or "zero", lambda: loaded.append(1) or "one"])
    assert loaded == []
    assert (values[1], values[-1]) == ("one", "one")
    assert loaded == [1]


def test_a_rank_without_a_value_says_why_and_the_others_are_there():
    values = Values([lambda: 10, LaunchError("rank 1 has no value: its function did not return.")])
    with pytest.raises(LaunchError, match="rank 1 has no value"):
        values[1]
    assert values.returned() == {0: 10}
    assert len(values) == 2


def test_values_compare_with_lists():
    values = Values([lambda: 1, lambda: 2])
    assert values == [1, 2]
    assert values[:] == [1, 2]
    assert values != [1, 3]


def test_there_is_no_rank_beyond_the_last():
    with pytest.raises(IndexError):
        Values([lambda: 1])[1]
