"""The exporters of layers by Caffe's type names; a file here that declares `EXPORTS` is found."""
