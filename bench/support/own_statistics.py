"""Stands before a script of one process: in BatchNorm each half of a batch has own statistics, as in two workers."""

import torch

_NORM = torch.nn.modules.batchnorm._BatchNorm
_plain = _NORM.forward


def _in_halves(self, x):
    if not self.training:
        return _plain(self, x)
    outputs, seen = [], []
    for half in x.chunk(2):
        averages = self.running_mean.clone(), self.running_var.clone()
        how = self.weight, self.bias, True, self.momentum, self.eps
        outputs.append(torch.nn.functional.batch_norm(half, *averages, *how))
        seen.append(averages)
    for average, halves in zip(
        (self.running_mean, self.running_var), zip(*seen, strict=True), strict=True
    ):
        average.copy_(sum(halves) / 2)
    return torch.cat(outputs)


_NORM.forward = _in_halves
