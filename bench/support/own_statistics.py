"""Stands before a script of one process: each half of a batch has statistics of its own in BatchNorm, as two workers'."""

import torch

_plain = torch.nn.modules.batchnorm._BatchNorm.forward


def _in_halves(self, x):
    if not self.training:
        return _plain(self, x)
    averages, outputs, seen = (self.running_mean, self.running_var), [], []
    before = [one.clone() for one in averages]
    for half in x.chunk(2):
        for one, value in zip(averages, before, strict=True):
            one.copy_(value)
        outputs.append(_plain(self, half))
        seen.append([one.clone() for one in averages])
    for one, values in zip(averages, zip(*seen, strict=True), strict=True):
        one.copy_(sum(values) / 2)
    return torch.cat(outputs)


torch.nn.modules.batchnorm._BatchNorm.forward = _in_halves
