"""The forms in which a layer is exported: nodes of ONNX, and source of PyTorch."""
