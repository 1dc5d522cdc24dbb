"""Converts datasets into what Caffe reads: LMDB databases, a mean file, and a manifest that describes them."""

from speedo.data.base import COMMAND, Prepared, Progress, silent
from speedo.data.check import Checked, check
from speedo.data.cifar10 import prepare_cifar10
from speedo.data.convert import convert
from speedo.data.images import prepare_images
from speedo.data.mnist import prepare_fashion_mnist, prepare_mnist
from speedo.data.roots import default_data_root, ensure_bundled
from speedo.data.split import Split, split

__all__ = [
    "COMMAND",
    "Checked",
    "Prepared",
    "Progress",
    "Split",
    "check",
    "convert",
    "default_data_root",
    "ensure_bundled",
    "prepare_cifar10",
    "prepare_fashion_mnist",
    "prepare_images",
    "prepare_mnist",
    "silent",
    "split",
]
