"""Nets of sequences, and of two images."""

from __future__ import annotations

from tests.support.published_nets.builder import MAX_3, Net, inputs_of


def lrcn(steps: int = 20, words: int = 8801, width: int = 1000, features: int = 1000) -> Net:
    """LRCN's caption model, two layers, factored: Donahue et al. 2014, arXiv:1411.4389, on features of images."""
    sizes = (steps, 1)
    net = Net("LRCN")
    net.inputs = inputs_of("sentences", cont_sentence=sizes, input_sentence=sizes)
    net.inputs += inputs_of("features", image_features=(1, features))
    wide = f"recurrent_param {{ num_output: {width} }}"
    embed = f"embed_param {{ input_dim: {words} num_output: {width} bias_term: false }}"
    top = net.add("embedding", "Embed", "input_sentence", options=embed)
    top = net.add("lstm1", "LSTM", top, "cont_sentence", options=wide)
    top = net.add("lstm2", "LSTM", top, "cont_sentence", "image_features", options=wide)
    net.scores = net.fc("predict", top, words, "axis: 2")
    net.label, net.axis = "target_sentence", 2
    net.data = (
        'layer { name: "sentences" type: "HDF5Data" top: "cont_sentence" top: "input_sentence" top: "target_sentence" '
        f'hdf5_data_param {{ source: "sentences" batch_size: {steps} }} }}\n'
        'layer { name: "features" type: "HDF5Data" top: "image_features" '
        'hdf5_data_param { source: "features" batch_size: 2 } }\n'
    )
    return net


def crnn(width: int = 100, classes: int = 37) -> Net:
    """CRNN: Shi et al. 2015, arXiv:1507.05717, table 1; an LSTM reads backwards between two Reverse layers."""
    net = Net("CRNN", data=(1, 1, 32, width), cont=(width // 4 + 1, 1))
    top = net.pool("pool1", net.conv("conv1", "data", 64, 3, relu=True))
    top = net.pool("pool2", net.conv("conv2", top, 128, 3, relu=True))
    top = net.conv("conv4", net.conv("conv3", top, 256, 3, relu=True), 256, 3, relu=True)
    high = "pool: MAX kernel_size: 2 stride_h: 2 stride_w: 1 pad_h: 0 pad_w: 1"
    top = net.pool("pool3", top, high)
    for name in ("conv5", "conv6"):
        top = net.bn(net.conv(name, top, 512, 3))
    top = net.conv("conv7", net.pool("pool4", top, high), 512, 2, pad=0, relu=True)
    options = "permute_param { order: 3 order: 0 order: 1 order: 2 }"
    top = net.add("sequence", "Permute", top, options=options)
    top = net.add(
        "steps", "Reshape", top, options="reshape_param { shape { dim: 0 dim: 0 dim: -1 } }"
    )
    for number, outputs in ((1, 256), (2, classes)):
        wide, backwards = "recurrent_param { num_output: 256 }", "reverse_param { axis: 0 }"
        ahead = net.add(f"lstm{number}", "LSTM", top, "cont", options=wide)
        back = net.add(f"reverse{number}", "Reverse", top, options=backwards)
        back = net.add(f"lstm{number}_back", "LSTM", back, "cont", options=wide)
        back = net.add(f"reverse{number}_back", "Reverse", back, options=backwards)
        top = net.fc(
            f"fc{number}", net.concat(f"both{number}", ahead, back, axis=2), outputs, "axis: 2"
        )
    net.scores, net.axis = top, 2
    return net


def goturn() -> Net:
    """GOTURN: Held et al. 2016, arXiv:1604.01802; CaffeNet's convolutions of two crops, with weights for each."""
    net, ends = Net("GOTURN", target=(1, 3, 227, 227), image=(1, 3, 227, 227)), []
    lrn = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"
    for end, bottom in (("", "target"), ("_p", "image")):
        top = net.conv(f"conv1{end}", bottom, 96, 11, 4, pad=0, relu=True)
        top = net.add(f"norm1{end}", "LRN", net.pool(f"pool1{end}", top, MAX_3), options=lrn)
        top = net.conv(f"conv2{end}", top, 256, 5, more="group: 2", relu=True)
        top = net.add(f"norm2{end}", "LRN", net.pool(f"pool2{end}", top, MAX_3), options=lrn)
        top = net.conv(f"conv3{end}", top, 384, 3, relu=True)
        top = net.conv(f"conv4{end}", top, 384, 3, more="group: 2", relu=True)
        top = net.conv(f"conv5{end}", top, 256, 3, more="group: 2", relu=True)
        ends.append(net.pool(f"pool5{end}", top, MAX_3))
    top = net.concat("pool5_concat", *ends)
    for name in ("fc6-new", "fc7-new", "fc7-newb"):
        top = net.dropout(net.fc(name, top, 4096, relu=True))
    net.fc("fc8-shapes", top, 4)
    return net
