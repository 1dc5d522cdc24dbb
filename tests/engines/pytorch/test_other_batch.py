"""A layer takes a batch of another size than that of its set-up, as a Filter below it makes them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from tests.engines.pytorch.layer_trial import set_up

pytestmark = [pytest.mark.torch, pytest.mark.caffe]

IMAGE, ROW, ITEM = (2, 6, 6), (4,), ()
# Layer and the shapes of its bottoms without the batch.
LAYERS: Final = {
    'type: "Accuracy"': (ROW, ITEM),
    'tops: 2\ntype: "Accuracy"': (ROW, ITEM),
    'type: "ArgMax"': (ROW,),
    'type: "BatchNorm"': (IMAGE,),
    'type: "Bias" bias_param { axis: 0 }': (ROW, ROW),
    'type: "Concat"': (ROW, ROW),
    'type: "ContrastiveLoss"': (ROW, ROW, ITEM),
    'type: "Convolution" convolution_param { num_output: 2 kernel_size: 3 }': (IMAGE,),
    'type: "Crop" crop_param { axis: 0 }': (ROW, ROW),
    'type: "Deconvolution" convolution_param { num_output: 2 kernel_size: 3 }': (IMAGE,),
    'type: "Eltwise"': (ROW, ROW),
    'type: "Embed" embed_param { input_dim: 3 num_output: 2 }': (ITEM,),
    'type: "EuclideanLoss"': (ROW, ROW),
    'tops: 2\ntype: "Filter"': (ROW, ITEM, ITEM),
    'type: "Flatten"': (IMAGE,),
    'type: "Flatten" flatten_param { axis: 0 }': (IMAGE,),
    'type: "HingeLoss"': (ROW, ITEM),
    'type: "Im2col" convolution_param { kernel_size: 3 }': (IMAGE,),
    'type: "InnerProduct" inner_product_param { num_output: 3 }': (IMAGE,),
    'type: "LRN"': (IMAGE,),
    'type: "MVN"': (IMAGE,),
    'type: "MultinomialLogisticLoss"': (ROW, ITEM),
    'type: "PReLU"': (ROW,),
    'type: "Pooling" pooling_param { kernel_size: 2 }': (IMAGE,),
    'type: "Reduction"': (ROW,),
    'type: "Reduction" reduction_param { axis: 1 }': (ROW,),
    'type: "Reshape" reshape_param { shape { dim: 0 dim: 2 dim: -1 } }': (ROW,),
    'type: "Reshape" reshape_param { shape { dim: -1 dim: 2 } }': (ROW,),
    'type: "SPP" spp_param { pyramid_height: 2 }': (IMAGE,),
    'type: "Scale" scale_param { axis: 0 }': (ROW, ROW),
    'type: "Scale" scale_param { axis: 0 }\n': (ROW, ITEM),
    'type: "SigmoidCrossEntropyLoss"': (ROW, ROW),
    'tops: 2\ntype: "Slice" slice_param { axis: 0 }': (ROW,),
    'tops: 2\ntype: "Slice" slice_param { axis: 0 slice_point: 1 }': (ROW,),
    'type: "Softmax"': (ROW,),
    'tops: 2\ntype: "SoftmaxWithLoss"': (ROW, ITEM),
    'type: "SoftmaxWithLoss" loss_param { normalization: FULL }': ((4, 3), (3,)),
    'type: "SoftmaxWithLoss" loss_param { normalization: BATCH_SIZE }': ((4, 3), (3,)),
    'type: "Tile" tile_param { axis: 0 tiles: 2 }': (ROW,),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_another_batch_than_that_of_the_set_up(layer: str) -> None:
    import torch

    rng = np.random.default_rng(1)
    bottoms = [
        torch.from_numpy(rng.integers(0, 3, (2, *shape)).astype(np.float32))
        for shape in LAYERS[layer]
    ]
    found = []
    for batch in (4, 2):  # of the set-up
        made = set_up(layer, [(batch, *shape) for shape in LAYERS[layer]])
        blobs = [torch.full(spec.shape, 0.25) for spec in made.blobs]
        found.append(made.forward(bottoms, blobs))
    for top, expected in zip(*found, strict=True):
        assert torch.equal(top, expected)
