import torch
from accelerate import Accelerator
from small_net import EPOCHS, SGD, Records, batch_size, net, rate_of_step, save
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

import speedo
from speedo.integrations import IN_RUN
from speedo.integrations.accelerate import joined

accelerator, model = Accelerator(gradient_accumulation_steps=2), net()
sgd = SGD(model.parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(sgd, rate_of_step)
model, optimizer, loader = accelerator.prepare(model, sgd, DataLoader(Records(), batch_size()))
with joined(accelerator, model, optimizer, loader, EPOCHS) as loader:
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = mse_loss(model(x), y)
                accelerator.backward(loss)
                if IN_RUN:
                    speedo.current().report(loss)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()
print("first:", accelerator.is_main_process, accelerator.process_index, len(loader))
save(model)
