"""How rows are laid out, and what happens to those that fit no model."""

from dataclasses import replace

import pytest
import torch
from dense_gp import generator, some_rows, some_theta, some_y, uniform

from takg.errors import InputError
from takg.gp import Model, Rows, condition, joined, rows_at, value_rows

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def model():
    return Model(d=2, fidelity_kernels=("freeze_thaw", "data_size"), has_gradients=True)


@pytest.fixture
def rows(model):
    return replace(some_rows(model, generator(1), 5), part=torch.tensor([0, 2, 1, 0, 0]))


def observed(model, rows, y=None):
    gen = generator(2)
    return condition(model, some_theta(model, gen), rows, some_y(gen, len(rows)) if y is None else y)


# Layout


def test_value_rows_pair_points_with_fidelities():
    gen = generator(3)
    x, s = uniform(gen, 2, 4, 3), uniform(gen, 2, 4, 2)
    rows = value_rows(x, s, noise_scale=0.7)
    assert torch.equal(rows.x, x)
    assert torch.equal(rows.s, s)
    assert rows.part.tolist() == [0, 0, 0, 0]
    assert rows.noise_scale.tolist() == [0.7] * 4
    assert (rows.d, rows.m, len(rows), rows.has_gradients) == (3, 2, 4, False)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_rows_at_gives_one_value_for_each_fidelity(batch):
    gen = generator(4)
    x, S = uniform(gen, *batch, 3), uniform(gen, *batch, 4, 2)
    rows = rows_at(x, S, noise_scale=0.3)
    assert rows.x.shape == (*batch, 4, 3)
    assert all(torch.equal(rows.x[..., i, :], x) for i in range(4))
    assert torch.equal(rows.s, S)
    assert rows.part.tolist() == [0] * 4
    assert rows.noise_scale.tolist() == [0.3] * 4
    assert rows.noise_scale.dtype == torch.float64
    assert not rows.has_gradients


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_rows_at_puts_the_gradient_after_each_value(batch):
    gen = generator(5)
    x, S = uniform(gen, *batch, 3), uniform(gen, *batch, 2, 1)
    rows = rows_at(x, S, gradients=True)
    assert rows.part.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rows.x.shape == (*batch, 8, 3)
    assert all(torch.equal(rows.x[..., i, :], x) for i in range(8))
    assert all(torch.equal(rows.s[..., i, :], S[..., i // 4, :]) for i in range(8))
    assert rows.noise_scale.tolist() == [1.0] * 8
    assert rows.has_gradients


@pytest.mark.parametrize(("x_batch", "S_batch"), [((3,), ()), ((), (3,)), ((2, 1), (3,)), ((3,), (2, 1))])
@pytest.mark.parametrize("gradients", [False, True])
def test_points_and_fidelities_share_their_broadcast_batch(x_batch, S_batch, gradients):
    gen = generator(6)
    x, S = uniform(gen, *x_batch, 3), uniform(gen, *S_batch, 2, 1)
    batch = torch.broadcast_shapes(x_batch, S_batch)
    rows = rows_at(x, S, gradients=gradients)
    explicit = rows_at(x.expand(*batch, 3), S.expand(*batch, 2, 1), gradients=gradients)
    assert rows.x.shape[:-2] == rows.s.shape[:-2] == batch
    assert torch.equal(rows.x, explicit.x)
    assert torch.equal(rows.s, explicit.s)
    paired = value_rows(uniform(gen, *x_batch, 4, 3), uniform(gen, *S_batch, 4, 1))
    assert paired.x.shape == (*batch, 4, 3)
    assert paired.s.shape == (*batch, 4, 1)


def test_rows_at_works_without_fidelities():
    rows = rows_at(uniform(generator(7), 2), torch.empty(1, 0, dtype=torch.float64), gradients=True)
    assert rows.s.shape == (3, 0)
    assert rows.part.tolist() == [0, 1, 2]
    assert rows.m == 0


@pytest.mark.parametrize("batches", [((), ()), ((3,), ()), ((2, 1), (3,))])
def test_joined_rows_keep_their_order_and_broadcast_their_batches(batches):
    gen = generator(8)
    model = Model(d=3, fidelity_kernels=("smooth",))
    first = some_rows(model, gen, 2, *batches[0], gradients=True)
    second = some_rows(model, gen, 4, *batches[1], gradients=True)
    third = some_rows(model, gen, 1)
    rows = joined([first, second, third])
    batch = torch.broadcast_shapes(*batches)
    assert rows.x.shape == (*batch, 7, 3)
    assert rows.s.shape == (*batch, 7, 1)
    for part, at in ((first, slice(0, 2)), (second, slice(2, 6)), (third, slice(6, 7))):
        assert torch.equal(rows.x[..., at, :], part.x.expand(*batch, -1, -1))
        assert torch.equal(rows.s[..., at, :], part.s.expand(*batch, -1, -1))
        assert torch.equal(rows.part[at], part.part)
        assert torch.equal(rows.noise_scale[at], part.noise_scale)


# Data that fit


def test_good_data_are_accepted(model, rows):
    assert observed(model, rows).n == 5


def test_fidelities_may_reach_both_ends(model, rows):
    rows.s[0], rows.s[1] = 0.0, 1.0
    assert observed(model, rows).n == 5


def test_a_model_without_fidelities_takes_rows_without_fidelities():
    model = Model(d=2)
    assert observed(model, some_rows(model, generator(9), 3)).n == 3


# Data that do not


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.rand(5, 3).double()}, r"rows\.x has shape \(5, 3\); expected \(\.\.\., rows, 2\)"),
        ({"x": torch.rand(2).double()}, r"rows\.x has shape \(2,\)"),
        ({"s": torch.rand(5, 1).double()}, r"rows\.s has shape \(5, 1\); expected \(\.\.\., rows, 2\)"),
        ({"s": torch.rand(4, 2).double()}, r"rows\.s has 4 rows; expected 5"),
        ({"s": torch.rand(3, 5, 2).double()}, r"rows\.s has shape \(3, 5, 2\); expected \(5, 2\), data have no batch"),
        ({"x": torch.rand(3, 5, 2).double()}, r"rows\.x has shape \(3, 5, 2\); expected \(5, 2\), data have no batch"),
        ({"part": torch.zeros(4).long()}, r"rows\.part has shape \(4,\); expected \(5,\)"),
        ({"noise_scale": torch.ones(5, 1).double()}, r"rows\.noise_scale has shape \(5, 1\); expected \(5,\)"),
    ],
)
def test_wrong_shapes_are_refused_by_name(model, rows, changes, message):
    with pytest.raises(InputError, match=message):
        observed(model, replace(rows, **changes), y=torch.rand(5).double())


@pytest.mark.parametrize("field", ["x", "s"])
def test_single_precision_rows_are_refused(model, rows, field):
    with pytest.raises(InputError, match=rf"rows\.{field} has dtype torch\.float32; expected torch\.float64"):
        observed(model, replace(rows, **{field: getattr(rows, field).float()}))


@pytest.mark.parametrize("field", ["x", "s"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_points_that_are_not_finite_are_refused(model, rows, field, bad):
    getattr(rows, field)[2, 1] = bad
    with pytest.raises(InputError, match=rf"rows\.{field} has 1 entries that are not finite"):
        observed(model, rows)


@pytest.mark.parametrize(("bad", "low", "high"), [(-0.25, "-0.25", "0.9"), (1.5, "0.1", "1.5"), (20.0, "0.1", "20")])
def test_fidelities_outside_the_unit_interval_are_refused(model, rows, bad, low, high):
    rows.s[:] = torch.linspace(0.1, 0.9, 10).reshape(5, 2)
    rows.s[4 if bad > 0 else 0, 1 if bad > 0 else 0] = bad
    with pytest.raises(InputError, match=rf"rows\.s ranges over \[{low}, {high}\]; expected fidelities within"):
        observed(model, rows)


@pytest.mark.parametrize(("part", "message"), [(-1, r"rows\.part ranges over -1\.\.2"), (3, r"rows\.part .* 0\.\.3")])
def test_parts_that_are_no_component_of_x_are_refused(model, rows, part, message):
    rows.part[3] = part
    with pytest.raises(InputError, match=message + r"; expected 0 for a value or 1\.\.2"):
        observed(model, rows)


@pytest.mark.parametrize(("bad", "shown"), [(-0.5, r"-0\.5"), (NAN, "nan")])
def test_a_negative_noise_scale_is_refused(model, rows, bad, shown):
    rows.noise_scale[1] = bad
    with pytest.raises(InputError, match=rf"rows\.noise_scale has a minimum of {shown}; expected >= 0"):
        observed(model, rows)


@pytest.mark.parametrize("fidelity_kernels", [(), ("freeze_thaw", "data_size")])
def test_empty_data_are_refused(fidelity_kernels):
    model = Model(d=2, fidelity_kernels=fidelity_kernels)
    with pytest.raises(InputError, match=r"rows is empty; expected at least one observation"):
        observed(model, some_rows(model, generator(10), 0))


def test_derivatives_are_refused_by_a_model_that_has_none(model, rows):
    with pytest.raises(InputError, match=r"rows has derivatives but model\.has_gradients is False"):
        observed(replace(model, has_gradients=False), rows)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.ones(4).double(), r"y has shape \(4,\), dtype torch\.float64; expected \(5,\)"),
        (torch.ones(5, 1).double(), r"y has shape \(5, 1\)"),
        (torch.ones(5), r"y has shape \(5,\), dtype torch\.float32; expected \(5,\), torch\.float64"),
        (torch.tensor([0.3, NAN, 1.2, INF, -0.7]).double(), r"y has 2 entries that are not finite"),
    ],
)
def test_outcomes_that_do_not_fit_are_refused(model, rows, y, message):
    with pytest.raises(InputError, match=message):
        observed(model, rows, y=y)


def test_an_extension_is_checked_as_data_are(model, rows):
    post = observed(model, rows)
    with pytest.raises(InputError, match=r"y has shape \(1,\)"):
        post.extended(rows, torch.ones(1).double())
    with pytest.raises(InputError, match=r"rows\.x has 5 entries that are not finite"):
        post.extended(replace(rows, x=rows.x * torch.tensor([NAN, 1.0])), post.y)


# Models that contradict themselves


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d": 0}, r"d=0: expected at least one design dimension"),
        ({"d": -2}, r"d=-2"),
        ({"design_kernel": "rbf"}, r"design_kernel='rbf': expected one of \('matern52', 'squared_exponential'\)"),
        ({"fidelity_kernels": ("smooth", "linear")}, r"fidelity_kernels has \['linear'\]: expected names out of"),
        ({"trend_dims": (0, 2)}, r"trend_dims=\(0, 2\): \[2\] outside 0\.\.1"),
        ({"trend_dims": (-1,)}, r"trend_dims=\(-1,\): \[-1\] outside 0\.\.1"),
        ({"trend_dims": (1,), "has_gradients": True}, r"trend_dims=\(1,\) with has_gradients=True"),
        ({"mean_var": -0.1}, r"mean_var=-0\.1: expected a finite variance"),
        ({"slope_var": INF}, r"slope_var=inf: expected a finite variance"),
        ({"mean_var": NAN}, r"mean_var=nan: expected a finite variance"),
    ],
)
def test_settings_that_make_no_model_are_refused_by_name(settings, message):
    with pytest.raises(InputError, match=message):
        Model(**{"d": 2} | settings)


def test_input_errors_are_value_errors():
    with pytest.raises(ValueError, match=r"d=0"):
        Model(d=0)


def test_rows_cannot_be_changed_by_assignment(rows):
    with pytest.raises(AttributeError, match="cannot assign to field 'part'"):
        rows.part = torch.zeros(5)
    assert isinstance(rows, Rows)
