import torch
from skorch.callbacks import LRScheduler
from small_net import EPOCHS, RATE, SGD, Records, batch_size, net, rate_of_step, save

from speedo.integrations.skorch import SpeedoNet

options = {"lr": RATE, "batch_size": batch_size(), "max_epochs": EPOCHS, "train_split": None}
schedule = LRScheduler(
    torch.optim.lr_scheduler.LambdaLR, lr_lambda=rate_of_step, step_every="batch"
)
fitted = SpeedoNet(net(), torch.nn.MSELoss, optimizer=SGD, callbacks=[schedule], **options)
fitted.fit(Records(), None)
save(fitted.module_)
