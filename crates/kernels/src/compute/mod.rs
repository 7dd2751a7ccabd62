//! Plain functions over slices: GEMM, convolution, reductions, elementwise maths, quantization.
//! They know shapes and strides, and neither operators nor files.
