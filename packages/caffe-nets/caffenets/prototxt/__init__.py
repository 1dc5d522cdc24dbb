"""Prototxt: read as Caffe reads it, with errors that name file, line and remedy, and older formats upgraded."""
