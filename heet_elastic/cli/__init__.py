"""The commands: `heet ...` (main), `heet-coordinator`. Fetching is apart from rendering, one module a command."""
