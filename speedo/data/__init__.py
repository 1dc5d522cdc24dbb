"""Converts datasets into what Caffe reads: LMDB databases, a mean file, and a manifest that describes them."""
