"""The HTTP API under /v1: routes, authentication, checks of bodies, responses, and the OpenAPI document."""
