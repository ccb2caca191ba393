"""Tests of whole simulated runs."""
