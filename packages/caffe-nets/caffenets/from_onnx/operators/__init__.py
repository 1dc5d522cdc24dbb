"""Operators of ONNX as layers of Caffe. A file that declares `OPERATORS`, functions by types of nodes, is found."""
