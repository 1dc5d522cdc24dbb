"""The pycaffe that setup built can do what SpeeDO promises of it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.caffe

CHECK = Path(__file__).resolve().parents[2] / "scripts" / "pycaffe" / "check.py"


def run_caffe(program: str, folder: Path) -> str:
    """Run a program in a process of its own, since Caffe's CHECK failures abort."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def png(path: Path, image: np.ndarray) -> bytes:
    from PIL import Image

    Image.fromarray(image).save(path)
    return path.read_bytes()


def test_setups_own_check_passes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, CHECK], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "61 layer types" in done.stdout


def test_a_placeholder_package_is_told_from_a_real_one(tmp_path: Path) -> None:
    (tmp_path / "caffe").mkdir()
    (tmp_path / "caffe" / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, CHECK], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "import caffe fails" in done.stderr


def test_importing_it_needs_no_scikit_image_and_no_libpython(tmp_path: Path) -> None:
    program = (
        "import sys, caffe; assert 'skimage' not in sys.modules and 'scipy' not in sys.modules;"
        "print(caffe._caffe.__file__)"
    )
    extension = run_caffe(program, tmp_path).strip()
    libraries = subprocess.run(
        ["ldd", extension], check=True, capture_output=True, text=True
    ).stdout
    assert "libpython" not in libraries
    assert "not found" not in libraries


def test_image_files_and_encoded_records_are_read(tmp_path: Path) -> None:

    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)  # height, width, RGB
    encoded = png(tmp_path / "a.png", image)
    (tmp_path / "list.txt").write_text("a.png 7\n")
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "f" type: "ImageData" top: "file" top: "label"'
        ' image_data_param { source: "list.txt" batch_size: 1 } }'
        'layer { name: "d" type: "Data" top: "record" top: "label2"'
        ' data_param { source: "db" batch_size: 1 backend: LMDB } }'
    )
    (tmp_path / "image.png").write_bytes(encoded)
    program = """
import lmdb, caffe
from caffe.proto import caffe_pb2
datum = caffe_pb2.Datum(encoded=True, label=5, data=open("image.png", "rb").read())
with lmdb.open("db", map_size=1 << 20) as db, db.begin(write=True) as write:
    write.put(b"0", datum.SerializeToString())
net = caffe.Net("net.prototxt", caffe.TEST)
net.forward()
for name in ("file", "record"):
    print(net.blobs[name].data[0].astype(int).tolist())
print(int(net.blobs["label"].data[0]), int(net.blobs["label2"].data[0]))
"""
    from_file, from_record, labels = run_caffe(program, tmp_path).splitlines()
    bgr = image.transpose(2, 0, 1)[::-1].tolist()  # OpenCV's order of channels
    assert from_file == str(bgr)
    assert from_record == str(bgr)
    assert labels == "7 5"


def test_weights_are_saved_and_loaded_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(
        'input: "x" input_shape { dim: 1 dim: 3 }'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"'
        ' inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }'
    )
    program = """
import caffe, numpy as np
one = caffe.Net("net.prototxt", caffe.TEST)
one.save("a.caffemodel"); one.save_hdf5("a.caffemodel.h5")
for name in ("a.caffemodel", "a.caffemodel.h5"):
    two = caffe.Net("net.prototxt", caffe.TEST, weights=name)
    assert np.array_equal(one.params["ip"][0].data, two.params["ip"][0].data)
print("same")
"""
    assert run_caffe(program, tmp_path).strip() == "same"


def test_records_go_through_caffe_io_and_back(tmp_path: Path) -> None:
    program = """
import caffe, numpy as np
image = np.arange(12, dtype=np.uint8).reshape(1, 3, 4)
datum = caffe.io.array_to_datum(image, 3)
assert np.array_equal(caffe.io.datum_to_array(datum), image) and datum.label == 3
print("same")
"""
    assert run_caffe(program, tmp_path).strip() == "same"
