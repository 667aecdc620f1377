"""Every model trains: all its parts learn, and a run that was stopped goes on to the bit."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from llmcourse.layers.moe import Experts, Router, bias_step
from llmcourse.models import (
    GPT2,
    GPT2Config,
    KimiK3,
    KimiK3Config,
    KimiLinear,
    KimiLinearConfig,
    OneMemory,
    OneMemoryConfig,
)
from llmcourse.models.one_memory import MEMORIES
from llmcourse.train import TrainConfig, train

V, T = 32, 48
MODELS = {
    "GPT2": (GPT2, replace(GPT2Config.tiny(), vocab_size=V)),
    "KimiLinear": (KimiLinear, replace(KimiLinearConfig.tiny(), vocab_size=V)),
    "KimiK3": (KimiK3, replace(KimiK3Config.tiny(), vocab_size=V)),
}
MODELS |= {f"OneMemory {kind}": (OneMemory, OneMemoryConfig(kind, V)) for kind in MEMORIES}
IDS = torch.randint(V, (400,), generator=torch.Generator().manual_seed(0))
RUN = TrainConfig(6, batch_size=4, context=T, learning_rate=3e-3, warmup=2)
# The first layer of Kimi K3 has the embedding alone to read, and nothing to choose.
NO_CHOICE = {
    "layers.0.attention_residual.norm.weight",
    "layers.0.attention_residual.query.weight",
}


def fresh(name, seed=1):
    """A new model, whose routers are balanced by a step of their biases after each batch."""
    torch.manual_seed(seed)
    make, config = MODELS[name]
    model = make(config)
    for module in model.modules():
        if isinstance(module, Router):
            module.register_forward_hook(balance)
    return model


def balance(router, inputs, routes):
    if router.training:
        router.bias.copy_(bias_step(routes, router.bias))


def routers(model):
    return [module for module in model.modules() if isinstance(module, Router)]


def run(model, **options):
    return train(model, IDS, RUN, progress=False, **options)


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_and_three_are_six_to_the_bit(name, tmp_path):
    straight = fresh(name)
    history = run(straight)
    path = tmp_path / "run.pt"
    run(fresh(name), checkpoint=path, until=3)
    resumed = fresh(name, seed=2)  # another start: everything comes from the file
    again = run(resumed, checkpoint=path)
    expected, got = straight.state_dict(), resumed.state_dict()
    assert expected.keys() == got.keys()
    assert [n for n in expected if not torch.equal(expected[n], got[n])] == []
    assert again.losses == history.losses and len(again.losses) == RUN.steps


@pytest.mark.parametrize("name", ["KimiLinear", "KimiK3"])
def test_what_is_resumed_holds_biases_that_balancing_moved(name, tmp_path):
    path = tmp_path / "run.pt"
    model = fresh(name)
    run(model, checkpoint=path, until=3)
    saved = torch.load(path)["model"]
    biases = [tensor for key, tensor in saved.items() if key.endswith("router.bias")]
    assert len(biases) == len(routers(model)) > 0
    assert all(bias.any() for bias in biases)


def gradients(model):
    """Each parameter's gradient on a batch, after a few steps: some weights begin at 0."""
    run(model)
    x = torch.randint(V, (8, T), generator=torch.Generator().manual_seed(3))
    model.zero_grad()
    F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name):
    found = gradients(fresh(name))
    assert [n for n, g in found.items() if g is None or not g.isfinite().all()] == []
    zero = {n for n, g in found.items() if not g.any()}
    assert zero == (NO_CHOICE if name == "KimiK3" else set())


@pytest.mark.parametrize("name", ["KimiLinear", "KimiK3"])
def test_every_expert_gets_a_gradient(name):
    model = fresh(name)
    gradients(model)
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    assert len(experts) == len(routers(model)) > 0
    for weight in (weight for module in experts for weight in module.parameters()):
        assert weight.grad.flatten(1).any(dim=1).all()  # [E, ...]: of each expert
