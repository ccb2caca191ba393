"""What runs on each host and inside each worker: probing, device locks, sampling. Stays free of heavy imports."""

if __name__ != "heet_elastic.agents":
    raise ImportError("import heet_elastic.agents (the folder agents/ is reached through heet_elastic)")
