"""Unmodified scripts in processes of their own, started as torchrun starts workers; torch itself loads the sampler."""

from __future__ import annotations

import importlib.util
import math

import pytest

from heet_elastic.predictor.samples import merge
from tests.integration.sampling import run

HEAD = """
import os, sys
import torch
from torch import nn

torch.manual_seed(0)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def group():
    import torch.distributed as dist
    dist.init_process_group("gloo")

def model():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
"""


def needs(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (group `frameworks`)")


def totals(record):
    """(steps, samples) of all rounds."""
    return sum(r.steps for r in record.rounds), sum(r.samples for r in record.rounds)


DDP = (
    HEAD
    + """
group()
wrapped = nn.parallel.DistributedDataParallel(model())
optimizer = torch.optim.Adam(wrapped.parameters())
for i in range(30):
    batch = torch.randn(8, 4)
    with wrapped.no_sync():
        wrapped(batch).mean().backward()
    wrapped(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
)


def test_two_ddp_workers_that_accumulate_without_syncing(tmp_path):
    record = run(tmp_path, DDP, workers=2).check()
    assert totals(record) == (30, 2 * 30 * 2 * 8)
    assert record.progress.certain


FSDP = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard
group()
m = model()
for layer in m:
    if isinstance(layer, nn.Linear):
        fully_shard(layer)
fully_shard(m)
optimizer = torch.optim.Adam(m.parameters())
for i in range(20):
    m(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if i == 9:
        from torch.distributed.checkpoint.state_dict import get_state_dict
        get_state_dict(m, optimizer)
torch.distributed.destroy_process_group()
"""
)


def test_two_fsdp2_workers_count_whole_parameters_and_notice_a_distributed_checkpoint(tmp_path):
    record = run(tmp_path, FSDP, workers=2).check()
    assert totals(record) == (20, 2 * 20 * 8)
    assert record.features is not None
    assert record.features.parameters == 4 * 8 + 8 + 8 + 1
    assert (record.rounds[0].marks, record.rounds[0].marked_steps) == (1, 10)


RESUMING = (
    HEAD
    + """
m = model()
optimizer = torch.optim.Adam(m.parameters())
start = 0
if os.path.exists("ck.pt"):
    saved = torch.load("ck.pt")
    m.load_state_dict(saved["m"]); optimizer.load_state_dict(saved["o"]); start = saved["i"]
for i in range(start, start + 25):
    m(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if i % 10 == 9:
        torch.save({"m": m.state_dict(), "o": optimizer.state_dict(), "i": i + 1}, "ck.pt")
"""
)


def test_rounds_that_resume_from_checkpoints_lose_steps_once(tmp_path):
    record = run(tmp_path, RESUMING, rounds=3).check()
    # 25 steps from 0, then from 20, then from 40: at 65, having made 75.
    assert record.progress.steps == 65
    assert record.progress.lost_steps == 10
    assert record.progress.certain
    assert record.rounds[1].loaded_steps == 20
    (cell,) = record.cells
    assert cell.steps == 3 * 24


STEADY = (
    HEAD
    + """
import time
m = model()
optimizer = torch.optim.SGD(m.parameters(), 0.1)
begun, steps, times = time.monotonic(), 0, []
while time.monotonic() < begun + 6:
    x = torch.randn(16, 4)
    for _ in range(200):
        x = x + 1
    m(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.monotonic())
gaps = sorted(b - a for a, b in zip(times[10:], times[11:]))
print("pace", (times[-1] - times[10]) / len(gaps))
"""
)


def test_the_rate_is_that_of_the_loop(tmp_path):
    outcome = run(tmp_path, STEADY)
    record = outcome.check()
    pace = float(outcome.output.split()[-1])
    (cell,) = merge([record], "steps").values()
    # The loop's own mean against the median over windows: other programs on the machine disturb them unequally.
    assert cell.throughput == pytest.approx(1 / pace, rel=0.35)
    (in_samples,) = merge([record], "samples").values()
    assert in_samples.throughput == pytest.approx(16 * cell.throughput)


LOADERS = (
    HEAD
    + """
import subprocess
from torch.utils.data import DataLoader, TensorDataset

class Telling(TensorDataset):
    def __getitem__(self, i):
        from heet_elastic.agents import autostart, sampler
        assert not autostart.is_worker()
        assert sampler._installed is None or sampler._installed._off
        return super().__getitem__(i)

def main():
    data = Telling(torch.randn(64, 4))
    m = model()
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    for how in ("fork", "spawn"):
        for (batch,) in DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context=how):
            m(batch).mean().backward()
            optimizer.step()
    assert "heet_elastic.agents.sampler" in sys.modules
    helper = "import sys, torch; assert 'heet_elastic.agents.sampler' not in sys.modules; print('helper was here')"
    subprocess.run([sys.executable, "-c", helper], check=True)

if __name__ == "__main__":
    main()
"""
)


def test_data_loader_workers_and_helpers_that_inherit_the_environment_do_not_act(tmp_path):
    outcome = run(tmp_path, LOADERS)
    assert totals(outcome.check()) == (8, 8 * 16)
    assert outcome.skipped == 0
    assert "helper was here" in outcome.output


def test_torchs_own_switch_turns_the_sampler_off(tmp_path):
    outcome = run(tmp_path, DDP, extra={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert outcome.codes == (0,)
    assert (outcome.record.datagrams, outcome.skipped) == (0, 0)


LOSSES = (
    HEAD
    + """
m = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3))
optimizer = torch.optim.AdamW(m.parameters(), 0.01)
for i in range(40):
    loss = nn.functional.cross_entropy(m(torch.randn(8, 1, 8, 8)), torch.randint(0, 3, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
"""
)


def test_losses_are_bit_identical_with_and_without_the_sampler(tmp_path):
    for name in ("on", "off"):
        (tmp_path / name).mkdir()
    on = run(tmp_path / "on", LOSSES)
    off = run(tmp_path / "off", LOSSES, sampled=False)
    assert on.check().progress.steps == 40
    assert off.record.datagrams == 0
    assert len(on.output.split()) == 40
    assert on.output == off.output


FAILING = (
    HEAD
    + """
m = model()
optimizer = torch.optim.SGD(m.parameters(), 0.1)
for i in range(7):
    m(torch.randn(8, 4)).mean().backward()
    optimizer.step()
raise SystemExit(3)
"""
)


def test_the_last_steps_of_a_failing_script_are_told(tmp_path):
    outcome = run(tmp_path, FAILING)
    assert outcome.codes == (3,)
    assert totals(outcome.record) == (7, 56)


COMPILED = (
    HEAD
    + """
m = model()
compiled = torch.compile(m, fullgraph=True)
optimizer = torch.optim.Adam(m.parameters())
step = torch.compile(optimizer.step)
for i in range(15):
    compiled(torch.randn(8, 4)).mean().backward()
    step()
    optimizer.zero_grad()
"""
)


@pytest.mark.slow
def test_model_and_optimizer_compiled_by_inductor(tmp_path):
    # That the same graphs are compiled with and without the sampler is a unit test, with a quicker backend.
    assert totals(run(tmp_path, COMPILED).check()) == (15, 15 * 8)


ACCELERATE = (
    HEAD
    + """
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
m = model()
data = DataLoader(TensorDataset(torch.randn(128, 4)), batch_size=8)
optimizer = torch.optim.AdamW(m.parameters())
m, optimizer, data = accelerator.prepare(m, optimizer, data)
for (batch,) in data:
    with accelerator.accumulate(m):
        accelerator.backward(m(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
accelerator.save_state("state")
accelerator.end_training()
"""
)


@needs("accelerate")
def test_accelerate_with_accumulation(tmp_path):
    record = run(tmp_path, ACCELERATE).check()
    assert totals(record) == (8, 128)
    assert (record.rounds[0].marks, record.rounds[0].marked_steps) == (1, 8)


TRANSFORMERS = (
    HEAD
    + """
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        ids = torch.randint(0, 50, (12,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": i % 2}
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=10, save_steps=5, report_to=[],
    eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=16, use_cpu=True, disable_tqdm=True,
)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=Data(), eval_dataset=Data()).train()
"""
)


@needs("transformers", "accelerate")
def test_hugging_face_trainer_with_accumulation_evaluation_and_checkpoints(tmp_path):
    record = run(tmp_path, TRANSFORMERS).check()
    assert totals(record) == (10, 80)
    assert record.features is not None
    assert record.features.tokens_per_sample == 12
    assert (record.rounds[0].marks, record.rounds[0].marked_steps) == (2, 10)


LIGHTNING = (
    HEAD
    + """
import warnings
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model()
    def training_step(self, batch, i):
        return self.net(batch[0]).mean()
    def validation_step(self, batch, i):
        self.net(batch[0])
    def configure_optimizers(self):
        o = torch.optim.Adam(self.parameters())
        return [o], [torch.optim.lr_scheduler.StepLR(o, 1)]

data = DataLoader(TensorDataset(torch.randn(96, 4)), batch_size=8)
for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(key)
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", devices=1, accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Lit(), data, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=64))
print("steps", trainer.global_step)
"""
)


@needs("lightning")
def test_lightning_whose_training_step_calls_a_part_of_the_module(tmp_path):
    outcome = run(tmp_path, LIGHTNING)
    steps, samples = totals(outcome.check())
    assert outcome.output.splitlines()[-1] == f"steps {steps:.0f}"
    assert steps == 12
    assert math.isclose(samples, 192)
    assert outcome.record.rounds[0].marks == 2
