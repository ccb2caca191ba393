"""Tests with real processes: torchrun, etcd and the coordinator on loopback."""
