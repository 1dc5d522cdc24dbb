"""The layers of Caffe as nodes of ONNX and as source of PyTorch."""
