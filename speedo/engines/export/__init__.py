"""A trained net for other programs: its deploy prototxt, ONNX, a module of plain PyTorch; and weights taken back."""
