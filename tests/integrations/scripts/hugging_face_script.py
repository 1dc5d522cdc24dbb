from small_net import BATCH, EPOCHS, Records, net, save
from torch import nn
from transformers import TrainingArguments

from speedo.integrations.hugging_face import SpeedoTrainer


class Fit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: object, labels: object) -> dict[str, object]:
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


model = Fit()
options = TrainingArguments(
    "out",
    per_device_train_batch_size=BATCH,
    num_train_epochs=EPOCHS,
    learning_rate=0.05,
    lr_scheduler_type="constant",
    optim="sgd",
    max_grad_norm=0,
    save_strategy="epoch",
    logging_steps=1,
    train_sampling_strategy="sequential",
    report_to=[],
)
SpeedoTrainer(model, options, train_dataset=Records(named=True)).train()
save(model.net)
