from small_net import EPOCHS, SGD, SLOW_S, Records, batch_size, net, save
from torch import Tensor, nn
from transformers import TrainingArguments

from speedo.integrations.hugging_face import SpeedoTrainer


class Fit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.net(x), labels)}


options = TrainingArguments(
    "out",
    per_device_train_batch_size=batch_size(),
    gradient_accumulation_steps=1 if SLOW_S else 2,
    num_train_epochs=EPOCHS,
    lr_scheduler_type="linear" if SLOW_S else "constant",
    max_grad_norm=0,
    save_strategy="epoch",
    train_sampling_strategy="sequential",
)
model = Fit()
trainer = SpeedoTrainer(
    model, options, train_dataset=Records(named=True), optimizers=(SGD(model.parameters()), None)
)
trainer.train()
print("first:", trainer.is_world_process_zero(), "steps:", trainer.state.global_step)
save(model.net)
