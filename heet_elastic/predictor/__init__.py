"""Predict a job's throughput in every configuration from the few that were measured. numpy and scipy only."""
