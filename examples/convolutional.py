"""A convolutional net with PyTorch: `speedo run --workers 2 --mode async examples/convolutional.py`."""

import torch
from fashion_mnist import fashion_mnist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import speedo

torch.manual_seed(1)
images, labels = map(torch.from_numpy, fashion_mnist("train"))
loader = DataLoader(TensorDataset(images.view(-1, 1, 28, 28), labels), batch_size=64, shuffle=True)
model = nn.Sequential(
    *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

with speedo.join(model, optimizer) as run:
    for _ in run.epochs(1):
        for x, y in run.share(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            run.report(loss)
            optimizer.step()

if run.is_first:
    tests, answers = map(torch.from_numpy, fashion_mnist("t10k"))
    with torch.no_grad():
        found = model(tests.view(-1, 1, 28, 28)).argmax(1)
    print(f"accuracy {(found == answers).float().mean():.4f}")
