"""Edits Caffe's source tree, as of 2018: for what Debian 12 and today's Python bring, and for threads beside it.

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
    # After `let_others_run(True)` other Python threads run while Caffe computes: they may fetch and publish. What calls
    # Python in the midst of it, Python layers and callbacks, takes the interpreter for that long.
    Edit(
        "python/caffe/_caffe.cpp",
        1,
        "template<typename Dtype>\nclass NetCallback: public Net<Dtype>::Callback {",
        "bool others_run = false;\n"
        "void let_others_run(bool value) { others_run = value; }\n"
        "\n"
        "class WithoutInterpreter {\n"
        " public:\n"
        "  WithoutInterpreter() : state_(others_run ? PyEval_SaveThread() : NULL) {}\n"
        "  ~WithoutInterpreter() {\n"
        "    if (state_ != NULL) PyEval_RestoreThread(state_);\n"
        "  }\n"
        "\n"
        " private:\n"
        "  PyThreadState* state_;\n"
        "};\n"
        "Dtype Net_forward(Net<Dtype>* net, int start, int end) {\n"
        "  WithoutInterpreter others;\n"
        "  return net->ForwardFromTo(start, end);\n"
        "}\n"
        "void Net_backward(Net<Dtype>* net, int start, int end) {\n"
        "  WithoutInterpreter others;\n"
        "  net->BackwardFromTo(start, end);\n"
        "}\n"
        "void Solver_apply_update(Solver<Dtype>* solver) {\n"
        "  WithoutInterpreter others;\n"
        "  solver->ApplyUpdate();\n"
        "}\n"
        "\n"
        "template<typename Dtype>\nclass NetCallback: public Net<Dtype>::Callback {",
    ),
    Edit(
        "python/caffe/_caffe.cpp",
        1,
        "  virtual void run(int layer) {\n    run_(layer);",
        "  virtual void run(int layer) {\n    WithInterpreter own;\n    run_(layer);",
    ),
    Edit(
        "python/caffe/_caffe.cpp",
        1,
        '  bp::def("set_random_seed", &set_random_seed);\n',
        '  bp::def("set_random_seed", &set_random_seed);\n'
        '  bp::def("let_others_run", &let_others_run);\n',
    ),
    Edit("python/caffe/_caffe.cpp", 1, "&Net<Dtype>::ForwardFromTo)", "&Net_forward)"),
    Edit("python/caffe/_caffe.cpp", 1, "&Net<Dtype>::BackwardFromTo)", "&Net_backward)"),
    Edit("python/caffe/_caffe.cpp", 1, "&Solver<Dtype>::ApplyUpdate)", "&Solver_apply_update)"),
    Edit(
        "include/caffe/layers/python_layer.hpp",
        1,
        "template <typename Dtype>\nclass PythonLayer",
        "class WithInterpreter {\n"
        " public:\n"
        "  WithInterpreter() : state_(PyGILState_Ensure()) {}\n"
        "  ~WithInterpreter() { PyGILState_Release(state_); }\n"
        "\n"
        " private:\n"
        "  PyGILState_STATE state_;\n"
        "};\n"
        "\n"
        "template <typename Dtype>\nclass PythonLayer",
    ),
    *(
        Edit("include/caffe/layers/python_layer.hpp", 1, call, f"    WithInterpreter own;\n{call}")
        for call in (
            '    self_.attr("param_str") = bp::str(\n',
            '    self_.attr("reshape")(bottom, top);\n',
            '    self_.attr("forward")(bottom, top);\n',
            '    self_.attr("backward")(top, propagate_down, bottom);\n',
        )
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
