"""Fits 240 points in so many epochs, with a pause after each step, and counts its steps in what it keeps."""

import sys
import time

import numpy as np

import speedo

model, epochs, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
random = np.random.default_rng(3)
x = random.standard_normal((240, 3)).astype(np.float32)
y = x @ np.array([1, -2, 3], np.float32)


class Steps:
    count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
        print("restored", self.count, flush=True)


steps = Steps()
if model == "adam":
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(4)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    rate = torch.optim.lr_scheduler.MultiStepLR(optimizer, [20, 50, 70], 0.7)
    rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y[:, None]))
    loader = DataLoader(rows, batch_size=8, shuffle=True)
    with speedo.join(net, optimizer) as run:
        run.keep("rate", rate)
        for _ in run.epochs(epochs):
            for some, right in run.share(loader):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(some), right).backward()
                optimizer.step()
                rate.step()
                time.sleep(pause)
else:
    w = np.zeros(3, np.float32)
    with speedo.join({"w": w}) as run:
        run.keep("steps", steps)
        print("begins at", run.iteration, w.round(3).tolist(), flush=True)
        for epoch in run.epochs(epochs):
            print("epoch", epoch, flush=True)
            for some, right in run.share((x, y), batch=8, shuffle=True):
                error = some @ w - right
                w -= 0.02 * (some.T @ error) / len(error)
                steps.count += 1
                time.sleep(pause)
                run.step(loss=float((error**2).mean()))
