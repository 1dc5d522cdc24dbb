"""Files of trained weights, read without their own libraries: Caffe's, in HDF5 too, ONNX's, PyTorch's and NumPy's.

A stranger made the file. So first only its table of contents is read: names, shapes, types, and where the values are.
All of them must be in this one file, uncompressed, once each; a file that names others, or declares more than it holds,
is refused. Then the caller compares the shapes with its net, and reads the values that it needs. So no file takes more
memory than its size, or than the net's parameters, and no other file is opened. Nothing in a file is run.
"""
