"""Nets that classify an image."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.published_nets.builder import MAX_3, WHOLE, Net, images


def squeezenet(side: int = 227) -> Net:
    """SqueezeNet 1.1: Iandola et al. 2016, arXiv:1602.07360, with the sizes of the authors' second version."""
    net = images("SqueezeNet 1.1", side)
    top = net.pool("pool1", net.conv("conv1", "data", 64, 3, 2, pad=0, relu=True), MAX_3)
    for number, narrow in enumerate((16, 16, 32, 32, 48, 48, 64, 64), 2):
        name = f"fire{number}"
        squeezed = net.conv(f"{name}/squeeze1x1", top, narrow, 1, relu=True)
        wide = [
            net.conv(f"{name}/expand{size}x{size}", squeezed, 4 * narrow, size, relu=True)
            for size in (1, 3)
        ]
        top = net.concat(f"{name}/concat", *wide)
        if number in (3, 5):
            top = net.pool(f"pool{number}", top, MAX_3)
    top = net.conv("conv10", net.dropout(top), 1000, 1, relu=True)
    net.scores = net.pool("pool10", top, WHOLE)
    return net


def resnet(depth: int, side: int = 224) -> Net:
    """ResNet-18, -50 or -101: He et al. 2015, arXiv:1512.03385, table 1; shortcuts of type B."""
    blocks = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
    net = images(f"ResNet-{depth}", side)
    top = resnet_body(net, blocks, wide=depth == 18)[-1]
    net.scores = net.fc("fc", net.pool("pool5", top, WHOLE), 1000)
    return net


def resnet_body(
    net: Net, blocks: Sequence[int], *, wide: bool = False, dilated: Sequence[int] = ()
) -> list[str]:
    """The ends of the four stages; those that are `dilated` keep the size. `wide` is without bottlenecks."""
    top, ends, dilation = net.pool("pool1", net.conv_bn("conv1", "data", 64, 7, 2), MAX_3), [], 1
    for stage, count in enumerate(blocks, 2):
        width = 64 << (stage - 2)
        outputs = width if wide else 4 * width
        if stage in dilated:
            dilation *= 2
        for number in range(1, count + 1):
            stride = 2 if number == 1 and stage > 2 and stage not in dilated else 1
            name, bottom = f"conv{stage}_{number}", top
            if wide:
                top = net.conv_bn(f"{name}a", bottom, width, 3, stride)
                top = net.conv_bn(f"{name}b", top, width, 3, relu=False)
            else:
                top = net.conv_bn(f"{name}a", bottom, width, 1, stride)
                spread = {"pad": dilation, "more": f"dilation: {dilation}"} if dilation > 1 else {}
                top = net.conv_bn(f"{name}b", top, width, 3, **spread)
                top = net.conv_bn(f"{name}c", top, outputs, 1, relu=False)
            if number == 1 and (stage > 2 or not wide):
                bottom = net.conv_bn(f"{name}short", bottom, outputs, 1, stride, relu=False)
            top = net.sum(f"{name}sum", bottom, top)
        ends.append(top)
    return ends


def mobilenet(side: int = 224) -> Net:
    """MobileNet v1: Howard et al. 2017, arXiv:1704.04861, table 1; depthwise convolutions by `group`."""
    net = images("MobileNet v1", side)
    top = mobilenet_v1_body(net)[-1]
    net.scores = net.conv("fc7", net.pool("pool6", top, WHOLE), 1000, 1)
    return net


def mobilenet_v1_body(net: Net) -> list[str]:
    """The tops of the thirteen pairs of convolutions."""
    top, inputs, tops = net.conv_bn("conv0", "data", 32, 3, 2), 32, []
    outputs = (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)
    strides = (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1)
    for number, (wide, stride) in enumerate(zip(outputs, strides, strict=True), 1):
        top = net.conv_bn(f"conv{number}/dw", top, inputs, 3, stride, more=f"group: {inputs}")
        top, inputs = net.conv_bn(f"conv{number}", top, wide, 1), wide
        tops.append(top)
    return tops


def mobilenet_v2(side: int = 224) -> Net:
    """MobileNet v2: Sandler et al. 2018, arXiv:1801.04381, table 2; with ReLU in Caffe, as published for it."""
    net = images("MobileNet v2", side)
    top, inputs = net.conv_bn("conv1", "data", 32, 3, 2), 32
    table = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for stage, (factor, outputs, count, first) in enumerate(table, 2):
        for number in range(1, count + 1):
            name, stride, wide, bottom = (
                f"conv{stage}_{number}",
                first if number == 1 else 1,
                factor * inputs,
                top,
            )
            if factor > 1:
                top = net.conv_bn(f"{name}/expand", top, wide, 1)
            top = net.conv_bn(f"{name}/dwise", top, wide, 3, stride, more=f"group: {wide}")
            top = net.conv_bn(f"{name}/linear", top, outputs, 1, relu=False)
            if stride == 1 and inputs == outputs:
                top = net.sum(f"{name}/sum", bottom, top, relu=False)
            inputs = outputs
    top = net.pool("pool", net.conv_bn("conv9", top, 1280, 1), WHOLE)
    net.scores = net.conv("fc", top, 1000, 1)
    return net


def shufflenet(side: int = 224, groups: int = 3) -> Net:
    """ShuffleNet v1: Zhang et al. 2017, arXiv:1707.01083, table 1 and figure 2."""
    net, first = images("ShuffleNet", side), 240
    top = net.pool("pool1", net.conv_bn("conv1", "data", 24, 3, 2), MAX_3)
    inputs = 24
    for stage, count in enumerate((4, 8, 4)):
        wide = first << stage
        for number in range(count):
            name, bottom, stride = f"stage{stage + 2}_{number + 1}", top, 1 if number else 2
            outputs, narrow = wide - inputs if stride == 2 else wide, wide // 4
            by_group = f"group: {groups}"
            more = by_group if inputs > 24 else ""  # the first has too few channels
            top = net.conv_bn(f"{name}/conv1", top, narrow, 1, more=more)
            options = f"shuffle_channel_param {{ group: {groups} }}"
            top = net.add(f"{name}/shuffle", "ShuffleChannel", top, options=options)
            top = net.conv_bn(
                f"{name}/conv2", top, narrow, 3, stride, more=f"group: {narrow}", relu=False
            )
            top = net.conv_bn(f"{name}/conv3", top, outputs, 1, more=by_group, relu=False)
            if stride == 2:
                bottom = net.pool(f"{name}/match", bottom, "pool: AVE kernel_size: 3 stride: 2")
                top = net.relu(net.concat(f"{name}/concat", bottom, top))
            else:
                top = net.sum(f"{name}/sum", bottom, top)
            inputs = wide
    net.scores = net.fc("fc", net.pool("pool", top, WHOLE), 1000)
    return net


def densenet(side: int = 224) -> Net:
    """DenseNet-121, growth 32: Huang et al. 2016, arXiv:1608.06993, table 1."""
    net = images("DenseNet-121", side)
    top = net.pool(
        "pool1",
        net.conv_bn("conv1", "data", 64, 7, 2),
        "kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR",
    )
    channels = 64
    for block, count in enumerate((6, 12, 24, 16), 1):
        for number in range(1, count + 1):
            name = f"conv{block}_{number}"
            grown = net.conv_bn(f"{name}/x1", net.bn(top, f"{name}/x0"), 128, 1)
            grown = net.conv(f"{name}/x2", grown, 32, 3, more="bias_term: false")
            top = net.concat(f"{name}/concat", top, grown)
            channels += 32
        top = net.bn(top, f"block{block}/bn")
        if block < 4:
            channels //= 2
            top = net.conv(f"block{block}/conv", top, channels, 1, more="bias_term: false")
            top = net.pool(f"block{block}/pool", top, "pool: AVE kernel_size: 2 stride: 2")
    net.scores = net.conv("fc6", net.pool("pool5", top, WHOLE), 1000, 1)
    return net


def vgg_16(side: int = 224) -> Net:
    """VGG-16: Simonyan and Zisserman 2014, arXiv:1409.1556, table 1, column D."""
    net = images("VGG-16", side)
    top = net.vgg("data")[-1]
    for name in ("fc6", "fc7"):
        top = net.dropout(net.fc(name, top, 4096, relu=True))
    net.scores = net.fc("fc8", top, 1000)
    return net


_AVE_3 = "pool: AVE kernel_size: 3 stride: 1 pad: 1"


def _branches(net: Net, name: str, bottom: str, *branches: str) -> str:
    """Branches of an inception module, each as `384 224,1x7 256,7x1`: outputs, kernel, `/2` for a stride without pad.

    `96,1 96,1x3|96,3x1` ends in both. A branch that begins with `ave` or `max` is of what that pool makes.
    """
    ends = []
    for at, branch in enumerate(branches):
        top = bottom
        for step, words in enumerate(branch.split()):
            if words in ("ave", "max"):
                options = _AVE_3 if words == "ave" else f"{MAX_3} pad: 0"
                top = net.pool(f"{name}/{at}_{step}", top, options)
                continue
            tops = []
            for way, word in enumerate(words.split("|")):
                outputs, kernel, stride = word.replace("/", ",").split(",") + (
                    [] if "/" in word else ["1"]
                )
                high, _, wide = kernel.partition("x")
                pair = (int(high), int(wide or high))
                pad = 0 if stride == "2" or "/" in word else None
                tops.append(
                    net.conv_bn(
                        f"{name}/{at}_{step}_{way}", top, int(outputs), pair, int(stride), pad=pad
                    )
                )
            top = tops[0]
        ends += tops if branch.split()[-1] not in ("ave", "max") else [top]
    return net.concat(f"{name}/concat", *ends)


def inception_v3(side: int = 299) -> Net:
    """Inception-v3: Szegedy et al. 2015, arXiv:1512.00567, table 1 and figures 5 to 7 and 10, as it was released."""
    net = images("Inception-v3", side)
    top = net.conv_bn("conv1", "data", 32, 3, 2, pad=0)
    top = net.conv_bn("conv3", net.conv_bn("conv2", top, 32, 3, pad=0), 64, 3)
    top = net.conv_bn("conv4", net.pool("pool1", top, MAX_3), 80, 1)
    top = net.pool("pool2", net.conv_bn("conv5", top, 192, 3, pad=0), MAX_3)
    for number, pooled in enumerate((32, 64, 64)):
        top = _branches(
            net, f"a{number}", top, "64,1", "48,1 64,5", "64,1 96,3 96,3", f"ave {pooled},1"
        )
    top = _branches(net, "a_reduced", top, "384,3/2", "64,1 96,3 96,3/2", "max")
    for number, wide in enumerate((128, 160, 160, 192)):
        far = f"{wide},1 {wide},7x1 {wide},1x7 {wide},7x1 192,1x7"
        top = _branches(
            net, f"b{number}", top, "192,1", f"{wide},1 {wide},1x7 192,7x1", far, "ave 192,1"
        )
    top = _branches(net, "b_reduced", top, "192,1 320,3/2", "192,1 192,1x7 192,7x1 192,3/2", "max")
    for number in range(2):
        both = "384,1x3|384,3x1"
        top = _branches(
            net, f"c{number}", top, "320,1", f"384,1 {both}", f"448,1 384,3 {both}", "ave 192,1"
        )
    net.scores = net.fc("fc", net.dropout(net.pool("pool3", top, WHOLE)), 1000)
    return net


def inception_v4(side: int = 299) -> Net:
    """Inception-v4: Szegedy et al. 2016, arXiv:1602.07261, figures 3 to 9."""
    net = images("Inception-v4", side)
    top = net.conv_bn("conv1", "data", 32, 3, 2, pad=0)
    top = net.conv_bn("conv3", net.conv_bn("conv2", top, 32, 3, pad=0), 64, 3)
    top = _branches(net, "stem1", top, "max", "96,3/2")
    top = _branches(net, "stem2", top, "64,1 96,3/1", "64,1 64,7x1 64,1x7 96,3/1")
    top = _branches(net, "stem3", top, "192,3/2", "max")
    for number in range(4):
        top = _branches(net, f"a{number}", top, "96,1", "64,1 96,3", "64,1 96,3 96,3", "ave 96,1")
    top = _branches(net, "a_reduced", top, "384,3/2", "192,1 224,3 256,3/2", "max")
    for number in range(7):
        far = "192,1 192,7x1 224,1x7 224,7x1 256,1x7"
        top = _branches(net, f"b{number}", top, "384,1", "192,1 224,1x7 256,7x1", far, "ave 128,1")
    top = _branches(net, "b_reduced", top, "192,1 192,3/2", "256,1 256,1x7 320,7x1 320,3/2", "max")
    for number in range(3):
        both = "256,1x3|256,3x1"
        top = _branches(
            net,
            f"c{number}",
            top,
            "256,1",
            f"384,1 {both}",
            f"384,1 448,3x1 512,1x3 {both}",
            "ave 256,1",
        )
    net.scores = net.fc("fc", net.dropout(net.pool("pool", top, WHOLE)), 1000)
    return net


def age_or_gender(classes: int, side: int = 227) -> Net:
    """Levi and Hassner, Age and Gender Classification Using Convolutional Neural Networks, CVPR workshops 2015."""
    net = images("age" if classes == 8 else "gender", side)
    top = "data"
    for number, (outputs, kernel, stride, pad) in enumerate(
        ((96, 7, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1)), 1
    ):
        top = net.conv(f"conv{number}", top, outputs, kernel, stride, pad=pad, relu=True)
        top = net.pool(f"pool{number}", top, MAX_3)
        if number < 3:
            options = "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }"
            top = net.add(f"norm{number}", "LRN", top, options=options)
    for name in ("fc6", "fc7"):
        top = net.dropout(net.fc(name, top, 512, relu=True))
    net.scores = net.fc("fc8", top, classes)
    return net
