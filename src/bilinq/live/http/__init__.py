"""The HTTP API under /v1: routes, checks of keys and bodies, answers, and its OpenAPI description."""
