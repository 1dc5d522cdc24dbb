import lightning.pytorch as pl
import torch
from small_net import EPOCHS, SGD, SLOW_S, Records, batch_size, net, rate_of_step, save
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from speedo.integrations.lightning import SpeedoStrategy


class Fit(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        print("validates at rate", self.trainer.optimizers[0].param_groups[0]["lr"], flush=True)

    def configure_optimizers(self) -> object:
        sgd = SGD(self.parameters())
        of_step = torch.optim.lr_scheduler.LambdaLR(sgd, rate_of_step)
        of_epoch = torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)
        return [sgd], [{"scheduler": of_step, "interval": "step"} if SLOW_S else of_epoch]


model, records = Fit(), Records()
loaders = DataLoader(records, batch_size()), DataLoader(TensorDataset(records.x, records.y), 40)
trainer = pl.Trainer(
    strategy=SpeedoStrategy(), max_epochs=EPOCHS, log_every_n_steps=1, num_sanity_val_steps=0
)
trainer.fit(model, *loaders)
save(model.net)
