"""The service at a glance in a terminal."""
