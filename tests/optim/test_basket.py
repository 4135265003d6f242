"""The basket of runs that may be continued, against the paper's rule on plain lists."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from takg.errors import InputError
from takg.optim import Basket

laws = settings(deadline=None, derandomize=True, max_examples=100)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def a_run(k):
    """Run number k, recognisable by its x."""
    return tensor([float(k), 0.3]), tensor([0.1 + 0.01 * k])


def numbers(basket):
    return [int(x[0]) for x, _ in basket.entries]


def filled(count, size=10):
    return Basket(entries=tuple(a_run(k) for k in range(count)), size=size)


def test_a_basket_is_empty_at_first_and_holds_ten_runs_as_in_the_paper():
    basket = Basket()
    assert basket.entries == ()
    assert basket.size == 10


def test_a_new_run_joins_at_the_end_while_there_is_room():
    basket, dropped = filled(2, size=3).started(*a_run(7), [0.5, 0.1, 0.2])
    assert dropped is None
    assert numbers(basket) == [0, 1, 7]
    assert basket.entries[-1][1].tolist() == pytest.approx([0.17])


def test_the_run_of_smallest_value_leaves_a_full_basket():
    basket, dropped = filled(3, size=3).started(*a_run(7), [0.5, 0.1, 0.3, 0.2])
    assert dropped == 1
    assert numbers(basket) == [0, 2, 7]


def test_the_new_run_itself_leaves_if_its_value_is_the_smallest():
    basket, dropped = filled(3, size=3).started(*a_run(7), [0.5, 0.4, 0.3, 0.2])
    assert dropped == 3
    assert numbers(basket) == [0, 1, 2]


def test_nothing_stays_in_a_basket_of_size_0():
    basket, dropped = Basket(size=0).started(*a_run(7), [0.5])
    assert dropped == 0
    assert basket.entries == ()


@laws
@given(
    size=st.integers(1, 4), values=st.lists(st.floats(0, 1), min_size=5, max_size=5, unique=True), n=st.integers(1, 9)
)
def test_a_series_of_runs_leaves_the_most_valuable_in_the_order_of_their_start(size, values, n):
    value_of = {k: values[k % 5] + 10 * (k // 5) * (-1) ** k for k in range(n)}
    basket, expected = Basket(size=size), []
    for k in range(n):
        present = [*numbers(basket), k]
        basket, dropped = basket.started(*a_run(k), [value_of[j] for j in present])
        expected.append(k)
        if len(expected) > size:
            worst = min(expected, key=value_of.__getitem__)
            assert dropped == present.index(worst)
            expected.remove(worst)
        else:
            assert dropped is None
        assert numbers(basket) == expected
        assert basket.size == size


def test_a_continued_run_stays_in_its_place_at_its_new_fidelity():
    before = filled(3)
    after = before.continued(1, tensor([0.63]))
    assert numbers(after) == [0, 1, 2]
    assert [s.item() for _, s in after.entries] == pytest.approx([0.1, 0.63, 0.12])
    assert before.entries[1][1].item() == pytest.approx(0.11)  # a basket is a value; the old one is as it was
    assert after.size == before.size


def test_a_run_may_be_continued_to_where_it_stands():
    assert filled(1).continued(0, tensor([0.1])).entries[0][1].tolist() == [0.1]


@pytest.mark.parametrize("index", [-1, 3])
def test_continuing_what_is_not_in_the_basket_is_an_error(index):
    with pytest.raises(InputError, match=f"index={index}"):
        filled(3).continued(index, tensor([0.9]))


def test_a_run_cannot_go_back():
    basket = Basket(entries=((tensor([0.4]), tensor([0.3, 0.5])),))
    with pytest.raises(InputError, match=r"s=\[0.9, 0.4\]"):
        basket.continued(0, tensor([0.9, 0.4]))


@pytest.mark.parametrize("values", [[], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4, 0.5]])
def test_every_run_and_the_new_one_need_a_value(values):
    with pytest.raises(InputError, match="values has"):
        filled(3).started(*a_run(7), values)


def test_a_value_that_is_not_a_number_is_an_error():
    with pytest.raises(InputError, match="values"):
        filled(3, size=3).started(*a_run(7), [0.2, float("nan"), 0.3, 0.4])


@pytest.mark.parametrize(("count", "size"), [(0, -1), (3, 2)])
def test_a_basket_that_is_too_small_for_its_runs_is_an_error(count, size):
    with pytest.raises(InputError, match=f"size={size}"):
        filled(count, size=size)
