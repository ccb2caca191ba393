"""The sampler in this process: real torch loops, counted against what the loop itself knows."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import math
import os
import pickle
import socket
import weakref
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import heet_elastic
from heet_elastic.agents import autostart
from heet_elastic.agents.messages import ENV_AGENT_PID, ENV_SOCKET, SampleMessage, unpack
from heet_elastic.agents.sampler import Sampler

STEPS = 12
BATCH = 8


class Model(nn.Module):
    """Two layers, called with anything that leads to a [batch, 4] tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x, scale=1.0):
        return self.last(torch.relu(self.first(x * scale)))


class Agent:
    """The other end of the socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.setblocking(False)

    def received(self) -> list[SampleMessage]:
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(unpack(self.socket.recv(65536)))
        return messages


@pytest.fixture
def agent(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("s", numbered=True)
    monkeypatch.chdir(folder)  # a relative path is short enough for a socket
    made = Agent("s")
    yield made
    made.socket.close()


@pytest.fixture
def sampler(agent):
    made = Sampler(agent.path, 1, 0, 0)
    made.attach()
    yield made
    made.detach()


def batch(n=BATCH):
    return torch.randn(n, 4)


def train(model, optimizer, steps=STEPS, call=None):
    for _ in range(steps):
        (model if call is None else call)(batch()).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def hurry(sampler: Sampler) -> None:
    """As if the times of the next look at the counters and of the next message had come."""
    sampler._next_send = sampler._digest_at = 0.0


def counted(sampler: Sampler) -> tuple[int, float]:
    message = sampler.message()
    assert message.problem is None
    return message.steps, message.samples


def test_a_plain_loop_counts_steps_and_samples_of_all_steps_though_the_root_is_found_at_the_first(sampler):
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_facts_of_the_model_are_seen(sampler):
    model = Model()
    model.first.weight.requires_grad_(False)
    train(model, torch.optim.Adam(model.parameters()))
    message = sampler.message()
    total = 4 * 8 + 8 + 8 + 1
    assert (message.parameters, message.parameter_bytes, message.gradient_bytes) == (total, 4 * total, 4 * (total - 32))
    assert (message.dtype, message.device, message.batch) == ("float32", "cpu", BATCH)


def test_accumulated_gradients_are_one_step_with_all_their_samples(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(3 * STEPS):
        model(batch()).mean().backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    assert counted(sampler) == (STEPS, 3 * STEPS * BATCH)


def test_evaluation_is_not_counted(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(STEPS):
        train(model, optimizer, 1)
        if i % 4 == 3:
            model.eval()
            with torch.no_grad():
                model(batch(1000))
            model.train()
            with torch.no_grad():
                model(batch(1000))
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_a_model_that_is_trained_in_eval_mode_is_counted(sampler):
    model = Model().eval()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    steps, samples = counted(sampler)
    assert (steps, samples) == (STEPS, STEPS * BATCH)


def test_a_step_that_a_grad_scaler_skips_is_no_step(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for i in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch()).float().mean()
        scaler.scale(loss * (math.inf if i in (5, 6) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert counted(sampler) == (STEPS - 2, STEPS * BATCH)
    assert sampler.message().dtype == "float32+bfloat16"


def test_a_gan_counts_once_a_round_with_the_batch_of_its_generator(sampler):
    generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for _ in range(STEPS):
        made = generator(torch.randn(BATCH, 3))
        (critic(made.detach()).mean() - critic(batch()).mean()).backward()
        of_critic.step()
        of_critic.zero_grad()
        (-critic(made).mean()).backward()
        of_generator.step()
        of_generator.zero_grad()
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_a_critic_that_steps_five_times_a_round_counts_each_of_its_steps(sampler):
    generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
    of_generator = torch.optim.SGD(generator.parameters(), 0.1)
    of_critic = torch.optim.SGD(critic.parameters(), 0.1)
    for _ in range(STEPS):
        for _ in range(5):
            critic(generator(torch.randn(BATCH, 3)).detach()).mean().backward()
            of_critic.step()
        critic(generator(torch.randn(BATCH, 3))).mean().backward()
        of_generator.step()
    steps, _ = counted(sampler)
    assert steps == 5 * STEPS


def test_an_optimizer_per_parameter_stepping_in_backward_counts_once_a_pass(sampler):
    model = Model()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    for _ in range(STEPS):
        model(batch()).mean().backward()
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_an_optimizer_whose_step_calls_that_of_its_base_class_counts_once(sampler):
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = Model()
    torch.optim.SGD(model.parameters(), 0.1)  # its class now has a hooked step of its own
    train(model, Twice(model.parameters(), 0.1))
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_an_optimizer_that_wraps_another_counts_once(sampler):
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__([p for g in inner.param_groups for p in g["params"]], {})

        def step(self, closure=None):
            return self.inner.step(closure)

    model = Model()
    train(model, Outer(torch.optim.SGD(model.parameters(), 0.1)))
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_a_closure_that_runs_the_model_counts_each_of_its_passes(sampler):
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    data = batch()

    def closure():
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_a_scheduler_and_an_optimizer_replaced_midway_change_nothing(sampler):
    model = Model()
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        for _ in range(STEPS):
            train(model, optimizer, 1)
            scheduler.step()
    steps, samples = counted(sampler)
    assert 2 * STEPS - 1 <= steps <= 2 * STEPS
    assert samples == pytest.approx(steps * BATCH, abs=2 * BATCH)


def test_an_outer_module_is_the_root_and_a_weight_of_the_loss_is_not(sampler):
    class Wrapped(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, batches):
            return torch.cat([self.module(part) for part in batches["parts"]])

    class Weight(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.value

    model, weight = Wrapped(Model()), Weight()
    optimizer = torch.optim.SGD([*model.parameters(), *weight.parameters()], 0.1)
    for _ in range(STEPS):
        # Two parts of half a batch: the wrapper sees a list of tensors, each inner call half of it.
        weight(model({"parts": [batch(BATCH // 2), batch(BATCH // 2)]}).mean().reshape(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert counted(sampler) == (STEPS, STEPS * BATCH // 2)


def test_a_container_that_is_never_called_is_looked_into(sampler):
    class Container(nn.Module):
        def __init__(self):
            super().__init__()
            self.towers = nn.ModuleDict({"a": Model(), "b": Model()})
            self.scale = nn.Linear(1, 1)

        def training_step(self, x):
            return (self.towers["a"](x) - self.towers["b"](x)).mean() + self.scale(torch.ones(1)).sum()

    model = Container()
    train(model, torch.optim.SGD(model.parameters(), 0.1), call=model.training_step)
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_where_no_forward_pass_is_seen_steps_count_and_the_message_says_what_is_missing(sampler):
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), 0.1), call=model.forward)
    # model.forward calls self.first(...) and self.last(...): a level below is found
    assert counted(sampler) == (STEPS, STEPS * BATCH)
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], 0.1)
    for _ in range(STEPS):
        parameter.sum().backward()
        optimizer.step()
    message = sampler.message()
    assert 2 * STEPS - 1 <= message.steps <= 2 * STEPS


def test_an_optimizer_without_any_module_says_that_samples_are_unknown(sampler):
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], 0.1)
    for _ in range(STEPS):
        parameter.sum().backward()
        optimizer.step()
    message = sampler.message()
    assert (message.steps, message.samples) == (STEPS, 0)
    assert message.problem is not None
    assert "samples are unknown" in message.problem
    assert "stopped" not in message.problem


def test_tokens_are_counted_where_the_input_is_integer_batch_and_length(sampler):
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        model(torch.randint(0, 10, (BATCH, 5))).mean().backward()
        optimizer.step()
    message = sampler.message()
    assert (message.samples, message.tokens) == (STEPS * BATCH, STEPS * BATCH * 5)


def test_reported_samples_replace_counted_ones_and_progress_is_passed_on(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(STEPS):
        train(model, optimizer, 1)
        heet_elastic.report(samples=100)
        heet_elastic.progress(i + 1, STEPS)
    message = sampler.message()
    assert (message.samples, message.done, message.total) == (100 * STEPS, STEPS, STEPS)


def test_a_loop_without_a_torch_optimizer_can_report_its_steps(sampler):
    for _ in range(STEPS):
        heet_elastic.report(samples=BATCH, steps=1)
    assert counted(sampler) == (STEPS, STEPS * BATCH)
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    heet_elastic.report(steps=5)  # torch's own steps outrank these from now on
    assert sampler.message().steps == STEPS + 3


def test_a_saved_optimizer_is_a_mark_from_the_next_step_on(sampler, agent):
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 5)
    agent.received()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
    assert sampler.message().marks == 0
    train(model, optimizer, 1)
    (sent,) = agent.received()  # a mark is told at once
    assert (sent.marks, sent.marked_steps, sent.marked_samples) == (1, 5, 5 * BATCH)


def test_a_module_saved_now_and_then_is_a_mark_and_one_read_at_every_step_is_none(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        train(model, optimizer, 6)
        model.state_dict()
    train(model, optimizer, 1)
    assert (sampler.message().marks, sampler.message().marked_steps) == (3, 18)
    for _ in range(20):
        model.state_dict()
        train(model, optimizer, 1)
    assert sampler.message().marks <= 6


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_a_restored_run_says_from_where(sampler, kind):
    model = Model()
    optimizer = kind(model.parameters(), 0.1)
    train(model, optimizer, 5)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    again = Model()
    again.load_state_dict(saved["model"])
    restored = kind(again.parameters(), 0.1)
    restored.load_state_dict(saved["optimizer"])
    train(again, restored, 3)
    message = sampler.message()
    assert message.loads == 1
    assert message.weight_loads == 1
    assert message.loaded_steps == (5 if kind is torch.optim.Adam else None)


def test_weights_of_a_backbone_are_not_the_model(sampler):
    model = Model()
    model.first.load_state_dict(nn.Linear(4, 8).state_dict())
    model.last.load_state_dict(nn.Linear(8, 1).state_dict())
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    assert sampler.message().weight_loads == 0


def test_copies_and_pickles_of_a_watched_model_are_free_of_the_sampler(sampler, tmp_path):
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    before = sampler.message().samples
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(batch(100))
        other.state_dict()
    assert b"heet" not in pickle.dumps(model)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    assert sampler.message().samples <= before + 2 * BATCH


def test_the_sampler_keeps_neither_models_nor_optimizers_alive(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    alive = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_models_are_counted_and_compiled_as_often_as_without_the_sampler(sampler):
    def graphs(call_of):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = Model()
        train(model, torch.optim.SGD(model.parameters(), 0.1), call=call_of(model))
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def in_place(model):
        model.compile(backend="eager", fullgraph=True)
        return model

    def wrapped(model):
        return torch.compile(model, backend="eager", fullgraph=True)

    assert graphs(wrapped) == 1
    assert counted(sampler) == (STEPS, STEPS * BATCH)
    assert graphs(in_place) == 1
    steps, samples = counted(sampler)
    assert 2 * STEPS - 1 <= steps <= 2 * STEPS
    assert samples == pytest.approx(2 * STEPS * BATCH, abs=2 * BATCH)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_function_compiled_around_the_model_keeps_its_graphs_and_its_steps(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    @torch.compile(backend="eager", fullgraph=True)
    def loss_of(x):
        return model(x).pow(2).mean()

    for i in range(STEPS):
        loss_of(batch(BATCH + i)).backward()
        optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # one shape, then any shape
    message = sampler.message()
    assert message.steps == STEPS
    assert message.problem is not None
    assert "samples are unknown" in message.problem


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_a_compiled_optimizer_is_counted(sampler):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(STEPS):
        model(batch()).mean().backward()
        step()
        optimizer.zero_grad()
    assert counted(sampler) == (STEPS, STEPS * BATCH)


def test_messages_are_few_cumulative_and_the_last_one_comes_at_the_end(sampler, agent):
    model = Model()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 200)
    first = agent.received()
    assert 1 <= len(first) <= 3
    assert first[0].steps == 1  # told at once: the job has begun to train
    sampler.close()
    (last,) = agent.received()
    assert (last.steps, last.samples) == (200, 200 * BATCH)
    sampler.close()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    assert agent.received() == []


def test_a_full_queue_or_a_vanished_agent_never_blocks_the_script(sampler, agent):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(50):  # nobody reads
        train(model, optimizer, 1)
        hurry(sampler)
    agent.socket.close()
    Path(agent.path).unlink()
    for _ in range(5):
        hurry(sampler)
        train(model, optimizer, 1)
    assert counted(sampler) == (55, 55 * BATCH)


@pytest.mark.parametrize(("owner", "method"), [("_timer", "arm"), ("_checkpoints", "commit"), ("_forwards", "meet")])
def test_whatever_breaks_inside_is_told_once_and_never_raised(sampler, agent, monkeypatch, owner, method):
    def broken(*_):
        raise RuntimeError("broken on purpose")

    model = Model()
    with monkeypatch.context() as patch:
        patch.setattr(getattr(sampler, owner), method, broken)
        # The timer is armed at the end of a window, so the loop must outlast one.
        while not sampler._off:
            train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    told = [m.problem for m in agent.received() if m.problem]
    assert told == ["sampler stopped: RuntimeError: broken on purpose"]
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    assert agent.received() == []


def test_batches_that_cannot_be_read_stop_the_counting_not_the_script(sampler, agent):
    class Odd:
        @property
        def num_graphs(self):
            raise RuntimeError("no size here")

    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, odd):
            return self.layer(torch.ones(2, 4))

    model = Takes()
    train(model, torch.optim.SGD(model.parameters(), 0.1), call=lambda _: model(Odd()))
    assert agent.received()[-1].problem == "sampler stopped: RuntimeError: no size here"


def test_a_forked_child_is_silent(sampler, agent):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer, 3)
    agent.received()
    child = os.fork()
    if child == 0:
        try:
            hurry(sampler)
            train(model, optimizer, 3)
            sampler.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert agent.received() == []
    train(model, optimizer, 1)
    assert sampler.message().steps == 4


def test_detaching_takes_every_hook_away(agent):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loads = torch.optim.Optimizer.load_state_dict, nn.Module.load_state_dict
    made = Sampler(agent.path, 1, 0, 0)
    made.attach()
    train(model, optimizer)
    assert model._forward_pre_hooks
    made.detach()
    assert not model._forward_pre_hooks
    assert not model._state_dict_pre_hooks
    assert not optimizer._optimizer_state_dict_post_hooks
    assert (torch.optim.Optimizer.load_state_dict, nn.Module.load_state_dict) == loads


def test_losses_are_bit_identical_with_the_sampler(agent):
    def losses(sampled):
        made = Sampler(agent.path, 1, 0, 0)
        if sampled:
            made.attach()
        torch.manual_seed(3)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        values = []
        for _ in range(50):
            loss = model(batch()).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append(loss.item())
        made.detach()
        return values, torch.random.get_rng_state()

    off, on = losses(False), losses(True)
    assert off[0] == on[0]
    assert torch.equal(off[1], on[1])


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {ENV_SOCKET: "/tmp/none"},
        {ENV_AGENT_PID: str(os.getppid())},
        {ENV_SOCKET: "", ENV_AGENT_PID: str(os.getppid())},
        {ENV_SOCKET: "/tmp/none", ENV_AGENT_PID: "1"},
        {ENV_SOCKET: "/tmp/none", ENV_AGENT_PID: str(os.getpid())},
        {ENV_SOCKET: "/tmp/none", ENV_AGENT_PID: "x"},
    ],
)
def test_only_a_child_of_the_named_agent_is_a_worker(monkeypatch, variables):
    for name in (ENV_SOCKET, ENV_AGENT_PID):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not autostart.is_worker()
    autostart.start()
    monkeypatch.setenv(ENV_SOCKET, "/tmp/none")
    monkeypatch.setenv(ENV_AGENT_PID, str(os.getppid()))
    assert autostart.is_worker()
