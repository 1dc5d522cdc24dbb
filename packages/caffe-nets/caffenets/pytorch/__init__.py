"""The layers of Caffe in PyTorch, and how a net is wired of them."""
