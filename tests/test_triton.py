"""The Triton kernels agree with the reference dynamics in the interpreter, and compile for GPUs without a GPU.

Triton selects the interpreter when it is first imported. Functions named check_ therefore run in a separate process, which
`test_kernels_in_the_interpreter` starts. Shapes are small because the interpreter is slow.
"""

import os
import subprocess
import sys

import pytest
import torch

import coupledqk.dynamics
from conftest import double_randn, mlp_force
from coupledqk import Attention, CoupledQKError, evolve, rope_at
from coupledqk.dynamics.triton import MAX_WIDTH, compile_report, triton_dynamics, triton_dynamics_backward
from coupledqk.initial import initialize
from test_fused import (
    FAST_METHODS,
    LITTLE,
    NO_ROPE,
    assert_as_exact_as_the_reference,
    heads,
    random_inputs,
    storages,
    with_impl,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is built for Linux alone")


def test_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", __file__, "-o", "python_functions=check_*", "-p", "no:cacheprovider"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "-p", "no:xdist"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("group_size", [1, 2, 3, 4])
@pytest.mark.parametrize("method", FAST_METHODS)
@pytest.mark.usefixtures("poisoned_memory")
def check_every_method_agrees_with_the_reference(method, group_size, n_steps):
    inputs = random_inputs(1, 9, 20, group_size, torch.float32)
    assert_as_exact_as_the_reference("triton", inputs, n_steps, method)


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("method", FAST_METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def check_half_precision_agrees_with_the_reference(dtype, method, group_size):
    # the products are rounded as often as the reference's, but at other points
    little = torch.finfo(dtype).eps / 4
    assert_as_exact_as_the_reference("triton", random_inputs(1, 17, 16, group_size, dtype), 2, method, little)


@pytest.mark.parametrize("shape", [(1, 1, 60), (1, 63, 20), (3, 1, 4), (1, 16, 128)], ids=str)
def check_odd_shapes_agree_with_the_reference(shape):
    assert_as_exact_as_the_reference("triton", random_inputs(*shape, 1, torch.float32), 1, "leapfrog")


@pytest.mark.parametrize("variant", ["hamiltonian", "hamiltonian_gqa", "euler"])
def check_with_rope_the_dynamics_are_followed_by_the_rotation(variant):
    x, results = torch.randn(1, 9, 32), []
    for impl in ("reference", "triton"):
        attention = with_impl(Attention.from_variant(variant, 32, 4, force_std=0.3), impl)
        initialize(attention, seed=1)
        x = x.detach().requires_grad_()
        evolved = attention.evolved(x, rope_at(torch.arange(90, 99), attention.width))
        parameters = [x, attention.qkv.weight, *attention.dynamics.parameters()]
        results.append([*evolved, *torch.autograd.grad(sum(y.pow(3).sum() for y in evolved), parameters)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("method", "keeps"), [("leapfrog", "outputs"), ("euler", "inputs")])
def check_outputs_are_saved_if_the_inputs_can_be_reconstructed(method, keeps):
    qkv, *others = (x.requires_grad_() for x in random_inputs(1, 5, 4, 2, torch.float32))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        moved = triton_dynamics(*heads(qkv, 4), *others, *NO_ROPE, 2, method)
    assert storages(kept) == storages([*(moved if keeps == "outputs" else [qkv]), *others])


def check_gradients_are_bit_identical_every_time():
    qkv, *others = random_inputs(1, 70, 16, 2, torch.float32)
    q, k = heads(qkv, 16)
    first, second = (triton_dynamics_backward(q, k, q, k, *others, *NO_ROPE, 2, "euler") for _ in range(2))
    assert all(map(torch.equal, first, second))


def check_the_operators_pass_opcheck():
    qkv, *others = random_inputs(1, 3, 4, 2, torch.float32)
    q, k = heads(qkv, 4)
    torch.library.opcheck(triton_dynamics, (q.requires_grad_(), k, *others, *NO_ROPE, 1, "leapfrog"))
    grads = torch.randn_like(q), torch.randn_like(k)
    torch.library.opcheck(triton_dynamics_backward, (*grads, q.detach(), k, *others, *NO_ROPE, 1, "leapfrog"))


def check_unsupported_inputs_are_refused():
    q, k = double_randn(2, 1, 1, 1, MAX_WIDTH + 1)
    force = mlp_force(MAX_WIDTH + 1)
    with pytest.raises(CoupledQKError, match=r"not in torch\.float64 and torch\.float64: set impl='fused'"):
        evolve(q, k, 0.1, force, impl="triton")
    with pytest.raises(CoupledQKError, match="heads up to 128 wide, not 129: set impl='fused'"):
        evolve(q.float(), k.float(), 0.1, force.float(), impl="triton")
    with pytest.raises(CoupledQKError, match="unset TRITON_INTERPRET"):
        compile_report()


def check_too_little_gpu_memory_is_reported(monkeypatch):
    from triton.runtime.errors import OutOfResources

    from coupledqk.dynamics import _triton_kernels

    class Kernel:
        def __getitem__(self, grid):
            raise OutOfResources(139_264, 101_376, "shared memory")

    monkeypatch.setattr(_triton_kernels, "forward_kernel", Kernel())
    q, k = double_randn(2, 1, 1, 1, 128).float()
    with pytest.raises(
        CoupledQKError, match="needs 139264 of shared memory, and this GPU has 101376: set impl='fused'"
    ):
        evolve(q, k, 0.1, mlp_force(128).float(), impl="triton")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", FAST_METHODS)
def test_kernels_agree_with_the_reference_on_a_gpu(method, dtype):
    little = LITTLE if dtype == torch.float32 else torch.finfo(dtype).eps / 4
    inputs = [x.cuda() for x in random_inputs(3, 501, 60, 2, dtype)]
    assert_as_exact_as_the_reference("triton", inputs, 3, method, little)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_error_says_what_to_do():
    q, k = double_randn(2, 1, 3, 2, 4).float()
    with pytest.raises(CoupledQKError, match="runs on CUDA devices, not on cpu: set impl to 'auto' or 'fused'"):
        evolve(q, k, 0.1, mlp_force(4).float(), impl="triton")


def test_without_triton_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "coupledqk.dynamics._triton_kernels", raising=False)
    monkeypatch.delattr(coupledqk.dynamics, "_triton_kernels", raising=False)
    q, k = double_randn(2, 1, 3, 2, 4).float()
    with pytest.raises(CoupledQKError, match=r"pip install 'coupledqk\[triton\]', or set impl to 'auto' or 'fused'"):
        evolve(q, k, 0.1, mlp_force(4).float(), impl="triton")


@pytest.mark.parametrize("capability", [75, 80, 90])
def test_kernels_compile_ahead_of_time(capability):
    forward, backward = compile_report([capability], head_dims=[64], dtypes=[torch.float32])
    assert (forward["kernel"], backward["kernel"]) == ("forward", "backward")
    assert forward["fits"]
    assert backward["fits"]
    assert 0 < forward["registers"] <= backward["registers"] <= 255
    assert forward["spills"] == 0


def test_an_unknown_compute_capability_is_refused():
    with pytest.raises(CoupledQKError, match="unknown compute capability 20: choose from 75, 80"):
        compile_report([20])
