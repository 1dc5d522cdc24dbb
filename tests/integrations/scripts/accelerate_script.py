import torch
from accelerate import Accelerator
from small_net import BATCH, EPOCHS, Records, net, save
from torch import nn
from torch.utils.data import DataLoader

from speedo.integrations.accelerate import joined

accelerator = Accelerator()
model = net()
sgd = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, sgd, DataLoader(Records(), BATCH))
with joined(accelerator, model, optimizer, loader, epochs=EPOCHS) as loader:
    for epoch in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print("main process, epoch", epoch, flush=True)
save(model)
