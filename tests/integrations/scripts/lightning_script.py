import lightning.pytorch as pl
import torch
from small_net import BATCH, EPOCHS, Records, net, save
from torch import nn
from torch.utils.data import DataLoader

from speedo.integrations.lightning import SpeedoStrategy


class Fit(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: object, _: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        print("rate", self.trainer.optimizers[0].param_groups[0]["lr"], self.trainer.is_global_zero)

    def configure_optimizers(self) -> object:
        sgd = torch.optim.SGD(self.parameters(), lr=0.05)
        return [sgd], [torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)]


model = Fit()
trainer = pl.Trainer(strategy=SpeedoStrategy(), max_epochs=EPOCHS, log_every_n_steps=1)
trainer.fit(model, DataLoader(Records(), batch_size=BATCH))
save(model.net)
