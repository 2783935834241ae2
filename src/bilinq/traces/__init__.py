"""Traces: cluster-data-2019 and plain reward tables become a Problem with its arrivals."""
