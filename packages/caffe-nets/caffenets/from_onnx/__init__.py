"""Nets of ONNX as nets of Caffe: a prototxt of plain BVLC layers, and a `.caffemodel`."""
