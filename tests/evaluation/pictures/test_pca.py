import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.decomposition import PCA

from radioplat.evaluation.pictures.pca import PcaBasis, pca_panel


def maps(seed, n=3, h=6, w=5, d=12):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([8.0, 4.0, 2.0] + [0.1] * (d - 3))
    turn, _ = torch.linalg.qr(torch.randn(d, d, generator=generator))
    return (torch.randn(n, h, w, d, generator=generator) * spread) @ turn + 5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_axes_are_the_principal_ones_with_canonical_signs(seed):
    features = maps(seed)
    basis = PcaBasis.fit(features)
    expected = torch.from_numpy(PCA(3).fit(features.reshape(-1, 12).double().numpy()).components_).float()
    assert torch.allclose((basis.axes.T * expected).sum(dim=1).abs(), torch.ones(3), atol=1e-3)
    assert torch.allclose(basis.axes.T @ basis.axes, torch.eye(3), atol=1e-5)
    assert (basis.axes.gather(0, basis.axes.abs().argmax(dim=0)[None]) > 0).all()


def test_order_of_the_images_does_not_change_colours():
    features = maps(0)
    turned = PcaBasis.fit(features.flip(0)).colours(features.flip(0))
    difference = turned[::-1].astype(int) - PcaBasis.fit(features).colours(features)
    assert np.abs(difference).max() <= 1


def test_one_outlier_does_not_wash_out_the_picture():
    features = maps(1, n=8)
    calm = PcaBasis.fit(features).colours(features).astype(float)
    # Along an axis that is there already, so that only the span of values could suffer.
    features[0, 0, 0] = features.flatten(0, 2).mean(0) + 100 * PcaBasis.fit(features).axes[:, 0]
    loud = PcaBasis.fit(features).colours(features)
    assert loud[1:].std() > 0.7 * calm[1:].std()


def test_equal_features_get_equal_colours_in_a_shared_space():
    teacher = maps(2)
    basis = PcaBasis.fit(teacher)
    assert (basis.colours(teacher[:, :3]) == basis.colours(teacher)[:, :3]).all()


def test_a_low_voice_is_stretched_and_keeps_its_colours():
    teacher = maps(2)
    basis = PcaBasis.fit(teacher)
    faint = basis.mean + 0.05 * (teacher - basis.mean)
    assert np.abs(basis.stretched(faint).colours(faint).astype(int) - basis.colours(teacher)).max() <= 1
    assert np.ptp(basis.colours(faint)) < 30


@pytest.mark.parametrize("features", [torch.ones(2, 3, 3, 8), torch.zeros(2, 3, 3, 8), torch.full((1, 1, 1, 4), 7.0)])
def test_constant_features_are_grey(features):
    picture = PcaBasis.fit(features).colours(features)
    assert picture.dtype == np.uint8 and (picture == 128).all()


def test_features_of_fewer_than_three_directions():
    features = maps(0)[..., :2]
    picture = PcaBasis.fit(features).colours(features)
    assert picture[..., 0].std() > 0 and (picture[..., 2] == 128).all()


def test_many_rows_are_thinned_without_changing_the_axes():
    features = maps(4, n=60, h=12, w=12)
    thin, full = PcaBasis.fit(features), PcaBasis.fit(features[:20])
    assert ((thin.axes * full.axes).sum(dim=0).abs() > 0.99).all()


def test_panel_has_a_row_an_image_and_a_column_a_model():
    images = np.zeros((2, 3, 32, 32), np.uint8)
    images[0, 0], images[1, 1] = 255, 255
    teacher = maps(5, n=2, h=4, w=4)
    png = pca_panel(
        images, {"clip": teacher, "student as clip": teacher, "student": maps(6, n=2)}, {"student as clip": "clip"}
    )
    picture = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    height, width = picture.shape[:2]
    assert width / height == pytest.approx((4 * 1.81 + 0.06) / (2 * 1.81 + 0.46), rel=0.02)
    cell, head, pitch = int(1.75 * 128), int(0.46 * 128), 1.81 * 128
    lefts = [int(0.06 * 128 + i * pitch) for i in range(4)]
    column = [picture[head + 2 : head + cell - 2, left + 2 : left + cell - 2] for left in lefts]
    assert (column[0] == [255, 0, 0]).all()
    # The same features in the same space are the same picture, moved by at most half a dot of rounding.
    assert np.abs(column[1] - column[2]).mean() < 4 < 10 < column[3].std()


def test_a_ramp_of_few_positions_is_drawn_smoothly():
    ramp = torch.zeros(1, 4, 4, 6)
    ramp[..., 0] = torch.arange(4.0)
    picture = np.asarray(
        Image.open(io.BytesIO(pca_panel(np.zeros((1, 3, 32, 32), np.uint8), {"t": ramp}))).convert("RGB")
    )
    side, left = int(1.75 * 128), int((0.06 * 2 + 1.75) * 128)
    rows = picture[-side // 2 - 20 : -side // 2, left + 2 : left + side - 2, 0].astype(int)
    steps = np.diff(rows, axis=1)
    assert np.ptp(rows, axis=0).max() <= 2 and rows[:, 0].max() < 20 and rows[:, -1].min() > 235
    assert steps.min() >= -1 and steps.max() < 10  # squares would step by 85


def test_columns_that_do_not_fit_are_refused():
    images = np.zeros((2, 3, 8, 8), np.uint8)
    with pytest.raises(ValueError, match="expected, not"):
        pca_panel(images, {"a": maps(0, n=3)})
    with pytest.raises(ValueError, match="cannot share a space"):
        pca_panel(images, {"a": maps(0, n=2), "b": maps(0, n=2)[..., :4]}, {"b": "a"})
