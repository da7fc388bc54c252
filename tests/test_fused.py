"""The fused dynamics agree with the reference in values and gradients, however PyTorch calls them."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from conftest import TINY, double_randn, mlp_force, random_tokens, tiny_model
from coupledqk import Attention, CoupledQKError, TransformerLM, evolve, rope_at
from coupledqk.config import DynamicsConfig
from coupledqk.dynamics import METHODS, Dynamics, LinearForce, MLPForce, fused, implementations, set_impl
from coupledqk.dynamics.evolve import integrate
from coupledqk.dynamics.fused import fused_dynamics, fused_dynamics_backward
from coupledqk.dynamics.implementations import WORTH_FUSING, choose
from coupledqk.initial import initialize

KEY_HEADS = 2
NO_ROPE = (None, None)

FAST_METHODS = [name for name, method in METHODS.items() if method.moves]


def random_inputs(B, T, d, group_size, dtype=torch.float64):
    """One projection to q, k and v, a step size per key head, and the weights of the force."""
    qkv = double_randn(B, T, (group_size + 2) * KEY_HEADS * d)
    dt = 0.1 + 0.2 * torch.rand(KEY_HEADS, dtype=torch.float64)
    w1, w2 = double_randn(2, d, d) / d**0.5
    # step sizes have the precision of the accumulation
    return [qkv.to(dtype), dt.to(torch.promote_types(dtype, torch.float32)), w1.to(dtype), w2.to(dtype)]


def heads(qkv, d):
    """q and k as attention has them: strided views."""
    q, k, _ = qkv.unflatten(-1, (-1, d)).split([qkv.shape[-1] // d - 2 * KEY_HEADS, KEY_HEADS, KEY_HEADS], dim=2)
    return q, k


def move(impl, qkv, dt, w1, w2, n_steps, method):
    force = MLPForce(d := len(w1))
    del force.w1, force.w2
    force.w1, force.w2 = w1, w2
    return evolve(*heads(qkv, d), dt, force, n_steps, method, impl=impl)


def values_and_gradients(impl, inputs, n_steps, method):
    """q, k, and the gradients of the projection, the step sizes and the weights."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    moved = move(impl, *inputs, n_steps, method)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randint(-3, 4, x.shape, generator=generator).to(x) for x in moved]
    return [x.detach() for x in (*moved, *torch.autograd.grad(moved, inputs, grads))]


LITTLE = 8 * torch.finfo(torch.float32).eps


def assert_as_exact_as_the_reference(impl, inputs, n_steps, method, little=LITTLE, context=nullcontext):
    """The error against float64 is at most that of the reference in the same precision, plus a small tolerance."""
    truth = values_and_gradients("reference", [x.double() for x in inputs], n_steps, method)
    with context():
        reference = values_and_gradients("reference", inputs, n_steps, method)
        ours = values_and_gradients(impl, inputs, n_steps, method)
    names = ("q", "k", "gradient of qkv", "gradient of dt", "gradient of w1", "gradient of w2")
    for name, x, y, z in zip(names, ours, reference, truth, strict=True):
        assert x.dtype == y.dtype
        # the gradient of dt is a sum of terms of either sign, and may be close to 0
        size = max(z.norm(), truth[0].numel() ** 0.5) if name == "gradient of dt" else z.norm()
        error, allowed = (float((a.double() - z).norm() / size) for a in (x, y))
        assert error <= 1.1 * allowed + little, name


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("group_size", [1, 2, 4])
@pytest.mark.parametrize("shape", [(2, 1, 20), (1, 63, 60)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", FAST_METHODS)
@pytest.mark.usefixtures("poisoned_memory")
def test_fused_dynamics_are_as_accurate_as_the_reference(method, dtype, shape, group_size, n_steps, monkeypatch):
    monkeypatch.setattr(fused, "CHUNK", 4000)  # several chunks, the last one shorter
    assert_as_exact_as_the_reference("fused", random_inputs(*shape, group_size, dtype), n_steps, method)


@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("method", FAST_METHODS)
def test_gradients_agree_with_finite_differences(method, group_size):
    qkv, dt, w1, w2 = (x.requires_grad_() for x in random_inputs(2, 2, 3, group_size))
    torch.autograd.gradcheck(
        lambda qkv, dt, w1, w2: fused_dynamics(*heads(qkv, 3), dt, w1, w2, *NO_ROPE, 3, method), (qkv, dt, w1, w2)
    )


STEP_SIZES = {
    "a number": 0.2,
    "a scalar": torch.tensor(0.2, dtype=torch.float64),
    "one per key head": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
    "closed gates": torch.zeros(3, dtype=torch.float64),
}


@pytest.mark.parametrize("dt", STEP_SIZES.values(), ids=STEP_SIZES)
@pytest.mark.parametrize("layout", ["BTHD", "BHTD"])
def test_every_layout_and_kind_of_step_size_agrees_with_the_reference(layout, dt):
    inputs = [*double_randn(2, 2, 3, 3, 5), torch.as_tensor(dt)]
    results = []
    for impl in ("reference", "fused"):
        q, k, step = (x.requires_grad_() for x in inputs)
        moved = integrate(q, k, dt if isinstance(dt, float) else step, mlp_force(5), 3, "leapfrog", layout, impl=impl)
        loss = sum(x.square().sum() for x in moved)
        results.append([*moved, *torch.autograd.grad(loss, (q, k, step), materialize_grads=True)])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def storages(tensors):
    return {x.untyped_storage().data_ptr() for x in tensors}


@pytest.mark.parametrize(
    ("method", "dtype", "n_steps", "keeps"),
    [
        ("leapfrog", torch.float32, 3, "outputs"),
        ("semi_implicit", torch.float64, 8, "outputs"),
        ("leapfrog", torch.float32, 9, "inputs"),
        ("leapfrog", torch.bfloat16, 3, "inputs"),
        ("euler", torch.float32, 3, "inputs"),
    ],
)
def test_the_backward_keeps_outputs_where_it_can_rebuild_the_inputs(method, dtype, n_steps, keeps):
    qkv, *others = (x.requires_grad_() for x in random_inputs(1, 5, 4, 2, dtype))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        moved = fused_dynamics(*heads(qkv, 4), *others, *NO_ROPE, n_steps, method)
    assert storages(kept) == storages([*(moved if keeps == "outputs" else [qkv]), *others])


def bytes_kept(attention, x, rope):
    """Memory that the backward pass keeps beside x and the weights."""
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.update({t.untyped_storage().data_ptr(): t}) or t, id):
        attention(x, rope=rope)
    ours = storages([x, *attention.parameters()])
    return sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in ours)


@pytest.mark.parametrize("rope", [None, rope_at(torch.arange(64), 32)], ids=["learned", "rope"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_coupling_keeps_as_much_memory_as_standard_attention(qk_norm, rope):
    x = torch.randn(32, 64, 128, requires_grad=True)
    assert x.numel() >= WORTH_FUSING
    standard, coupled = (
        bytes_kept(Attention.from_variant(name, 128, 4, qk_norm=qk_norm), x, rope)
        for name in ("standard", "hamiltonian")
    )
    assert coupled <= 1.01 * standard
    if not qk_norm:
        # q, k, v, the output of attention and its log-sum-exp for each query, but no vectors before the rotation by RoPE
        angles = 0 if rope is None else 4 * (rope.cos.numel() + rope.sin.numel())
        assert standard == 4 * (4 * x.numel() + x.numel() // 32) + angles


@pytest.mark.parametrize("variant", ["hamiltonian", "semi_implicit", "euler", "hamiltonian_gqa", "hamiltonian_diff"])
@pytest.mark.parametrize("positions", [torch.arange(90, 97), torch.arange(14).view(2, 7)], ids=["shared", "per row"])
def test_the_operator_with_rope_equals_the_dynamics_followed_by_the_rotation(variant, positions):
    torch.manual_seed(0)
    x = double_randn(2, 7, 32)
    results = []
    for impl in ("reference", "fused"):
        attention = with_impl(Attention.from_variant(variant, 32, 4).double(), impl)
        initialize(attention, seed=1)
        x = x.detach().requires_grad_()
        evolved = attention.evolved(x, rope_at(positions, attention.width))
        parameters = [p for p in attention.parameters() if p is not attention.out.weight]
        loss = sum(y.pow(3).sum() + y.sum() for y in evolved)
        grads = torch.autograd.grad(loss, [x, *parameters], allow_unused=True)
        results.append([*evolved, *grads])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_does_not_affect_the_operator(dtype):
    inputs = random_inputs(1, 9, 8, 2, torch.float32)
    outside = values_and_gradients("fused", inputs, 3, "leapfrog")
    with torch.autocast("cpu", dtype):
        inside = values_and_gradients("fused", inputs, 3, "leapfrog")
    assert all(map(torch.equal, inside, outside))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fused_dynamics_under_autocast_are_as_accurate_as_the_reference(dtype):
    """The projection leaves autocast in half precision; the force's weights are kept in float32."""
    qkv, dt, w1, w2 = random_inputs(1, 33, 16, 2, torch.float32)
    assert_as_exact_as_the_reference(
        "fused", [qkv.to(dtype), dt, w1, w2], 3, "leapfrog", context=partial(torch.autocast, "cpu", dtype)
    )


def test_the_operators_pass_opcheck():
    qkv, *others = random_inputs(2, 3, 4, 2)
    q, k = heads(qkv, 4)
    torch.library.opcheck(fused_dynamics, (q.requires_grad_(), k, *others, *NO_ROPE, 2, "leapfrog"))
    torch.library.opcheck(
        fused_dynamics_backward,
        (torch.randn_like(q), torch.randn_like(k), q.detach(), k, *others, *NO_ROPE, 2, "euler"),
    )


def test_fused_dynamics_compile_to_one_graph():
    torch.compiler.reset()
    q, k, dt = double_randn(1, 7, 4, 4), double_randn(1, 7, 2, 4), torch.rand(2, dtype=torch.float64)
    inputs, force = [x.requires_grad_() for x in (q, k, dt)], mlp_force(4).requires_grad_()
    results = []
    for function in (evolve, torch.compile(evolve, fullgraph=True)):
        moved = function(*inputs, force, n_steps=2, impl="fused")
        loss = sum(x.square().sum() for x in moved)
        results.append([*moved, *torch.autograd.grad(loss, [*inputs, *force.parameters()])])
    torch.testing.assert_close(*results)


def with_impl(model, impl):
    set_impl(model, impl)
    return model


def losses_of_training(impl, variant):
    model = with_impl(TransformerLM.from_preset("nano", variant, **TINY), impl)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(32):
        tokens = torch.randint(TINY["vocab_size"], (2, 17), generator=torch.Generator().manual_seed(step % 4))
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("variant", ["euler", "hamiltonian", "hamiltonian_gqa"])
def test_training_losses_equal_those_of_the_reference(variant):
    fused, reference = losses_of_training("fused", variant), losses_of_training("reference", variant)
    assert fused == pytest.approx(reference, rel=1e-4)
    assert fused[-1] < 0.9 * fused[0]


def gradients(model, tokens):
    model.zero_grad()
    model(tokens, tokens).backward()
    return [p.grad.clone() for p in model.parameters()]


def test_gradient_checkpointing_changes_no_bit():
    model, tokens = with_impl(tiny_model("hamiltonian"), "fused"), random_tokens(2, 9)
    plain = gradients(model, tokens)
    model.gradient_checkpointing = True
    assert all(map(torch.equal, gradients(model, tokens), plain))


def test_data_parallel_training_gives_the_same_gradients(tmp_path):
    model, tokens = with_impl(tiny_model("hamiltonian"), "fused"), random_tokens(2, 9)
    alone = gradients(model, tokens)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        torch.testing.assert_close(gradients(DistributedDataParallel(model), tokens), alone)
    finally:
        torch.distributed.destroy_process_group()


class Doubled(MLPForce):
    def forward(self, q):
        return 2 * super().forward(q)


def hooked_force():
    force = mlp_force(4)
    force.register_forward_hook(lambda *_: None)
    return force


NOT_FUSED = {
    "a function": (lambda: torch.sin, {}, "sin as force"),
    "another force": (lambda: LinearForce(4).double(), {}, "LinearForce as force"),
    "a force of one's own": (lambda: Doubled(4).double(), {}, "Doubled as force"),
    "a hooked force": (hooked_force, {}, "hooks on the force"),
    "a control": (lambda: mlp_force(4), {"method": "kick"}, "method 'kick'"),
    "the inverse": (lambda: mlp_force(4), {"inverse": True}, "inverse=True"),
}


@pytest.mark.parametrize(("make_force", "settings", "says"), NOT_FUSED.values(), ids=NOT_FUSED)
def test_unsupported_cases_of_fused_raise_an_error_and_auto_uses_the_reference(make_force, settings, says):
    q, k = double_randn(2, 1, 3, 2, 4)
    with pytest.raises(CoupledQKError, match=f"impl='fused' does not work with {says}.*set impl to 'reference'"):
        evolve(q, k, 0.1, make_force(), impl="fused", **settings)
    big, method = torch.empty(WORTH_FUSING), settings.get("method", "leapfrog")
    assert choose("auto", big, big, 0.1, make_force(), method, "inverse" in settings) == "reference"


SIZES = [(WORTH_FUSING, "cpu"), (WORTH_FUSING - 1, "cpu"), (WORTH_FUSING, "meta")]


def test_auto_chooses_the_implementation_by_size_and_device():
    force = mlp_force(4)
    many, few, elsewhere = (torch.empty(n, device=d) for n, d in SIZES)
    assert choose("auto", many, many, 0.1, force, "leapfrog") == "fused"
    assert choose("auto", few, few, 0.1, force, "leapfrog") == "reference"
    assert choose("auto", elsewhere, elsewhere, 0.1, force, "leapfrog") == "reference"
    with torch.no_grad():
        assert choose("auto", many, many, 0.1, force, "leapfrog") == "fused"
        assert choose("auto", few, few, 0.1, force, "leapfrog") == "few_tokens"
        assert choose("auto", few.to("meta"), few.to("meta"), 0.1, force, "leapfrog") == "reference"


@pytest.mark.parametrize("layout", ["BTHD", "BHTD"])
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("method", FAST_METHODS)
@torch.no_grad()
def test_the_implementation_for_few_tokens_equals_the_reference(method, group_size, layout):
    qkv, dt, w1, w2 = random_inputs(2, 3, 20, group_size, torch.float32)
    q, k = heads(qkv, 20) if layout == "BTHD" else (x.transpose(1, 2) for x in heads(qkv, 20))
    force = MLPForce(20)
    force.w1.copy_(w1)
    force.w2.copy_(w2)
    for step_size in (dt, 0.2, torch.tensor(0.2)):
        ours, auto, reference = (
            evolve(q, k, step_size, force, 3, method, layout, impl=impl) for impl in ("few_tokens", "auto", "reference")
        )
        torch.testing.assert_close(ours, reference)
        torch.testing.assert_close(auto, ours, rtol=0, atol=0)


def test_unsupported_cases_of_few_tokens_raise_an_error_and_auto_uses_the_reference():
    force, x = MLPForce(4), torch.randn(1, 3, 2, 4)

    def refuses(says, q=x):
        with pytest.raises(
            CoupledQKError, match=f"impl='few_tokens' does not work with {says}.*set impl to 'reference'"
        ):
            evolve(q, q, 0.1, force, impl="few_tokens")
        torch.testing.assert_close(evolve(q, q, 0.1, force), evolve(q, q, 0.1, force, impl="reference"), rtol=0, atol=0)

    refuses("gradients enabled")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        refuses("autocast")
    with torch.no_grad():
        force.half()
        refuses("q in torch.float16", x.half())


def test_an_unknown_impl_is_refused():
    q, k = double_randn(2, 1, 3, 2, 4)
    with pytest.raises(CoupledQKError, match="unknown impl 'fuse': did you mean 'fused'"):
        evolve(q, k, 0.1, mlp_force(4), impl="fuse")


def test_second_derivatives_are_refused_in_one_line():
    q, k = (x.requires_grad_() for x in double_randn(2, 1, 3, 2, 4))
    moved, _ = evolve(q, k, 0.1, mlp_force(4), impl="fused")
    (gradient,) = torch.autograd.grad(moved.sum(), q, create_graph=True)
    with pytest.raises(CoupledQKError, match="impl='fused' has no second derivatives: set impl='reference'"):
        gradient.sum().backward()


def test_transformations_of_torch_func_use_the_reference():
    q, k = double_randn(2, 1, WORTH_FUSING // 16, 4, 4)
    force = mlp_force(4)
    assert choose("auto", q, k, 0.1, force, "leapfrog") == "fused"
    _, tangent = torch.func.jvp(lambda q: evolve(q, k, 0.1, force)[0], (q,), (q,))
    assert tangent.shape == q.shape
    with pytest.raises(CoupledQKError, match=r"does not work with the transformations of torch\.func"):
        torch.func.vmap(lambda q, k: evolve(q, k, 0.1, force, impl="fused"))(q[None], k[None])


@pytest.mark.parametrize("with_gradients", [True, False])
def test_forward_mode_differentiation_of_a_whole_model_gives_the_tangents(with_gradients, monkeypatch):
    monkeypatch.setattr(implementations, "WORTH_FUSING", 0)
    model, tokens = tiny_model("hamiltonian", positions="rope"), random_tokens(2, 8)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def logits(weights):
        return torch.func.functional_call(model, weights, (tokens,))

    with sdpa_kernel(SDPBackend.MATH):  # PyTorch's other kernel on CPUs has no forward mode
        _, expected = torch.func.jvp(logits, (weights,), (weights,))
        with torch.set_grad_enabled(with_gradients), forward_ad.dual_level():
            moving = {name: forward_ad.make_dual(weight, weight) for name, weight in weights.items()}
            tangent = forward_ad.unpack_dual(logits(moving)).tangent
    torch.testing.assert_close(tangent, expected)


def test_forward_mode_differentiation_of_the_operator_is_refused_in_one_line():
    q, k = double_randn(2, 1, 3, 2, 4)
    with forward_ad.dual_level(), pytest.raises(CoupledQKError, match=r"'fused' does not work with .* forward-mode"):
        evolve(forward_ad.make_dual(q, q), k, 0.1, mlp_force(4), impl="fused")


def test_the_inverse_of_a_fused_module_restores_its_inputs():
    dynamics = Dynamics(DynamicsConfig(method="leapfrog"), width=4, n_kv_heads=2).double()
    dynamics.impl = "fused"
    q, k = double_randn(2, 1, 3, 2, 4)
    torch.testing.assert_close(dynamics.inverse(*dynamics(q, k)), (q, k))
