"""Packs a built pycaffe into a wheel.

    python make_wheel.py CAFFE_SOURCE CMAKE_BUILD OUTPUT_FOLDER VERSION [PACKAGE_LIST]

Run by the interpreter that the extension was built for: the wheel's tags are taken from it. PACKAGE_LIST
names the system's packages with the libraries that the extension needs; they become the wheel's
`Requires-External`, which `speedo doctor` reads. The same inputs give the same bytes.
"""

import base64
import hashlib
import sys
import sysconfig
import zipfile
from pathlib import Path

# Built against NumPy 2 an extension also runs with 1.x from 1.25 on.
METADATA = """\
Metadata-Version: 2.4
Name: pycaffe
Version: {version}
Summary: BVLC Caffe's Python interface, CPU only, with the native library inside
License-Expression: BSD-2-Clause
License-File: LICENSE
Requires-Python: =={python}.*
Requires-Dist: numpy>=1.25
Requires-Dist: protobuf>=4.21
Requires-Dist: six>=1.16
{external}Provides-Extra: image
Requires-Dist: scikit-image>=0.24; extra == "image"

Built from Debian's source package of Caffe for the shared libraries of the machine it was built on.
`caffe.io.load_image` and `resize_image` need the extra `image`.
"""
EPOCH = (2018, 8, 21, 0, 0, 0)  # the date of the source


def main() -> None:
    """Collect the files, write them with their record, and print the wheel's path."""
    source, build, output = (Path(argument) for argument in sys.argv[1:4])
    version = sys.argv[4]
    packages = [line for name in sys.argv[5:] for line in names(Path(name))]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    abi = f"cp{python.replace('.', '')}"
    tag = f"{abi}-{abi}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    info = f"pycaffe-{version}.dist-info"

    files: dict[str, bytes] = {}
    package = source / "python" / "caffe"
    for path in sorted(package.rglob("*")):
        inside = path.relative_to(package)
        if path.suffix in {".py", ".npy"} and inside.parts[0] != "test":
            files[f"caffe/{inside.as_posix()}"] = path.read_bytes()
    files["caffe/_caffe.so"] = (build / "_caffe.so").read_bytes()
    files["caffe/proto/__init__.py"] = b""
    files["caffe/proto/caffe_pb2.py"] = (build / "generated/caffe/proto/caffe_pb2.py").read_bytes()
    files["caffe/proto/caffe.proto"] = (source / "src/caffe/proto/caffe.proto").read_bytes()
    files[f"{info}/licenses/LICENSE"] = (source / "LICENSE").read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(
        version=version,
        python=python,
        external="".join(f"Requires-External: {name}\n" for name in packages),
    ).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: speedo-make-wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    record = [f"{name},{digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()

    wheel = output / f"pycaffe-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            archive.writestr(entry, data)
    print(wheel)


def names(packages: Path) -> list[str]:
    """The names in a package list, without its comments."""
    lines = (line.partition("#")[0].strip() for line in packages.read_text().splitlines())
    return [line for line in lines if line]


def digest(data: bytes) -> str:
    """SHA-256 as a wheel's RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
