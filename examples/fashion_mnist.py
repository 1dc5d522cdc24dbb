"""The images and labels of Fashion-MNIST, from the files of Debian's dataset-fashion-mnist or a folder of yours."""

import gzip
import os
import pathlib

import numpy as np

FOLDER = os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist")


def fashion_mnist(part):
    """`part` is `train` or `t10k`: images of float32 in [0, 1], a row each, and their labels."""
    folder = pathlib.Path(FOLDER)
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = np.frombuffer(images, np.uint8).reshape(-1, 784)
    return pixels.astype(np.float32) / 255, np.frombuffer(labels, np.uint8).astype(np.int64)
