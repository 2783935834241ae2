"""Routing: virtual time, one job at a time, servers that stay busy; and what a log of decisions says about a policy."""
