"""What a run writes for other tools: TensorBoard, Prometheus, and the tools that read Caffe's log."""
