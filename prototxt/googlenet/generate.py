"""Writes `train_test.prototxt` of GoogLeNet beside this file: `python generate.py`.

Source: Szegedy et al., "Going deeper with convolutions", 2014 (arXiv:1409.4842): table 1 for the
tower, section 5 for the auxiliary heads, section 6 for augmentation by crops and mirroring. The
paper gives neither initial values nor the constants of the normalisation: weights are xavier and
biases 0.2 as in the model that Caffe's authors published, normalisation is that of Krizhevsky et
al., 2012.
"""

from __future__ import annotations

from pathlib import Path

# Table 1: name, then 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection.
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
CLASSES = 1000
PARAMS = "  param { lr_mult: 1 decay_mult: 1 }\n  param { lr_mult: 2 decay_mult: 0 }\n"
TRAIN_ONLY = "  include { phase: TRAIN }\n"
HEADER = """\
# GoogLeNet with its two auxiliary heads, which exist in training only.
# Szegedy et al., "Going deeper with convolutions", 2014. Written by generate.py: change that file.
# Parameters: 6,998,552 in the tower, 3,188,840 and 3,190,888 in the heads: 13,378,280 in training.
name: "GoogLeNet"

"""


class Net:
    """Prototxt text, grown layer by layer; every method returns the name of the blob it made."""

    def __init__(self) -> None:
        self.text = HEADER

    def layer(
        self,
        name: str,
        kind: str,
        bottoms: list[str],
        body: str,
        *,
        top: str = "",
        train_only: bool = False,
    ) -> str:
        """A layer with one top, named like the layer unless said otherwise."""
        top = top or name
        tops = "".join(f'  bottom: "{bottom}"\n' for bottom in bottoms) + f'  top: "{top}"\n'
        scope = TRAIN_ONLY if train_only else ""
        self.text += f'layer {{\n  name: "{name}"\n  type: "{kind}"\n{tops}{scope}{body}}}\n'
        return top

    def data(self, phase: str, source: str, batch: int) -> None:
        """Images of 256 x 256 in the database, crops of 224 x 224 with the mean colour taken
        off."""
        mirror = " mirror: true" if phase == "TRAIN" else ""
        self.text += (
            f'layer {{\n  name: "{phase.lower()}_data"\n  type: "Data"\n'
            '  top: "data"\n  top: "label"\n'
            f"  include {{ phase: {phase} }}\n"
            f"  transform_param {{\n    crop_size: 224{mirror}\n"
            "    # Blue, green, red of ImageNet's mean image.\n"
            "    mean_value: 104 mean_value: 117 mean_value: 123\n  }\n"
            f'  data_param {{ source: "imagenet/{source}" backend: LMDB batch_size: {batch} }}\n'
            "}\n"
        )

    def convolution(
        self,
        name: str,
        bottom: str,
        outputs: int,
        size: int,
        *,
        stride: int = 1,
        train_only: bool = False,
    ) -> str:
        """A convolution that keeps height and width but for its stride, and its ReLU."""
        pad = f" pad: {size // 2}" if size > 1 else ""
        step = f" stride: {stride}" if stride > 1 else ""
        body = (
            f"{PARAMS}  convolution_param {{\n"
            f"    num_output: {outputs} kernel_size: {size}{pad}{step}\n"
            '    weight_filler { type: "xavier" }\n'
            '    bias_filler { type: "constant" value: 0.2 }\n  }\n'
        )
        self.layer(name, "Convolution", [bottom], body, train_only=train_only)
        return self.relu(name, train_only=train_only)

    def relu(self, blob: str, *, train_only: bool = False) -> str:
        """A ReLU in place."""
        return self.layer(f"{blob}_relu", "ReLU", [blob], "", top=blob, train_only=train_only)

    def pool(
        self,
        name: str,
        bottom: str,
        kind: str,
        size: int,
        stride: int,
        *,
        pad: int = 0,
        train_only: bool = False,
    ) -> str:
        """Pooling; Caffe rounds sizes up, as table 1 needs."""
        padding = f" pad: {pad}" if pad else ""
        body = f"  pooling_param {{ pool: {kind} kernel_size: {size} stride: {stride}{padding} }}\n"
        return self.layer(name, "Pooling", [bottom], body, train_only=train_only)

    def normalise(self, name: str, bottom: str) -> str:
        """Local response normalisation across channels."""
        body = "  lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }\n"
        return self.layer(name, "LRN", [bottom], body)

    def inner_product(
        self, name: str, bottom: str, outputs: int, bias: float, *, train_only: bool = False
    ) -> str:
        """A fully connected layer, without a ReLU."""
        filled = f" value: {bias:g}" if bias else ""
        body = (
            f"{PARAMS}  inner_product_param {{\n    num_output: {outputs}\n"
            '    weight_filler { type: "xavier" }\n'
            f'    bias_filler {{ type: "constant"{filled} }}\n  }}\n'
        )
        return self.layer(name, "InnerProduct", [bottom], body, train_only=train_only)

    def dropout(self, name: str, blob: str, ratio: float, *, train_only: bool = False) -> str:
        """Dropout in place."""
        body = f"  dropout_param {{ dropout_ratio: {ratio} }}\n"
        return self.layer(name, "Dropout", [blob], body, top=blob, train_only=train_only)

    def inception(self, name: str, bottom: str) -> str:
        """Figure 2b: four branches, side by side in the channels."""
        ones, reduce3, threes, reduce5, fives, projection = INCEPTIONS[name]
        self.text += f"\n# Inception ({name})\n"
        prefix = f"inception_{name}"
        branch1 = self.convolution(f"{prefix}/1x1", bottom, ones, 1)
        branch3 = self.convolution(f"{prefix}/3x3_reduce", bottom, reduce3, 1)
        branch3 = self.convolution(f"{prefix}/3x3", branch3, threes, 3)
        branch5 = self.convolution(f"{prefix}/5x5_reduce", bottom, reduce5, 1)
        branch5 = self.convolution(f"{prefix}/5x5", branch5, fives, 5)
        pooled = self.pool(f"{prefix}/pool", bottom, "MAX", 3, 1, pad=1)
        branch_pool = self.convolution(f"{prefix}/pool_proj", pooled, projection, 1)
        branches = [branch1, branch3, branch5, branch_pool]
        return self.layer(f"{prefix}/output", "Concat", branches, "")

    def auxiliary(self, name: str, bottom: str) -> None:
        """Section 5: a small classifier in the middle, its loss counted 0.3 times, in training
        only."""
        self.text += "\n# Auxiliary head\n"
        blob = self.pool(f"{name}/pool", bottom, "AVE", 5, 3, train_only=True)
        blob = self.convolution(f"{name}/conv", blob, 128, 1, train_only=True)
        blob = self.inner_product(f"{name}/fc", blob, 1024, 0.2, train_only=True)
        blob = self.relu(blob, train_only=True)
        blob = self.dropout(f"{name}/drop", blob, 0.7, train_only=True)
        blob = self.inner_product(f"{name}/classifier", blob, CLASSES, 0, train_only=True)
        self.layer(
            f"{name}/loss",
            "SoftmaxWithLoss",
            [blob, "label"],
            "  loss_weight: 0.3\n",
            train_only=True,
        )

    def accuracy(self, name: str, bottom: str, top_k: int) -> None:
        """The share of images whose label is among the first `top_k` answers."""
        param = f"  accuracy_param {{ top_k: {top_k} }}\n" if top_k > 1 else ""
        self.layer(name, "Accuracy", [bottom, "label"], f"  include {{ phase: TEST }}\n{param}")


def googlenet() -> str:
    """The whole net as prototxt."""
    net = Net()
    net.data("TRAIN", "train_lmdb", 32)
    net.data("TEST", "test_lmdb", 50)
    net.text += "\n# 3 x 224 x 224 -> 192 x 28 x 28\n"
    blob = net.convolution("conv1/7x7", "data", 64, 7, stride=2)
    blob = net.pool("pool1", blob, "MAX", 3, 2)
    blob = net.normalise("norm1", blob)
    blob = net.convolution("conv2/3x3_reduce", blob, 64, 1)
    blob = net.convolution("conv2/3x3", blob, 192, 3)
    blob = net.normalise("norm2", blob)
    blob = net.pool("pool2", blob, "MAX", 3, 2)
    for name in INCEPTIONS:
        blob = net.inception(name, blob)
        if name in ("3b", "4e"):
            blob = net.pool(f"pool{name[0]}", blob, "MAX", 3, 2)
        elif name in ("4a", "4d"):
            net.auxiliary("auxiliary1" if name == "4a" else "auxiliary2", blob)
    net.text += "\n# 1024 x 7 x 7 -> 1024 -> 1000\n"
    blob = net.pool("pool5", blob, "AVE", 7, 1)
    blob = net.dropout("drop5", blob, 0.4)
    blob = net.inner_product("classifier", blob, CLASSES, 0)
    net.layer("loss", "SoftmaxWithLoss", [blob, "label"], "")
    net.accuracy("accuracy", blob, 1)
    net.accuracy("accuracy_top5", blob, 5)
    return net.text


if __name__ == "__main__":
    Path(__file__).with_name("train_test.prototxt").write_text(googlenet())
