import torch
from skorch import NeuralNet
from small_net import BATCH, EPOCHS, Records, net, save
from torch import nn

from speedo.integrations.skorch import SpeedoMixin


class Net(SpeedoMixin, NeuralNet):
    pass


fitted = Net(
    net(),
    nn.MSELoss,
    optimizer=torch.optim.SGD,
    lr=0.05,
    batch_size=BATCH,
    max_epochs=EPOCHS,
    train_split=None,
)
fitted.fit(Records(), None)
save(fitted.module_)
