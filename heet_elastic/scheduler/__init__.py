"""Decide who gets which GPUs: price, matching, trading, markets, baselines; then placement. numpy and scipy only."""
