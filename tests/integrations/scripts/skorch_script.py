import torch
from small_net import EPOCHS, RATE, Records, batch_size, net, save

from speedo.integrations.skorch import SpeedoNet

options = {"lr": RATE, "batch_size": batch_size(), "max_epochs": EPOCHS, "train_split": None}
fitted = SpeedoNet(net(), torch.nn.MSELoss, optimizer=torch.optim.SGD, **options)
fitted.fit(Records(), None)
save(fitted.module_)
