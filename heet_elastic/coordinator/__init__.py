"""The coordinator: reads one snapshot, decides purely, writes fenced, says why."""
