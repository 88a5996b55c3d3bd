//! A simulated libcuda.so.1 that behaves as measured on the real driver, on host memory.
