"""The tests. A package, so that the helpers of one folder can be imported from another."""
