"""Caffe's file formats as a protobuf schema of SpeeDO's own, for hosts without pycaffe; `make schema` generates it."""
