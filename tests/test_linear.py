"""Products with weight matrices: the fast path for a single row gives the same product."""

import pytest
import torch
import torch.nn.functional as F

from coupledqk.linear import WORTH_SPLITTING, Linear, linear, split_rows, worth_splitting


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize(("n", "d"), [(7, 3), (64, 16), (65, 16), (50_257, 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_splitting_the_rows_of_a_matrix_changes_no_value(shape, n, d, threads):
    x, weight = torch.randn(*shape[1:], d), torch.randn(n, d)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(split_rows(x, weight), F.linear(x, weight))
    finally:
        torch.set_num_threads(before)


def test_the_matrix_is_split_only_for_a_single_row_without_gradients():
    weight = torch.randn(WORTH_SPLITTING // 64, 64)
    row = torch.randn(1, 1, 64)
    assert not worth_splitting(row, weight)  # gradients would be lost
    with torch.no_grad():
        assert worth_splitting(row, weight)
        assert not worth_splitting(torch.randn(1, 2, 64), weight)
        assert not worth_splitting(row, weight[1:])
        assert not worth_splitting(row.double(), weight.double())
        with torch.autocast("cpu", torch.bfloat16):
            assert not worth_splitting(row, weight)


def test_a_layer_gives_the_same_output_with_and_without_gradients():
    layer, x = Linear(512, 300), torch.randn(1, 1, 512)
    out = layer(x)
    out.sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(linear(x, layer.weight), out)
