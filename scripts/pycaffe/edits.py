"""Edits Caffe's source tree, as of 2018, for what Debian 12 and today's Python bring.

    python edits.py CAFFE_SOURCE

Every edit names the text it expects and how often; a tree that differs is refused, not guessed at.
"""

import sys
from pathlib import Path
from typing import NamedTuple


class Edit(NamedTuple):
    """One replacement: `old` occurs `times` times in `path`, and becomes `new`."""

    path: str
    times: int
    old: str
    new: str


EDITS = (
    # protobuf 3.21 dropped the second argument, a threshold for a warning.
    Edit(
        "src/caffe/util/io.cpp",
        1,
        "SetTotalBytesLimit(kProtoReadBytesLimit, 536870912)",
        "SetTotalBytesLimit(kProtoReadBytesLimit)",
    ),
    # OpenCV 4 has no C names; reading an image needs its imgcodecs, not the windows of its highgui.
    Edit(
        "src/caffe/util/io.cpp",
        1,
        "#include <opencv2/highgui/highgui.hpp>\n#include <opencv2/highgui/highgui_c.h>\n",
        "#include <opencv2/imgcodecs.hpp>\n",
    ),
    Edit("src/caffe/util/io.cpp", 2, "CV_LOAD_IMAGE_COLOR", "cv::IMREAD_COLOR"),
    Edit("src/caffe/util/io.cpp", 2, "CV_LOAD_IMAGE_GRAYSCALE", "cv::IMREAD_GRAYSCALE"),
    Edit(
        "src/caffe/layers/window_data_layer.cpp", 1, "#include <opencv2/highgui/highgui_c.h>\n", ""
    ),
    Edit(
        "src/caffe/layers/window_data_layer.cpp",
        1,
        '#include "opencv2/highgui/highgui.hpp"\n',
        "#include <opencv2/imgcodecs.hpp>\n",
    ),
    Edit("src/caffe/layers/window_data_layer.cpp", 1, "CV_LOAD_IMAGE_COLOR", "cv::IMREAD_COLOR"),
    # NumPy 2.3 removed both names.
    Edit("python/caffe/io.py", 1, "arr.tostring()", "arr.tobytes()"),
    Edit(
        "python/caffe/io.py",
        1,
        "np.fromstring(datum.data, dtype=np.uint8)",
        "np.frombuffer(datum.data, dtype=np.uint8)",
    ),
    # Training needs neither scikit-image nor SciPy: imported where an image is read or resized.
    Edit(
        "python/caffe/io.py",
        1,
        "import skimage.io\nfrom scipy.ndimage import zoom\nfrom skimage.transform import resize\n",
        "",
    ),
    Edit(
        "python/caffe/io.py",
        1,
        "    img = skimage.img_as_float(skimage.io.imread(filename, as_grey=not color))",
        "    import skimage\n    import skimage.io\n\n"
        "    img = skimage.img_as_float(skimage.io.imread(filename, as_gray=not color))",
    ),
    Edit(
        "python/caffe/io.py",
        1,
        "            resized_std = resize(",
        "            from skimage.transform import resize\n\n            resized_std = resize(",
    ),
    Edit(
        "python/caffe/io.py",
        1,
        "        resized_im = zoom(",
        "        from scipy.ndimage import zoom\n\n        resized_im = zoom(",
    ),
)


def main() -> None:
    """Carry out every edit below the folder named on the command line."""
    root = Path(sys.argv[1])
    for edit in EDITS:
        path = root / edit.path
        text = path.read_text(encoding="utf-8")
        found = text.count(edit.old)
        if found != edit.times:
            sys.exit(f"{path}: expected {edit.old!r} {edit.times} times, found it {found} times")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    print(f"{len(EDITS)} edits made below {root}")


if __name__ == "__main__":
    main()
