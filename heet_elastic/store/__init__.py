"""The store: the only state that heet's processes share, as a Protocol with an in-memory and an etcd implementation."""
