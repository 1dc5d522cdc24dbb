"""Trains small nets, each in another way, as a worker; then worker 0 trains them with whole batches, by itself.

equality_rows.py WORKERS ROW,ROW,...

Prints for each row how far the weights lie apart, and how far the first ones lay, of the largest weight. All rows share
a run: each has models and optimizers of its own.
"""

import sys
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import speedo

STEPS, WHOLE = 20, 16
torch.set_num_threads(1)
torch.manual_seed(5)
X = torch.randn(STEPS * WHOLE, 6)
Y = torch.sin(X.sum(1, keepdim=True))


def net(*middle, inward=6):
    return nn.Sequential(nn.Linear(inward, 8), *middle, nn.Tanh(), nn.Linear(8, 1))


class Row:
    """SGD with momentum; the others say what they do else."""

    in_parts = False  # the whole batch is the parts of the workers, whose gradients are added up

    def __init__(self):
        torch.manual_seed(7)
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.schedulers = self.make_schedulers()

    @property
    def models(self):
        return [self.model]

    @property
    def optimizers(self):
        return [self.optimizer]

    def make_model(self):
        return net()

    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def make_schedulers(self):
        return []

    def loss(self, x, y):
        return F.mse_loss(self.model(x), y)

    def train(self, parts, number, run):
        """A step with the batch, which has come in these parts; its number begins at 1."""
        for x, y in parts:
            self.backward(self.loss(x, y) / len(parts))
        self.update()
        self.zero()

    def backward(self, loss):
        loss.backward()

    def update(self):
        self.optimizer.step()
        for scheduler in self.schedulers:
            scheduler.step()

    def zero(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def state(self):
        return {
            f"{number}.{name}": value.detach().double()
            for number, model in enumerate(self.models)
            for name, value in model.state_dict().items()
            if "num_batches" not in name
        }


class Plain(Row):
    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


class Momentum(Row):
    pass


class Adam(Row):
    fused = foreach = False

    def make_optimizer(self):
        how = {"fused": self.fused, "foreach": self.foreach}
        return torch.optim.Adam(self.model.parameters(), lr=0.01, **how)


class Fused(Adam):
    fused = True


class Foreach(Adam):
    foreach = True


class Groups(Row):
    def make_optimizer(self):
        groups = [
            {"params": self.model[0].parameters(), "lr": 0.1},
            {"params": self.model[2].parameters(), "weight_decay": 0.1},
        ]
        return torch.optim.SGD(groups, lr=0.02, momentum=0.9)


class StepRate(Row):
    def make_schedulers(self):
        return [lr_scheduler.StepLR(self.optimizer, 6, 0.5)]


class OneCycle(Row):
    def make_schedulers(self):
        return [lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=STEPS)]


class Cosine(Row):
    def make_schedulers(self):
        return [lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)]


class Accumulated(Row):
    """Three batches a step, and what is left of the epoch is a step."""

    says_so = False

    def train(self, parts, number, run):
        steps = number % 3 == 0 or number == STEPS
        with run.accumulate() if self.says_so and run and not steps else nullcontext():
            for x, y in parts:
                self.backward(self.loss(x, y) / len(parts) / 3)
        if steps:
            self.update()
            self.zero()


class AccumulatedSaid(Accumulated):
    says_so = True


class ClipNorm(Row):
    def update(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        super().update()


class ClipValue(Row):
    def update(self):
        nn.utils.clip_grad_value_(self.model.parameters(), 0.02)
        super().update()


class Projected(Row):
    """The script changes the weights after the step."""

    def update(self):
        super().update()
        with torch.no_grad():
            for one in self.model.parameters():
                one.clamp_(-0.3, 0.3)


class Scaler(Row):
    """The scale grows after five steps."""

    clips = False

    def make_schedulers(self):
        return [torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5)]

    def backward(self, loss):
        self.schedulers[0].scale(loss).backward()

    def update(self):
        scaler = self.schedulers[0]
        if self.clips:
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        scaler.step(self.optimizer)
        scaler.update()


class ScalerClip(Scaler):
    clips = True


class Autocast(Row):
    in_parts = True  # each part's gradient is rounded to bfloat16

    def loss(self, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return F.mse_loss(self.model(x).float(), y)


class BFloat16(Row):
    in_parts = True

    def make_model(self):
        return net().bfloat16()

    def loss(self, x, y):
        return F.mse_loss(self.model(x.bfloat16()).float(), y)


class BatchNorm(Row):
    """Each worker has statistics of its own; its moving averages are averaged."""

    in_parts = True

    def make_model(self):
        return net(nn.BatchNorm1d(8))

    def train(self, parts, number, run):
        before = self.averages()
        seen = []
        for x, y in parts:
            self.set_averages(before)
            self.backward(self.loss(x, y) / len(parts))
            seen.append(self.averages())
        self.set_averages([sum(some) / len(seen) for some in zip(*seen, strict=True)])
        self.update()
        self.zero()

    def averages(self):
        return [one.clone() for one in self.model.buffers() if one.is_floating_point()]

    def set_averages(self, values):
        own = [one for one in self.model.buffers() if one.is_floating_point()]
        for one, value in zip(own, values, strict=True):
            one.copy_(value)


class SyncBatchNorm(Row):
    """Its statistics are those of the whole batch."""

    def make_model(self):
        return nn.SyncBatchNorm.convert_sync_batchnorm(net(nn.BatchNorm1d(8)))


class Tied(Row):
    def make_model(self):
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
        model[2].weight = model[0].weight
        return model


class Frozen(Row):
    def make_model(self):
        model = net()
        model[0].weight.requires_grad = False
        return model

    def make_optimizer(self):
        trained = [one for one in self.model.parameters() if one.requires_grad]
        return torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=0.1)


class Unused(Row):
    """One part has never a gradient, another in some batches, or in one worker alone."""

    def make_model(self):
        return nn.ModuleList([net(), net(), net()])

    def make_optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def loss(self, x, y):
        is_rare = x[:, 0] > 1.2
        out = self.model[0](x)
        if is_rare.any():
            out = out + torch.zeros_like(out).masked_scatter(
                is_rare[:, None], self.model[1](x[is_rare])
            )
        return F.mse_loss(out, y)


class Float64(Row):
    def make_model(self):
        return net().double()

    def loss(self, x, y):
        return F.mse_loss(self.model(x.double()), y.double())


class Compiled(Row):
    def make_model(self):
        model = net()
        self.compiled = torch.compile(model)
        return model

    def loss(self, x, y):
        return F.mse_loss(self.compiled(x), y)


class TwoOptimizers(Row):
    """Of one model, with one backward pass."""

    def make_optimizer(self):
        return torch.optim.SGD(self.model[0].parameters(), lr=0.1)

    @property
    def optimizers(self):
        return [self.optimizer, self.other]

    def __init__(self):
        super().__init__()
        self.other = torch.optim.Adam(self.model[2].parameters(), lr=0.01)

    def update(self):
        self.optimizer.step()
        self.other.step()


class Adversaries(Row):
    """Two models that train in turns; the second's backward pass goes through the first."""

    def make_model(self):
        self.judge = net(inward=1)
        return net()

    def make_optimizer(self):
        self.of_judge = torch.optim.Adam(self.judge.parameters(), lr=0.01)
        return torch.optim.Adam(self.model.parameters(), lr=0.01)

    @property
    def models(self):
        return [self.model, self.judge]

    @property
    def optimizers(self):
        return [self.optimizer, self.of_judge]

    def train(self, parts, number, run):
        ((x, y),) = parts
        made = self.model(x)
        self.of_judge.zero_grad()
        (self.judge(made.detach()).square() + (self.judge(y) - 1).square()).mean().backward()
        self.of_judge.step()
        self.tell(run)
        self.optimizer.zero_grad()
        (self.judge(made) - 1).square().mean().backward()
        self.optimizer.step()
        self.zero()

    def tell(self, run):
        pass


class AdversariesTold(Adversaries):
    """A collective between the steps of the two optimizers: the second step is of the same turn."""

    def tell(self, run):
        if run:
            run.all_reduce(np.ones(1), "mean")


class Average(Row):
    def make_schedulers(self):
        return [AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.8))]

    def update(self):
        self.optimizer.step()
        self.schedulers[0].update_parameters(self.model)

    def state(self):
        of_average = self.schedulers[0].module.state_dict()
        return {**super().state(), **{f"average.{name}": one for name, one in of_average.items()}}


ROWS = {
    one.__name__: one
    for one in (
        *(Plain, Momentum, Adam, Groups, StepRate, OneCycle, Cosine, Accumulated, AccumulatedSaid),
        *(
            ClipNorm,
            ClipValue,
            Projected,
            Scaler,
            ScalerClip,
            Autocast,
            BFloat16,
            BatchNorm,
            SyncBatchNorm,
        ),
        *(Tied, Frozen, Unused, Float64, Fused, Foreach, Compiled),
        *(TwoOptimizers, Adversaries, AdversariesTold, Average),
    )
}


def train_modules(names, part):
    """States by row: after the run, after steps with whole batches, and at the beginning."""
    rows = {name: ROWS[name]() for name in names}
    loader = DataLoader(TensorDataset(X, Y), batch_size=part)
    models = [one for row in rows.values() for one in row.models]
    optimizers = [one for row in rows.values() for one in row.optimizers]
    schedulers = [one for row in rows.values() for one in row.schedulers]
    with speedo.join(models, optimizers, scheduler=schedulers) as run:
        for number, batch in enumerate(run.share(loader), 1):
            for row in rows.values():
                row.train([batch], number, run)
    for name, row in rows.items():
        alone = ROWS[name]()
        for number in range(1, STEPS + 1):
            place = slice((number - 1) * WHOLE, number * WHOLE)
            size = part if alone.in_parts else WHOLE
            parts = list(zip(X[place].split(size), Y[place].split(size), strict=True))
            alone.train(parts, number, None)
        yield name, row.state(), alone.state(), ROWS[name]().state()


def train_arrays(part):
    """The same of a line that NumPy fits; a collective in the middle of a step costs it nothing."""
    x, y = X.numpy(), Y.numpy()
    w, alone, first = (np.zeros((6, 1), np.float32) for _ in range(3))

    def step(w, x, y):
        w -= 0.2 * x.T @ (x @ w - y) / len(x)

    with speedo.join({"w": w}) as run:
        for some, right in run.share((x, y), batch=part):
            run.all_reduce(np.ones(1), "mean")
            step(w, some, right)
            run.step()
    for some, right in zip(np.split(x, STEPS), np.split(y, STEPS), strict=True):
        step(alone, some, right)
    yield "NumPy", *({"w": torch.from_numpy(one)} for one in (w, alone, first))


def main(workers, names):
    part = WHOLE // workers
    for name, ours, theirs, first in train_modules(names, part) if names else train_arrays(part):
        largest = max(float(one.abs().max()) for one in theirs.values())
        apart, moved = (
            max(float((one[name] - theirs[name]).abs().max()) for name in theirs) / largest
            for one in (ours, first)
        )
        print(f"row {name} {apart:.1e} {moved:.1e}", flush=True)


if __name__ == "__main__":
    asked = [name for name in ROWS if name in sys.argv[2].split(",")]
    if "Compiled" not in asked:
        import no_compiler  # noqa: F401
    main(int(sys.argv[1]), asked)
