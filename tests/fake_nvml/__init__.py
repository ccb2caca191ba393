"""A stand-in for NVIDIA's libraries: see fake_nvml.c, fake_cuda.c and boxes.py."""
