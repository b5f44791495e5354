"""Models as kernels: cut ONNX graphs, torch operators."""
