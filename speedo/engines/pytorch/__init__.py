"""The second engine: Caffe's nets and solvers on PyTorch, for CPUs, GPUs and machines without Caffe."""
