"""Nets that say something of each place of an image: its class, an edge, a joint, its color."""

from __future__ import annotations

from tests.support.published_nets.builder import MAX_3, Net, images, readers


def fcn_8s(side: int = 500, width: int = 64, classes: int = 21) -> Net:
    """FCN-8s: Long et al. 2014, arXiv:1411.4038, over VGG-16 with `width` channels in its first layers."""
    net = Net("FCN-8s", data=(1, 3, side, side))
    net.data = readers('name: "data" top: "data"', "images", side)
    net.data += readers('name: "label" top: "label"', "labels")
    ends = net.vgg("data", width=width, first_pad=100)
    top = ends[-1]
    for name, kernel in (("fc6", 7), ("fc7", 1)):
        top = net.dropout(net.conv(name, top, 64 * width, kernel, pad=0, relu=True))

    def larger(name: str, bottom: str, factor: int) -> str:
        return net.conv(
            name, bottom, classes, 2 * factor, factor, pad=0, more="bias_term: false", kind="Deconvolution"
        )  # fmt: skip

    top = larger("upscore2", net.conv("score_fr", top, classes, 1), 2)
    for stage, offset in ((4, 5), (3, 9)):
        finer = net.conv(f"score_pool{stage}", f"pool{stage}", classes, 1)
        finer = net.crop(f"score_pool{stage}c", finer, top, offset)
        top = net.sum(f"fuse_pool{stage}", top, finer, relu=False)
        top = larger(f"upscore_pool{stage}", top, 2 if stage == 4 else 8)
    net.scores = net.crop("score", top, "data", 31)
    return net


def deeplab(side: int = 321) -> Net:
    """DeepLab-LargeFOV: Chen et al. 2014, arXiv:1412.7062, over VGG-16; its pools are of 3 x 3 with a pad."""
    net = images("DeepLab-LargeFOV", side)
    padded = (f"{MAX_3} pad: 1",) * 3 + ("pool: MAX kernel_size: 3 stride: 1 pad: 1",) * 2
    top = net.vgg("data", pools=padded, dilated=2)[-1]
    top = net.pool("pool5a", top, "pool: AVE kernel_size: 3 stride: 1 pad: 1")
    top = net.dropout(net.conv("fc6", top, 1024, 3, pad=12, more="dilation: 12", relu=True))
    top = net.dropout(net.conv("fc7", top, 1024, 1, relu=True))
    top = net.conv("fc8_voc12", top, 21, 1)
    net.scores = net.add("fc8_interp", "Interp", top, options="interp_param { zoom_factor: 8 }")
    return net


def segnet() -> Net:
    """SegNet, CamVid, 360 x 480: Badrinarayanan et al. 2015, arXiv:1511.00561; it unpools by the places of maxima."""
    net, places, counts = images("SegNet", 360, 480), {}, (2, 2, 3, 3, 3)
    widths = (64, 128, 256, 512, 512)

    def conv(name: str, bottom: str, outputs: int) -> str:
        options = "bn_param { bn_mode: INFERENCE }"
        top = net.conv(name, bottom, outputs, 3)
        return net.relu(net.add(f"{name}_bn", "BN", top, top=top, options=options))

    top = "data"
    for stage, (count, width) in enumerate(zip(counts, widths, strict=True), 1):
        for number in range(1, count + 1):
            top = conv(f"conv{stage}_{number}", top, width)
        places[stage] = f"pool{stage}_mask"
        top = net.pool(f"pool{stage}", top, top=(f"pool{stage}", places[stage]))
    for stage in range(5, 0, -1):
        sizes = {5: "upsample_w: 30 upsample_h: 23", 4: "upsample_w: 60 upsample_h: 45"}.get(
            stage, ""
        )
        options = f"upsample_param {{ scale: 2 {sizes} }}"
        top = net.add(f"upsample{stage}", "Upsample", top, places[stage], options=options)
        for number in range(counts[stage - 1], 0, -1):
            width = widths[max(stage - 2, 0)] if number == 1 else widths[stage - 1]
            name = f"conv{stage}_{number}_D"
            is_last = stage == number == 1
            top = net.conv(name, top, 11, 3) if is_last else conv(name, top, width)
    net.scores = top
    return net


def enet() -> Net:
    """ENet, Cityscapes, 512 x 1024: Paszke et al. 2016, arXiv:1606.02147, table 1, as TimoSaemann/ENet has it.

    Spatial Dropout, which does nothing in the TEST phase, is left out.
    """
    net = images("ENet", 512, 1024)

    def bn(blob: str, relu: str = "PReLU") -> str:
        top = net.add(f"{blob}/bn", "BN", blob, options="bn_param { bn_mode: INFERENCE }")
        return net.add(f"{blob}/relu", relu, top, top=f"{blob}/relu") if relu else top

    def block(
        name: str, bottom: str, outputs: int, how: str = "3", relu: str = "PReLU", places: str = ""
    ) -> str:
        """A bottleneck; `how` is `down`, `up`, the kernel, 5 for 5 x 1 and 1 x 5, or `d` and a dilation."""
        narrow, bare = outputs // 4, "bias_term: false"
        first = (2, 2) if how == "down" else (1, 1)
        top = bn(net.conv(f"{name}/0", bottom, narrow, *first, pad=0, more=bare), relu)
        if how == "up":
            top = net.conv(f"{name}/1", top, narrow, 2, 2, pad=0, kind="Deconvolution")
        elif how == "5":
            top = net.conv(
                f"{name}/1", net.conv(f"{name}/1a", top, narrow, (5, 1), more=bare), narrow, (1, 5)
            )
        else:
            dilation = int(how[1:]) if how.startswith("d") and how != "down" else 1
            top = net.conv(f"{name}/1", top, narrow, 3, pad=dilation, more=f"dilation: {dilation}")
        top = bn(net.conv(f"{name}/2", bn(top, relu), outputs, 1, more=bare), "")
        if how in ("down", "up"):
            if how == "down":
                bottom = net.pool(f"{name}/pool", bottom, top=(f"{name}/pool", f"{name}/mask"))
            bottom = bn(net.conv(f"{name}/4", bottom, outputs, 1, more=bare), "")
            if how == "up":
                options = "upsample_param { scale: 2 }"
                bottom = net.add(f"{name}/upsample", "Upsample", bottom, places, options=options)
        top = net.sum(f"{name}/sum", top, bottom, relu=False)
        return net.add(f"{name}/out", relu, top)

    top = net.conv("conv0_1", "data", 13, 3, 2)
    top = bn(net.concat("concat0_1", top, net.pool("pool0_1", "data")))
    for number in range(5):
        top = block(f"1_{number}", top, 64, "3" if number else "down")
    top = block("2_0", top, 128, "down")
    for stage in (2, 3):
        for number, how in enumerate(("3", "d2", "5", "d4", "3", "d8", "5", "d16"), 1):
            top = block(f"{stage}_{number}", top, 128, how)
    for stage, outputs, count, places in ((4, 64, 3, "2_0/mask"), (5, 16, 2, "1_0/mask")):
        for number in range(count):
            top = block(f"{stage}_{number}", top, outputs, "3" if number else "up", "ReLU", places)
    net.scores = net.conv("deconv6_0_0", top, 19, 2, 2, pad=0, kind="Deconvolution")
    return net


def pspnet(side: int = 473, classes: int = 150) -> Net:
    """PSPNet over ResNet-50, ADE20K: Zhao et al. 2016, arXiv:1612.01105, as its authors published it for Caffe."""
    net = images("PSPNet-50", side)

    def conv(
        name: str,
        bottom: str,
        outputs: int,
        kernel: int,
        stride: int = 1,
        dilation: int = 1,
        relu: bool = True,
    ) -> str:
        more = f"bias_term: false {f'dilation: {dilation}' if dilation > 1 else ''}"
        top = net.conv(name, bottom, outputs, kernel, stride, pad=kernel // 2 * dilation, more=more)
        net.add(f"{name}/bn", "BN", top, top=top, options="bn_param { frozen: true }")
        return net.relu(top) if relu else top

    top = conv("conv1_2_3x3", conv("conv1_1_3x3_s2", "data", 64, 3, 2), 64, 3)
    top = net.pool("pool1_3x3_s2", conv("conv1_3_3x3", top, 128, 3), f"{MAX_3} pad: 1")
    for stage, (count, dilation) in enumerate(((3, 1), (4, 1), (6, 2), (3, 4)), 2):
        width = 64 << (stage - 2)
        for number in range(1, count + 1):
            name, bottom, stride = (
                f"conv{stage}_{number}",
                top,
                2 if (stage, number) == (3, 1) else 1,
            )
            top = conv(f"{name}_1x1_reduce", bottom, width, 1, stride)
            top = conv(f"{name}_3x3", top, width, 3, 1, dilation)
            top = conv(f"{name}_1x1_increase", top, 4 * width, 1, relu=False)
            if number == 1:
                bottom = conv(f"{name}_1x1_proj", bottom, 4 * width, 1, stride, relu=False)
            top = net.sum(name, bottom, top)
    ends = [top]
    for bins, kernel in ((1, 60), (2, 30), (3, 20), (6, 10)):
        name = f"conv5_3_pool{bins}"
        pooled = net.pool(name, top, f"pool: AVE kernel_size: {kernel} stride: {kernel}")
        pooled = conv(f"{name}_conv", pooled, 512, 1)
        ends.append(
            net.add(
                f"{name}_interp", "Interp", pooled, options="interp_param { height: 60 width: 60 }"
            )
        )
    top = net.dropout(conv("conv5_4", net.concat("conv5_3_concat", *ends), 512, 3))
    top = net.conv("conv6", top, classes, 1)
    net.scores = net.add("conv6_interp", "Interp", top, options="interp_param { zoom_factor: 8 }")
    return net


def hed(side: int = 500) -> Net:
    """HED: Xie and Tu 2015, arXiv:1504.06375, over VGG-16; the five Crop layers have one name, as published."""
    net = Net("HED", data=(1, 3, side, side))
    ends, sides = net.vgg("data", first_pad=35, stages=4), []
    for number in range(1, 6):
        stride = 1 << (number - 1)
        top = net.conv(f"score-dsn{number}", ends[2 * number - 2], 1, 1)
        if number > 1:
            top = net.conv(
                f"upsample_{stride}", top, 1, 2 * stride, stride, pad=0, kind="Deconvolution"
            )
        options = f"crop_param {{ axis: 2 offset: {34 + (stride // 2 if number > 1 else 0)} }}"
        sides.append(
            net.add("crop", "Crop", top, "data", top=f"upscore-dsn{number}", options=options)
        )
        net.add(f"sigmoid-dsn{number}", "Sigmoid", sides[-1])
    net.add(
        "sigmoid-fuse",
        "Sigmoid",
        net.conv("upscore-fuse", net.concat("concat-upscore", *sides), 1, 1),
    )
    return net


def u_net(side: int = 572, classes: int = 2) -> Net:
    """U-Net: Ronneberger et al. 2015, arXiv:1505.04597, figure 1; convolutions without a pad."""
    net, top, left = images("U-Net", side, channels=1), "data", []
    size, sizes = side, []

    def pair(name: str, bottom: str, outputs: int) -> str:
        middle = net.conv(f"{name}a", bottom, outputs, 3, pad=0, relu=True)
        return net.conv(f"{name}b", middle, outputs, 3, pad=0, relu=True)

    for depth in range(4):
        top, size = pair(f"d{depth}", top, 64 << depth), size - 4
        left.append(top)
        sizes.append(size)
        if depth == 3:
            top = net.dropout(top)
        top, size = net.pool(f"pool{depth}", top), size // 2
    top, size = net.dropout(pair("d4", top, 1024)), size - 4
    for depth in range(3, -1, -1):
        width = 64 << depth
        top = net.relu(net.conv(f"upconv{depth}", top, width, 2, 2, pad=0, kind="Deconvolution"))
        size *= 2
        cut = net.crop(f"crop{depth}", left[depth], top, (sizes[depth] - size) // 2)
        top, size = pair(f"u{depth}", net.concat(f"concat{depth}", top, cut), width), size - 4
    net.scores = net.conv("score", top, classes, 1)
    return net


def openpose() -> Net:
    """OpenPose's net for COCO's 18 joints, 368 x 368: Cao et al. 2016, arXiv:1611.08050; six stages of two branches."""
    net = Net("OpenPose", image=(1, 3, 368, 368))
    top = net.vgg("image", (2, 2, 4, 2), stages=3)[-1]
    top = net.conv("conv4_3_CPM", top, 256, 3, relu=True)
    features = net.conv("conv4_4_CPM", top, 128, 3, relu=True)
    read = features
    for stage in range(1, 7):
        ends = []
        for branch, outputs in ((1, 38), (2, 19)):
            first = ((128, 3),) * 3 + ((512, 1),) if stage == 1 else ((128, 7),) * 5 + ((128, 1),)
            top = read
            for number, (width, kernel) in enumerate(first, 1):
                top = net.conv(
                    f"Mconv{number}_stage{stage}_L{branch}", top, width, kernel, relu=True
                )
            ends.append(net.conv(f"Mconv{len(first) + 1}_stage{stage}_L{branch}", top, outputs, 1))
        if stage < 6:
            read = net.concat(f"concat_stage{stage + 1}", *ends, features)
    net.concat("net_output", *reversed(ends))
    return net


def colorization(side: int = 224) -> Net:
    """Colorful Image Colorization, its second version: Zhang et al. 2016, arXiv:1603.08511."""
    net, top = Net("LtoAB", data_l=(1, 1, side, side)), "data_l"
    stages = (
        (64, 2, 2, 1),
        (128, 2, 2, 1),
        (256, 3, 2, 1),
        (512, 3, 1, 1),
        (512, 3, 1, 2),
        (512, 3, 1, 2),
        (512, 3, 1, 1),
    )
    for stage, (width, count, last, dilation) in enumerate(stages, 1):
        for number in range(1, count + 1):
            stride = last if number == count else 1
            more = f"dilation: {dilation}"
            top = net.conv(
                f"conv{stage}_{number}", top, width, 3, stride, pad=dilation, more=more, relu=True
            )
        top = net.add(f"conv{stage}norm", "BatchNorm", top)
    top = net.relu(net.conv("conv8_1", top, 256, 4, 2, pad=1, kind="Deconvolution"))
    for number in (2, 3):
        top = net.conv(f"conv8_{number}", top, 256, 3, relu=True)
    options = 'scale_param { bias_term: false filler { type: "constant" value: 2.606 } }'
    top = net.add("conv8_313_rh", "Scale", net.conv("conv8_313", top, 313, 1), options=options)
    net.conv("class8_ab", net.add("class8_313_rh", "Softmax", top), 2, 1)
    return net
